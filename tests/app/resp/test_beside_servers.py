"""The port gives what real servers give in RESP2 and RESP3: Redis 7.0 and 8.2, Valkey 9.1."""

from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.app.resp.differential import peers, side_by_side
from tests.app.resp.long_histories import DifferenceError, Event, Pair, compare, shorten
from tests.engine.real_redis import PROGRAMS

HISTORIES = 15
COMMANDS = 3_000
DRAWN = 600


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_port_beside_a_real_server(program: str, protocol: int, tmp_path: Path) -> None:
    """Reply for reply, blocked readers and transactions included."""
    with side_by_side(tmp_path, program, protocol) as begin:
        run_state_machine_as_test(begin, settings=settings(max_examples=HISTORIES, stateful_step_count=30))


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("program", PROGRAMS)
def test_pipelines_beside_a_real_server(program: str, protocol: int, tmp_path: Path) -> None:
    """Many commands in one write, transactions and blocked readers among them."""
    with peers(tmp_path, program, protocol) as (server, gateway):
        histories, played = compare(server, gateway, steps=COMMANDS, drawn=DRAWN, seed_number=protocol)
    assert histories > 1
    assert played >= COMMANDS


def test_a_difference_is_found_and_made_short(tmp_path: Path) -> None:
    """The one that is left out on purpose: an exact MINID that empties a node."""
    noise = ("XADD", "t", "1-0", "a", "1"), ("XLEN", "t")
    needed = (
        ("XADD", "s", "1-0", "a", "1"),
        ("XADD", "s", "2-0", "a", "1"),
        ("XDEL", "s", "2-0"),
        ("XTRIM", "s", "MINID", "2-0"),
    )
    with peers(tmp_path, "redis", 3) as (server, gateway):
        pair = Pair(server, gateway)
        pair.empty()
        pair.play(Event("pipeline", noise))
        with pytest.raises(DifferenceError, match="'radix-tree-keys': 1"):
            pair.play(Event("pipeline", needed))
        found = [Event("transaction", noise), Event("pipeline", (*noise, *needed))]
        assert shorten(pair, found) == [Event("pipeline", needed)]
