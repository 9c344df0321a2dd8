"""Servers and gateways are killed under load, and slots move: what was acknowledged is there, once."""

import asyncio
from pathlib import Path

import pytest

from tests.cluster.chaos import FAIL_OVER, GATEWAY_KILLED, SLOT_MOVES, Disturbance, Report, run_rounds, table
from tests.cluster.clusters import cluster
from tests.cluster.sentinels import watched
from tests.engine.real_redis import PROGRAMS

SECONDS_MAX = 120.0


@pytest.mark.halved
@pytest.mark.parametrize(
    ("disturbance", "rounds"),
    [(FAIL_OVER, 2), (SLOT_MOVES, 1), (GATEWAY_KILLED, 1)],
    ids=lambda one: one.what if isinstance(one, Disturbance) else "",
)
def test_nothing_acknowledged_is_lost(tmp_path: Path, disturbance: Disturbance, rounds: int) -> None:
    """None is stored twice, kept from the group or from a tail, and no two entries have the same ID. What is
    for later comes too, and what was cancelled does not.
    """
    with cluster(tmp_path) as shards:
        run = run_rounds(tmp_path, shards, "replicated:1", rounds, SECONDS_MAX, disturbance)
        report = asyncio.run(run)
    assert report.is_sound, table([report])
    assert report.rounds == rounds
    assert report.cancelled > 0


@pytest.mark.parametrize("kind", sorted(PROGRAMS))
def test_nothing_that_two_replicas_have_is_lost(tmp_path: Path, kind: str) -> None:
    """Sentinel makes one of them the primary."""
    with watched(tmp_path, kind, replicas=2) as shard:
        report = asyncio.run(run_rounds(tmp_path, [shard], "replicated:2", 1, SECONDS_MAX, url=shard.url))
    assert report.is_sound, table([report])


@pytest.mark.parametrize(("by_tail", "repeated"), [([0, 0], 0), ([3, 3], 0), ([4, 3], 1), ([900, 4], 898)])
def test_a_tail_has_at_most_one_gap_of_each_stream(by_tail: list[int], repeated: int) -> None:
    """In a round, which has one fail-over; a tail that gets its gap again and again is not sound."""
    report = Report("fail-over", "memory", rounds=1, acknowledged=1)
    report.note_gaps(by_tail, takeovers=3)
    assert (report.gaps, report.repeated_gaps) == (sum(by_tail), repeated)
    assert report.is_sound == report.is_followed == (repeated == 0)
