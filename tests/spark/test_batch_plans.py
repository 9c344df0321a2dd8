"""A batch begins when the disk holds which range it has.

Knows: a checkpoint as Spark writes it. Must never know: what is done with a batch.
"""

from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame

from pyspark_weir.checkpoint import StateFolder
from pyspark_weir.errors import PipelineError
from pyspark_weir.jobs.batches import report_failures

NO_FRAME = cast(DataFrame, None)


class Watched(StateFolder):
    """A place that notes what was synced."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.synced: list[str] = []

    def _sync(self, path: str) -> None:
        super()._sync(path)
        self.synced.append(path)


@pytest.fixture
def place(tmp_path: Path) -> Watched:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "metadata").write_text("{}")
    (tmp_path / "offsets/7").write_text("v1")
    return Watched.of(str(tmp_path))


def test_a_plan_is_on_disk_before_anything_is_done(place: Watched) -> None:
    """After a power cut Spark would give the number to another range, and what was stored would not fit."""
    seen: list[str] = []

    def look(_batch: DataFrame, _number: int) -> None:
        seen.extend(place.synced)

    report_failures(look, place)(NO_FRAME, 7)
    assert {place.path(name) for name in ("metadata", "offsets/7", "offsets", "")} <= set(seen)


@pytest.mark.parametrize("missing", ["metadata", "offsets/7"])
def test_a_batch_without_a_plan_is_not_begun(place: Watched, missing: str) -> None:
    """It was taken away: the checkpoint is not this query's any more."""
    Path(place.path(missing)).unlink()
    begun: list[int] = []
    with pytest.raises(PipelineError, match=f"{missing} is not as Spark writes it"):
        report_failures(lambda _batch, number: begun.append(number), place)(NO_FRAME, 7)
    assert begun == []
