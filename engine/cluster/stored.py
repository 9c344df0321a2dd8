"""An entry as Redis stores it, from the stored form of `engine.entries`, and back.

Knows: that fields are Redis's fields, and where metadata stand.
Must never know: connections, scripts, streams.

    ,"fields":{"a":"1","b":"2"}}            a 1 b 2
    ,"fields":{"a":"1"},"meta":{"k":"v"}}   a 1 weir/meta {"k":"v"}

Other programs of Redis see metadata as a field, the last one. An entry of theirs may have names that are not
UTF-8: these show a replacement character.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from engine import entries

META_FIELD: Final = b"weir/meta"
_decode_meta: Final = msgspec.json.Decoder(dict[str, str]).decode
_to_json: Final = msgspec.json.Encoder().encode


def words_of(body: bytes) -> list[bytes]:
    """Names and values of a body, one after the other, as XADD takes them."""
    text = entries.encode(0, body)
    words = [word for name, value in entries.pairs_of(text) for word in (name.encode(), value)]
    meta = entries.meta_of(text)
    return [*words, META_FIELD, _to_json(meta)] if meta else words


def text_of(entry_id: bytes, words: Sequence[bytes]) -> bytes:
    """The stored form of an entry as XRANGE replies it."""
    return b'{"id":"%b"%b' % (entry_id, body_of(words))


def body_of(words: Sequence[bytes]) -> bytes:
    """The same without its ID."""
    meta: dict[str, str] = {}
    if len(words) >= 2 and words[-2] == META_FIELD:
        try:
            meta = _decode_meta(words[-1])
        except msgspec.DecodeError:
            # A field of another program that has this name.
            meta = {}
        else:
            words = words[:-2]
    names = [name.decode(errors="replace") for name in words[::2]]
    return entries.with_meta(entries.body(list(zip(names, words[1::2], strict=True))), meta)
