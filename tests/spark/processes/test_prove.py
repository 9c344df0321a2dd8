"""The short form of the proof: an archive, a mirror, upkeep, and one kill of each kind that fits a minute."""

from pathlib import Path

import pytest

from tests.spark.prove import Plan, prove

pytestmark = pytest.mark.spark

# The long one, on a cluster, is `python -m tests.spark.prove`.
_PLAN = Plan(
    # At most; on a busy machine the first batch alone may take minutes.
    seconds=900,
    rate=150,
    pause_s=(0.5, 1.5),
    # Workers and executors are killed on a cluster: test_cluster.py.
    kinds=("gateway", "commit"),
    batch_entries=5_000,
    once=True,
    local=True,
    upkeep_pause_s=20,
)


def test_nothing_is_lost_or_doubled_however_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that was published is in the archive and in the mirror, each entry once."""
    # The driver's processes would be measured at the price of half their speed.
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
    found = prove(_PLAN, tmp_path)
    assert found.is_exact, found.table()
    assert found.mirrored > 0
    # Otherwise nothing was tried.
    assert found.kills == dict.fromkeys(_PLAN.kinds, 1), found.table()
    assert found.upkeep["trim"] > 0, found.table()
    assert found.trimmed > 0, found.table()
