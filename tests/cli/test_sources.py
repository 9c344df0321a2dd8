"""How an input becomes batches. Must never know: gateways."""

import os
from pathlib import Path

import pytest

from weir.cli.failure import Failure
from weir.cli.sources import BATCH_BYTES_MAX, LINE_BYTES_MAX, Format, InputBatch, Lines, batches, rows


def read(file: Path, data: bytes, written: Format, entries_max: int = 1_000) -> list[InputBatch]:
    file.write_bytes(data)
    descriptor = os.open(file, os.O_RDONLY)
    try:
        lines = Lines(descriptor, live=False)
        return list(batches(lines, rows(lines, written, file.name), entries_max))
    finally:
        os.close(descriptor)


def test_a_line_is_as_long_as_the_limit_and_not_longer(tmp_path: Path) -> None:
    line = b"x" * LINE_BYTES_MAX
    (found,) = read(tmp_path / "rows", line + b"\n", Format.NDJSON)
    assert found.body == line
    with pytest.raises(Failure, match="line 1 is longer"):
        read(tmp_path / "rows", line + b"x\n", Format.NDJSON)


@pytest.mark.parametrize(("more", "numbers"), [(0, [[1, 2]]), (1, [[1], [2]])])
def test_a_batch_has_as_many_bytes_as_the_limit(tmp_path: Path, more: int, numbers: list[list[int]]) -> None:
    half = b"x" * (BATCH_BYTES_MAX // 2 - 1)
    found = read(tmp_path / "rows", half + b"\n" + half + b"x" * more, Format.NDJSON)
    assert [one.numbers for one in found] == numbers


def test_a_batch_has_as_many_entries_as_the_limit(tmp_path: Path) -> None:
    found = read(tmp_path / "rows", b"{}\n" * 5, Format.NDJSON, entries_max=2)
    assert [one.numbers for one in found] == [[1, 2], [3, 4], [5]]


def test_a_last_line_without_an_end_is_a_line(tmp_path: Path) -> None:
    (found,) = read(tmp_path / "rows", b'{"n":1}\n{"n":2}', Format.NDJSON)
    assert (found.numbers, found.body) == ([1, 2], b'{"n":1}\n{"n":2}')


def test_a_byte_order_mark_is_one_at_the_beginning_alone(tmp_path: Path) -> None:
    (found,) = read(tmp_path / "rows", "\ufeffa\n\ufeff1\n".encode(), Format.CSV)
    assert found.body == '{"a": "\ufeff1"}'.encode()


def test_a_live_source_is_silent_after_the_last_of_its_lines() -> None:
    """Several come at once as a rule: a batch ends after all of them, and not before."""
    reading, writing = os.pipe()
    try:
        os.write(writing, b"one\ntwo\n")
        lines = Lines(reading, live=True)
        found = [(line, lines.is_silent) for _, line in zip(range(2), lines, strict=False)]
    finally:
        os.close(reading)
        os.close(writing)
    assert found == [(b"one", False), (b"two", True)]


def test_batches_that_are_full_by_their_bytes_are_numbered(tmp_path: Path) -> None:
    """Each has a number of its own, which its idempotency key is made of; none loses a line."""
    file = tmp_path / "rows"
    file.write_bytes(b"".join(b'{"n":"%d%s"}\n' % (number, b"x" * 400_000) for number in range(7)))
    descriptor = os.open(file, os.O_RDONLY)
    try:
        lines = Lines(descriptor, live=False)
        found = list(batches(lines, rows(lines, Format.NDJSON, "rows"), 1_000))
    finally:
        os.close(descriptor)
    assert [one.position for one in found] == [0, 1, 2, 3]
    assert [one.numbers for one in found] == [[1, 2], [3, 4], [5, 6], [7]]
    assert b"\n".join(one.body for one in found) == file.read_bytes().rstrip(b"\n")
