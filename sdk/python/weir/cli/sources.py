"""Lines, CSV and NDJSON → batches of NDJSON, cut the same way each time the same input is read.

Knows: the three formats, where batches end, which line of the input each entry came from.
Must never know: HTTP, streams, what happens to a batch.
"""

import base64
import csv
import json
import os
import select
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Final, NamedTuple

from weir.cli.failure import Failure

# A gateway's entries are smaller by default; this only keeps a file without line ends out of memory.
LINE_BYTES_MAX: Final = 64 << 20
# Well below the 8 MiB of a body; the gateway answers no other request while it stores a batch.
BATCH_BYTES_MAX: Final = 1 << 20
_READ_BYTES: Final = 1 << 16
# A live source that is silent for so long has said what it had to say for now.
_SILENCE_S: Final = 0.05


class Format(StrEnum):
    """How the input is written."""

    AUTO = "auto"
    NDJSON = "ndjson"
    CSV = "csv"
    LINES = "lines"


class InputRow(NamedTuple):
    """An entry as a line of NDJSON, and the number of the line of the input where it ended, from 1."""

    number: int
    text: bytes


class InputBatch(NamedTuple):
    """What is stored together: `numbers` are the input's lines, `bytes_read` is how far it was read."""

    position: int
    body: bytes
    numbers: list[int]
    bytes_read: int


class Lines:
    """The lines of a file descriptor, without their ends.

    `number` is the last line's, from 1. `is_silent` says after a line whether a live source has no more at
    the moment; a source that is not live is never silent, so that what follows does not depend on time.
    """

    def __init__(self, descriptor: int, *, live: bool) -> None:
        self._descriptor = descriptor
        self._live = live
        self.number = 0
        self.bytes_read = 0
        self.is_silent = False

    def __iter__(self) -> Iterator[bytes]:
        pieces: list[bytes] = []
        pending_bytes = 0
        while chunk := os.read(self._descriptor, _READ_BYTES):
            self.bytes_read += len(chunk)
            first, *others = chunk.split(b"\n")
            pieces.append(first)
            pending_bytes += len(first)
            if pending_bytes > LINE_BYTES_MAX:
                raise Failure(f"line {self.number + 1} is longer than {LINE_BYTES_MAX} bytes")
            if others:
                whole = [b"".join(pieces), *others[:-1]]
                pieces, pending_bytes = [others[-1]], len(others[-1])
                yield from self._yield_lines(whole)
        if pending_bytes:
            yield from self._yield_lines([b"".join(pieces)])

    def _yield_lines(self, whole: list[bytes]) -> Iterator[bytes]:
        for index, line in enumerate(whole, 1):
            self.number += 1
            self.is_silent = self._live and index == len(whole) and self._waits()
            yield line

    def _waits(self) -> bool:
        return not select.select([self._descriptor], [], [], _SILENCE_S)[0]


def rows(lines: Lines, written: Format, name: str) -> Iterator[InputRow]:
    """The entries of the input. Raises Failure with the line that cannot be read.

    `auto` takes `.csv` in the file's name for CSV, a first line that begins with `{` for NDJSON, and anything
    else for plain lines. CSV without that name needs --format: a comma in a line is no proof.
    """
    texts = iter(lines)
    if written is Format.AUTO:
        if name.lower().endswith(".csv"):
            return _csv(lines, texts)
        first = next(texts, b"")
        texts = _again(first, texts) if lines.number else texts
        written = Format.NDJSON if first.lstrip().startswith(b"{") else Format.LINES
    if written is Format.CSV:
        return _csv(lines, texts)
    return _ndjson(lines, texts) if written is Format.NDJSON else _plain(lines, texts)


def _again(first: bytes, others: Iterable[bytes]) -> Iterator[bytes]:
    yield first
    yield from others


def _ndjson(lines: Lines, texts: Iterable[bytes]) -> Iterator[InputRow]:
    """As they are: the gateway says what is wrong with a line."""
    for text in texts:
        if stripped := text.strip():
            yield InputRow(lines.number, stripped)


def _plain(lines: Lines, texts: Iterable[bytes]) -> Iterator[InputRow]:
    """A line is the field `data`; base64 where it is not UTF-8."""
    for text in texts:
        line = text.removesuffix(b"\r")
        try:
            yield InputRow(lines.number, _encode({"data": line.decode()}))
        except UnicodeDecodeError:
            encoded = base64.b64encode(line).decode()
            yield InputRow(lines.number, _encode({"fields": {"data": encoded}, "encoding": "base64"}))


def _encode(members: dict[str, object]) -> bytes:
    return json.dumps(members, ensure_ascii=False).encode()


def _csv(lines: Lines, texts: Iterable[bytes]) -> Iterator[InputRow]:
    """The first row names the fields."""
    csv.field_size_limit(LINE_BYTES_MAX)
    table = csv.reader(_decoded(lines, texts), strict=True)
    try:
        header = next(table, [])
        if not all(header) or len(set(header)) < len(header):
            raise Failure(f"line {lines.number}: the columns of CSV need names, each its own")
        for row in table:
            if not row:
                continue
            if len(row) != len(header):
                raise Failure(f"line {lines.number}: {len(row)} values for {len(header)} columns")
            yield InputRow(lines.number, _encode(dict(zip(header, row, strict=True))))
    except csv.Error as error:
        raise Failure(f"line {lines.number}: {error}") from None


def _decoded(lines: Lines, texts: Iterable[bytes]) -> Iterator[str]:
    mark = "\ufeff"
    for text in texts:
        try:
            line = text.decode() + "\n"
        except UnicodeDecodeError:
            raise Failure(f"line {lines.number} is not UTF-8") from None
        yield line.removeprefix(mark) if lines.number == 1 else line


def batches(lines: Lines, found: Iterable[InputRow], entries_max: int) -> Iterator[InputBatch]:
    """Entries by the batch: full at `entries_max`, at 1 MiB, or when a live source is silent."""
    position, texts, numbers, size = 0, list[bytes](), list[int](), 0
    for number, text in found:
        if texts and size + len(text) + 1 > BATCH_BYTES_MAX:
            yield InputBatch(position, b"\n".join(texts), numbers, lines.bytes_read)
            position, texts, numbers, size = position + 1, [], [], 0
        texts.append(text)
        numbers.append(number)
        size += len(text) + 1
        if len(texts) == entries_max or lines.is_silent:
            yield InputBatch(position, b"\n".join(texts), numbers, lines.bytes_read)
            position, texts, numbers, size = position + 1, [], [], 0
    if texts:
        yield InputBatch(position, b"\n".join(texts), numbers, lines.bytes_read)
