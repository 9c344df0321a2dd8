"""The port gives what real servers give in RESP2 and RESP3: Redis 7.0 and 8.2, Valkey 9.1."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from app.doors.resp.commands.session_commands import SESSION_COMMANDS
from app.redis import COMMANDS
from tests.app.resp.differential import peers, side_by_side
from tests.app.resp.long_histories import DifferenceError, Event, Pair, compare, shorten
from tests.engine.real_redis import PROGRAMS

HISTORIES = 15
STEPS = 3_000
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
        histories, played = compare(server, gateway, steps=STEPS, drawn=DRAWN, seed_number=protocol)
    assert histories > 1
    assert played >= STEPS


def of_a_wrong_length() -> Iterator[tuple[str, ...]]:
    """Each command that a transaction takes, with too few words and with too many."""
    rows = {name: (row.arity, True) for name, row in COMMANDS.items()}
    rows |= {name.decode(): (row.arity, row.in_multi) for name, row in SESSION_COMMANDS.items()}
    for name, (arity, _) in rows.items():
        words = (*name.upper().split("|"),)
        if not rows.get(words[0].lower(), (0, True))[1]:
            continue
        if abs(arity) > len(words):
            yield words
        if arity > 0:
            yield (*words, *("x",) * (arity - len(words) + 1))


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_transaction_is_discarded_as_by_a_real_server(program: str, tmp_path: Path) -> None:
    """By what has a wrong number of words: what is answered, then and by EXEC, and that nothing has run."""
    compared = 0
    with peers(tmp_path, program, 2) as (server, gateway):
        for words in of_a_wrong_length():
            info = server.call("COMMAND", "INFO", words[0])
            if info == [None] or str(server.call(*words)).startswith("-unknown subcommand"):
                continue
            compared += 1
            steps = ("MULTI",), ("XADD", "s", "*", "a", "1"), words, ("XLEN", "s"), ("EXEC",), ("EXISTS", "s")
            theirs, ours = ([peer.call(*step) for step in steps] for peer in (server, gateway))
            assert [str(one).replace("-ERR ", "-") for one in ours] == [str(one) for one in theirs], words
    assert compared > 50


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
