"""Content codings of request bodies: gzip, deflate and zstd (RFC 9110, 8.4).

Knows: which codings there are, how much a few coded bytes may become. Must never know: requests, limits.
"""

import zlib
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Protocol

import zstandard

from app.errors import RefusalError

# What is read in one call, unless the bytes that are fed at once become more: some milliseconds.
SLICE_BYTES: Final = 1 << 20
# The same in the loop itself.
INLINE_BYTES: Final = 64 << 10
# What may be asked of a decoder of zstd (RFC 9659, 3): it has to hold that much.
_ZSTD_WINDOW_BYTES_MAX: Final = 8 << 20
_GZIP_WINDOW_BITS: Final = 31
_ZLIB_WINDOW_BITS: Final = 15


class _Decoder(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


class _Coding(NamedTuple):
    """`fed_bytes` are given to the decoder at once, since it makes all at once what it can make of them."""

    begin: Callable[[], _Decoder]
    fed_bytes: int


def _begin_zstd() -> _Decoder:
    return zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX).decompressobj()


# Up to 1,032 bytes of one: a megabyte at once.
_GZIP: Final = _Coding(partial(zlib.decompressobj, _GZIP_WINDOW_BITS), 1 << 10)
_DEFLATE: Final = _Coding(partial(zlib.decompressobj, _ZLIB_WINDOW_BITS), 1 << 10)
# Up to 128 KiB of a block of 4 bytes: four megabytes at once.
_ZSTD: Final = _Coding(_begin_zstd, 128)
_CODINGS: Final = {"gzip": _GZIP, "x-gzip": _GZIP, "deflate": _DEFLATE, "zstd": _ZSTD}
TAKEN: Final = "gzip, deflate, zstd"
"""The codings that are taken, as a header lists them."""


def coding_of(header: bytes) -> str:
    """The coding that a Content-Encoding names, empty for none. Raises `unsupported_media_type`."""
    name = header.decode("latin-1").strip().lower()
    if name in ("", "identity"):
        return ""
    if name not in _CODINGS:
        detail = f"a body comes as it is, or under one Content-Encoding of {TAKEN}"
        raise RefusalError("unsupported_media_type", detail, headers={"accept-encoding": TAKEN})
    return name


class CodedBody:
    """A body that is decoded in slices, so that its reader can stop, and others go on between them."""

    def __init__(self, coding: str, body: bytes) -> None:
        self._name = coding
        self._coding = _CODINGS[coding]
        self._body = body
        self._at = 0
        self._decoder: _Decoder | None = None

    @property
    def is_read(self) -> bool:
        """Whether there is no more."""
        return self._at == len(self._body)

    def read(self, most: int = SLICE_BYTES) -> bytes:
        """What comes next, of about this many bytes, and at most as many. Raises `malformed_encoding`."""
        slices, size, stop = list[bytes](), 0, min(self._at + most, len(self._body))
        while size < most and self._at < stop:
            slices.append(self._feed())
            size += len(slices[-1])
        if self.is_read and self._decoder is not None:
            raise self._malformed("it ends too early")
        return b"".join(slices)

    def _feed(self) -> bytes:
        if self._decoder is None:
            self._decoder = self._coding.begin()
        fed = self._body[self._at : self._at + self._coding.fed_bytes]
        try:
            found = self._decoder.decompress(fed)
        except (zlib.error, zstandard.ZstdError) as error:
            raise self._malformed(str(error)) from None
        self._at += len(fed)
        if self._decoder.eof:
            # Another member, or frame, may follow.
            self._at -= len(self._decoder.unused_data)
            self._decoder = None
        return found

    def _malformed(self, why: str) -> RefusalError:
        return RefusalError("malformed_encoding", f"the body is not {self._name}: {why}")
