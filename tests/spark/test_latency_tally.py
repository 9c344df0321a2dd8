"""A tally counts each batch once, stays readable, and refuses what would not add up."""

from pathlib import Path
from typing import Any

import pytest

from pyspark_weir.errors import OptionError, PipelineError
from pyspark_weir.tally import Tally


def _tally(folder: Path, **about: Any) -> Tally:
    return Tally(str(folder), "job", {"window_ms": 5, **about})


def _plus(number: int) -> Any:
    return lambda kept: (kept or 0) + number


def test_a_batch_counts_once(tmp_path: Path) -> None:
    """Whatever was run again after a crash, by whichever process."""
    tally = _tally(tmp_path)
    assert (tally.batch, tally.kept) == (-1, None)
    assert tally.add(0, _plus(3))
    assert tally.add(1, _plus(4))
    assert not tally.add(1, _plus(4))
    assert not _tally(tmp_path).add(0, _plus(3))
    assert (_tally(tmp_path).batch, _tally(tmp_path).kept) == (1, 7)


def test_a_change_that_fails_changes_nothing(tmp_path: Path) -> None:
    """The batch is run again, and counts then."""
    tally = _tally(tmp_path)
    tally.add(0, _plus(3))

    def fail(_kept: Any) -> Any:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        tally.add(1, fail)
    assert (tally.batch, _tally(tmp_path).kept) == (0, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["weir-job.json"]


def test_other_parameters_are_refused(tmp_path: Path) -> None:
    """Before anything is read; the same ones go on."""
    _tally(tmp_path, field="a").add(0, _plus(1))
    assert _tally(tmp_path, field="a").kept == 1
    with pytest.raises(OptionError, match=r"begun with job job, window_ms 5, field a, not .* field b"):
        _tally(tmp_path, field="b")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"v":1}'])
def test_a_damaged_tally_is_told(tmp_path: Path, content: bytes) -> None:
    """With what to do about it; nothing is counted on top of it."""
    (tmp_path / "weir-job.json").write_bytes(content)
    with pytest.raises(PipelineError, match=r"weir-job.json is damaged: remove the checkpoint"):
        _tally(tmp_path)


def test_a_newer_tally_is_left_alone(tmp_path: Path) -> None:
    """It may mean something else."""
    (tmp_path / "weir-job.json").write_bytes(b'{"v":2,"about":{},"batch":1,"kept":1}')
    with pytest.raises(PipelineError, match="a newer Weir wrote it"):
        _tally(tmp_path)
