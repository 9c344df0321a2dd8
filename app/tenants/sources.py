"""Dead letters of a tenant: the field that names the stream in which an entry died.

Knows: the field, and where it stands in stored entries.
Must never know: prefixes, commands, replies.
"""

from collections.abc import Callable
from typing import Final

from engine import entries

SOURCE: Final = "weir-source"
_SOURCE_BYTES: Final = SOURCE.encode()

Rename = Callable[[bytes], bytes]


def names_source(text: bytes) -> bool:
    """Whether stored entries may have the field: without it there is nothing to rename."""
    return _SOURCE_BYTES in text


def rename_in_entry(text: bytes, rename: Rename) -> bytes:
    """A stored entry with another value of the field; the same where that changes nothing."""
    pairs = entries.pairs_of(text) if names_source(text) else []
    renamed = [(name, rename(value) if name == SOURCE else value) for name, value in pairs]
    if renamed == pairs:
        return text
    body = entries.with_meta(entries.body(renamed), entries.meta_of(text))
    return entries.encode(entries.id_of(text), body)


def rename_in_body(body: bytes, rename: Rename) -> bytes:
    """As `text`, for an entry that has no ID yet."""
    text = entries.encode(0, body)
    renamed = rename_in_entry(text, rename)
    return body if renamed is text else renamed[len(text) - len(body) :]
