"""The stamp changes with all that a remembered verdict stands on."""

import asyncio
from collections.abc import Callable

from app.auth import TokenPolicy, tokens
from app.auth.grants import Grant
from app.auth.stamp import Stamp
from app.gateway import Gateway
from app.life import Life
from app.operating import Phase
from app.settings import Settings
from tests.engine.clocks import HandClock, settle

READ = (Grant.parse("read:orders.*"),)


async def test_each_phase_has_another_stamp() -> None:
    life = Life(Gateway(Settings(), HandClock()))
    seen = {life.gateway.stamp.value}
    for phase in (Phase.READY, Phase.RESTARTING, Phase.READY):
        life.enter(phase)
        seen.add(life.gateway.stamp.value)
    life.drain()
    assert len(seen | {life.gateway.stamp.value}) == 5


async def test_tokens_that_go_or_change_change_it_and_new_ones_do_not() -> None:
    token = tokens.create(READ).token
    policy = TokenPolicy([token], lambda: 0.0)
    stamp = Gateway(Settings(), HandClock(), policy).stamp
    before = stamp.value
    policy.add(tokens.create(READ).token)
    assert stamp.value == before
    changes: list[Callable[[], None]] = [
        lambda: policy.replace_tokens([token]),
        lambda: policy.remove(token),
        lambda: policy.revoke([]),
    ]
    for number, change in enumerate(changes, 1):
        change()
        assert stamp.value == before + number


async def test_it_changes_when_the_first_of_the_tokens_ends() -> None:
    clock, loop = HandClock(), asyncio.get_running_loop()
    clock.drive(loop)
    try:
        stamp = Stamp(clock)
        for left_s in (90, 30, 3_600, None):
            stamp.end_with(None if left_s is None else clock.wall_ms() / 1000 + left_s)
        clock.pass_ms(29_000)
        await settle()
        assert stamp.value == 0
        clock.pass_ms(1_500)
        await settle()
        assert stamp.value == 1
        # Of the others, none is remembered.
        clock.pass_ms(7_200_000)
        await settle()
        assert stamp.value == 1
    finally:
        clock.let_be(loop)


async def test_a_wall_clock_that_is_set_forward_is_seen_within_ten_seconds() -> None:
    clock, loop = HandClock(), asyncio.get_running_loop()
    clock.drive(loop)
    try:
        stamp = Stamp(clock)
        stamp.end_with(clock.wall_ms() / 1000 + 3_600)
        clock.pass_ms(3_600_000, 0)
        clock.pass_ms(0, 10_000)
        await settle()
        assert stamp.value == 1
    finally:
        clock.let_be(loop)
