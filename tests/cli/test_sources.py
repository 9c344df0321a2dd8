"""How an input becomes batches. Must never know: gateways."""

import os
from pathlib import Path

from weir.cli.sources import Format, Lines, batches, rows


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
