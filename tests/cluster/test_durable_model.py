"""Random histories of Durable Streams over a server give what the naive model gives."""

import asyncio

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.commands.base import Command
from engine.commands.durable_commands import DescribeDurable
from engine.commands.types import XRange
from engine.ids import ID_MAX, ID_MIN
from engine.replies import DurableInfo, Entries
from tests import halves
from tests.cluster.engines import attempt, opened
from tests.cluster.servers import BackendServer
from tests.engine.test_durable_model import NAMES, Model, any_step, beginning, word_of


@settings(max_examples=halves.some(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(any_step, min_size=10, max_size=40))
def test_histories_give_what_the_model_gives(
    shared_server: BackendServer, steps: list[Command | str]
) -> None:
    """Steps of a log have no meaning here."""
    shared_server.call("FLUSHALL")
    asyncio.run(_compare(shared_server, [step for step in steps if not isinstance(step, str)]))


async def _compare(server: BackendServer, steps: list[Command]) -> None:
    model = Model()
    async with opened(server) as engine:
        for step in [*beginning, *steps]:
            assert word_of(await attempt(engine, step)) == model.run(step), step
        for name in NAMES:
            found, there = await attempt(engine, DescribeDurable(stream=name)), model.streams.get(name)
            if there is None:
                assert word_of(found) == ("stream_gone" if name in model.hidden else "None")
                continue
            assert isinstance(found, DurableInfo)
            assert found.closed == there.closed
            read = await attempt(engine, XRange(stream=name, start=ID_MIN, end=ID_MAX))
            assert isinstance(read, Entries)
            assert [value.decode() for _, ((_, value),) in read.pairs()] == there.texts
