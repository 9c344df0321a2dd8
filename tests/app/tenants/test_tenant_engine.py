"""The engine of a tenant: its names go in and come out without the prefix, in every kind of reply."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from app.auth import Grant, Principal
from app.live.leases import ConsumerLeases
from app.tenants.renaming import ShownInfo
from app.tenants.tenant import TENANTS_MAX, TenantEngine, Tenants
from engine import Engine, EngineError, entries, ids
from engine.commands import types, weir_commands
from engine.replies import Added, Listing, Reply, StreamInfo
from tests.engine.asking import begin_read, reply_to, submit, submit_each, turn_of

A, B = "acme.", "globex."


def add(stream: str, *values: str, binary: bool = False) -> types.XAdd:
    last: Sequence[tuple[str, str | bytes]] = [("b", b"\xff")] if binary else []
    return types.XAdd(stream=stream, bodies=[entries.body([("v", value), *last]) for value in values])


async def ask(engine: TenantEngine, command: Any) -> Any:
    return await reply_to(engine, command)


@pytest.fixture
async def dead(engine: Engine) -> TenantEngine:
    """A tenant with two dead letters, one of them with values that are no text."""
    tenant = TenantEngine(engine, A)
    policy = {"dead_letter_stream": "dead", "max_deliveries": 3}
    await reply_to(
        tenant, weir_commands.EnsureGroup(stream="s", group="g", start=0, mkstream=True, policy=policy)
    )
    await reply_to(tenant, add("s", "acme.s"))
    await reply_to(tenant, add("s", "acme.s", binary=True))
    read: Any = await reply_to(
        tenant, types.XReadGroup(streams=[("s", types.Cursor.NEW)], group="g", consumer="c")
    )
    buried: Any = await reply_to(
        tenant,
        weir_commands.DeadLetterEntries(
            stream="s", group="g", ids=[one.id for one in read.streams[0].entries], reason="why"
        ),
    )
    assert (buried.stream, len(buried.ids)) == ("dead", 2)
    return tenant


def sources(pages: Sequence[Any]) -> list[bytes]:
    """The source of each dead letter."""
    return [dict(pairs)["weir-source"] for page in pages for _, pairs in page.pairs()]


async def test_dead_letters_name_their_source_without_the_prefix(dead: TenantEngine, engine: Engine) -> None:
    """In every way to read them; the entry's own fields stay as they are."""
    whole = types.XRange(stream="dead", start=ids.ID_MIN, end=ids.ID_MAX)
    page = await ask(dead, whole)
    assert sources([page]) == [b"s", b"s"]
    assert [dict(pairs)["v"] for _, pairs in page.pairs()] == [b"acme.s"] * 2
    read = await ask(dead, types.XRead(streams=[("dead", 0)]))
    assert (read.streams[0].stream, sources([read.streams[0].entries])) == ("dead", [b"s", b"s"])
    full = await ask(dead, types.XInfoStreamFull(stream="dead"))
    assert sources([full.entries]) == [b"s", b"s"]
    for text in (full.stream.first_entry, full.stream.last_entry):
        assert dict(entries.pairs_of(text))["weir-source"] == b"s"
    await reply_to(dead, weir_commands.EnsureGroup(stream="dead", group="g", start=0))
    given = await ask(dead, types.XReadGroup(streams=[("dead", types.Cursor.NEW)], group="g", consumer="c"))
    claimed = await ask(
        dead, types.XAutoClaim(stream="dead", group="g", consumer="d", min_idle_ms=0, start=0, count=9)
    )
    for found in (given.streams[0].entries, claimed.entries):
        assert [dict(one.pairs())["weir-source"] for one in found] == [b"s", b"s"]
    real = types.XRange(stream="acme.dead", start=ids.ID_MIN, end=ids.ID_MAX)
    assert sources([await reply_to(engine, real)]) == [b"acme.s"] * 2


async def test_dead_letters_go_back(dead: TenantEngine) -> None:
    found = await ask(dead, types.XRange(stream="dead", start=ids.ID_MIN, end=ids.ID_MAX))
    letters = [one for one, _ in found.pairs()]
    redriven = await ask(dead, weir_commands.Redrive(stream="s", group="g", letters="dead", ids=letters))
    assert (redriven.letters, await reply_to(dead, types.XLen(stream="dead"))) == (letters, 0)


async def test_a_precondition_means_what_was_shown(dead: TenantEngine) -> None:
    """Though the first entry is shown with another source."""
    shown = await ask(dead, types.XInfoStream(stream="dead"))
    assert isinstance(shown, ShownInfo)
    await reply_to(dead, weir_commands.UpdateStream(stream="dead", retention={"max_len": 9}, expected=shown))
    with pytest.raises(EngineError) as refused:
        await reply_to(
            dead, weir_commands.UpdateStream(stream="dead", retention={"max_len": 8}, expected=shown)
        )
    assert refused.value.code == "precondition_failed"
    again = await ask(dead, types.XInfoStream(stream="dead"))
    assert isinstance(again, StreamInfo)
    assert await reply_to(dead, types.Delete(streams=["dead"], expected=again)) == 1


async def test_a_stream_of_others_is_not_named(engine: Engine) -> None:
    """As where an operator lets a group of a tenant write its dead letters elsewhere."""
    policy = {"dead_letter_stream": "operators", "max_deliveries": 3}
    await reply_to(
        engine, weir_commands.EnsureGroup(stream="acme.s", group="g", start=0, mkstream=True, policy=policy)
    )
    tenant = TenantEngine(engine, A)
    assert (await ask(tenant, weir_commands.DescribeGroup(stream="s", group="g"))).dead_letter_stream == "/"
    assert [one.dead_letter_stream for one in await ask(tenant, types.XInfoGroups(stream="s"))] == ["/"]


async def test_lists_have_the_tenants_streams_in_pages(engine: Engine) -> None:
    """Neighbours in the order of names are not in them, nor names that no request can use."""
    for name in ("acme", "acme.", "acme..", "acme.a", "acme.b", "acme.c", "acme/", "globex.a", "acmf"):
        await reply_to(engine, weir_commands.EnsureGroup(stream=name, group="g", start=0, mkstream=True))
    tenant = TenantEngine(engine, A)
    found: list[str] = []
    after: str | None = None
    while True:
        page = await ask(tenant, types.ListStreams(after=after, limit=1))
        assert isinstance(page, Listing)
        found += page.names
        after = page.next
        if after is None:
            break
        assert A not in after
    assert found == ["a", "b", "c"]
    infos = await ask(tenant, weir_commands.StreamInfos(prefix="b"))
    assert ([name for name, _ in infos.streams], infos.next) == (["b"], None)
    infos = await ask(tenant, weir_commands.StreamInfos(after="a", limit=1))
    assert ([name for name, _ in infos.streams], infos.next) == (["b"], "b")


async def test_keys_over_many_streams_are_the_tenants_own(engine: Engine) -> None:
    """Idempotency keys and chunks: the same ones of another tenant, or of a caller without a prefix, are
    others.
    """
    key, chunk = types.IdempotencyKey("k", b"digest"), weir_commands.Chunk("p", 1, 0)
    callers: list[Any] = [TenantEngine(engine, A), TenantEngine(engine, B), engine]
    for part in ({"idempotency": key}, {"chunk": chunk}):
        command = weir_commands.Publish(parts=[add("s", "1")], **part)
        for caller in callers:
            before = await ask(caller, types.XLen(stream="s"))
            first, second = [await ask(caller, command) for _ in range(2)]
            assert await ask(caller, types.XLen(stream="s")) == before + 1
            assert first.streams[0][0] == "s"
            again = second.streams[0]
            assert (again[0] if isinstance(again, tuple) else again.stream) == "s"


@pytest.mark.parametrize("tenant", ["acme.", "it's.", "a\"b'c.", "é\u200b."])
async def test_refusals_quote_the_tenants_names(engine: Engine, tenant: str) -> None:
    """Of one command, of one in a transaction, of a producer; with any characters in the prefix."""
    own = TenantEngine(engine, tenant)
    name = "o'r\"ders"
    refusals: list[EngineError] = []
    for command in (types.XInfoStream(stream=name), types.XInfoConsumers(stream=name, group="g")):
        with pytest.raises(EngineError) as refused:
            await reply_to(own, command)
        refusals.append(refused.value)
    (one,) = await turn_of(own, [types.XInfoGroups(stream=name)])
    assert isinstance(one, EngineError)
    found: list[Any] = []
    submit(own, [weir_commands.DescribeGroup(stream=name, group="g")], found.extend)
    submit_each(own, [types.XInfoGroups(stream=name), types.XInfoStream(stream=name)], found.extend)
    given: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    begin_read(
        own, types.XReadGroup(streams=[(name, types.Cursor.NEW)], group="g", consumer="c"), given.set_result
    )
    refusals += [one, *found, *await given]
    for refusal in refusals:
        assert refusal.members["stream"] == name
        assert repr(name) in refusal.detail
        assert tenant not in f"{refusal.detail}{refusal.redis}{refusal.members}"
        assert repr(tenant)[1:-1] not in refusal.detail
    await reply_to(
        own, weir_commands.Publish(parts=[add("s", "1")], chunk=weir_commands.Chunk("spark", 2, 0))
    )
    with pytest.raises(EngineError) as refused:
        await reply_to(
            own, weir_commands.Publish(parts=[add("s", "1")], chunk=weir_commands.Chunk("spark", 1, 0))
        )
    assert "the producer 'spark' is in epoch 2" in refused.value.detail


@pytest.mark.parametrize("prefix", ["acme.", "a*[b]."])
async def test_a_quota_is_named_as_in_the_grant(engine: Engine, prefix: str) -> None:
    """And counts streams of the tenant alone."""
    grant = Grant.from_value({"actions": ["write"], "streams": "o*", "streams_max": 1, "prefix": prefix})
    quotas = Principal("tester", [grant]).quotas
    await reply_to(engine, add("orders", "1"))
    tenant = TenantEngine(engine, prefix)
    await reply_to(tenant, add("o1", "1"), quotas=quotas)
    with pytest.raises(EngineError) as refused:
        await reply_to(tenant, add("o2", "1"), quotas=quotas)
    assert (refused.value.code, refused.value.members["quota"]) == ("quota_exceeded", "o*")
    for text in (refused.value.detail, refused.value.redis):
        assert "quota of 'o*' is used up: 1 streams" in text


async def test_commands_about_all_streams_run_nothing(engine: Engine) -> None:
    """By none of the ways to the engine; of commands that run one after the other, the others run."""
    tenant = TenantEngine(engine, A)
    await reply_to(tenant, add("s", "1"))
    with pytest.raises(EngineError):
        await reply_to(tenant, types.FlushAll())
    with pytest.raises(EngineError):
        await turn_of(tenant, [types.XTrim(stream="s", trim=types.Trim(maxlen=0)), types.FlushAll()])
    found: list[Reply | EngineError] = []
    submit(tenant, [types.XTrim(stream="s", trim=types.Trim(maxlen=0)), types.FlushAll()], found.extend)
    submit_each(tenant, [types.FlushAll(), types.FlushAll()], found.extend)
    assert [one.code for one in found if isinstance(one, EngineError)] == ["forbidden"] * 3
    given: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    some = [types.FlushAll(), types.XLen(stream="s"), types.XLen(stream="s" * 512), add("t", "1")]
    submit_each(tenant, some, given.set_result)
    _, length, too_long, added = await given
    assert (length, isinstance(added, Added)) == (1, True)
    assert isinstance(too_long, EngineError)
    assert too_long.code == "invalid_name"
    assert await reply_to(engine, types.XLen(stream="acme.s")) == 1


async def test_callers_without_a_prefix_have_names_as_they_are(engine: Engine) -> None:
    tenants = Tenants(engine, ConsumerLeases())
    assert tenants.find("") is tenants.plain
    assert not isinstance(tenants.plain.engine, TenantEngine)
    assert tenants.find(A) is tenants.find(A)


async def test_tenants_that_follow_nothing_are_forgotten_beyond_the_limit(engine: Engine) -> None:
    tenants = Tenants(engine, ConsumerLeases())
    followed, idle = tenants.find(A), tenants.find(B)
    subscriber = await followed.feeds.subscribe("s", 0)
    for number in range(TENANTS_MAX - 1):
        tenants.find(f"t{number}.")
    assert tenants.find(A) is followed
    assert tenants.find(B) is not idle
    subscriber.close()
