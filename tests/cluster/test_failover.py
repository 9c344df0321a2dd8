"""Primaries are killed under load while their replicas are stalled: what was acknowledged is there."""

import asyncio
from pathlib import Path

import pytest

from tests.cluster.chaos import Report, run_rounds, table
from tests.cluster.clusters import cluster

ROUNDS = 2
SECONDS_MAX = 120.0


def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    """None is stored twice, kept from the group or from a tail, and no two entries have the same ID."""
    with cluster(tmp_path) as shards:
        report = asyncio.run(run_rounds(tmp_path, shards, "replicated:1", ROUNDS, SECONDS_MAX))
    assert report.is_sound, table([report])
    assert report.rounds == ROUNDS


@pytest.mark.parametrize(("by_tail", "repeated"), [([0, 0], 0), ([3, 3], 0), ([4, 3], 1), ([900, 4], 898)])
def test_a_tail_has_at_most_one_gap_of_each_stream(by_tail: list[int], repeated: int) -> None:
    """In a round, which has one fail-over; a tail that gets its gap again and again is not sound."""
    report = Report("memory", rounds=1, acknowledged=1)
    report.note_gaps(by_tail, streams=3)
    assert (report.gaps, report.repeated_gaps) == (sum(by_tail), repeated)
    assert report.is_sound == report.is_followed == (repeated == 0)
