"""What a benchmark may publish."""

import pytest
from msgspec.structs import replace

from bench.speed import BUSY_LOAD, FULL, Method, Results, unpublishable


def results(method: Method = FULL, load_before: float = 0.0) -> Results:
    return Results("2 cores", load_before, method, [], beside={}, standing={}, fan_out={})


def test_a_full_run_on_a_quiet_machine_is_published() -> None:
    assert unpublishable(results(load_before=BUSY_LOAD)) is None


@pytest.mark.parametrize(
    "shorter",
    [
        replace(FULL, rounds=FULL.rounds - 1),
        replace(FULL, seconds=FULL.seconds - 1),
        replace(FULL, standing_entries=FULL.standing_entries - 1),
        replace(FULL, tails=FULL.tails - 1),
    ],
)
def test_a_shorter_run_is_never_published(shorter: Method) -> None:
    assert "a short run" in (unpublishable(results(shorter)) or "")


def test_a_run_on_a_busy_machine_is_never_published() -> None:
    assert "busy" in (unpublishable(results(load_before=BUSY_LOAD + 0.01)) or "")
