"""Grants that are narrower than a stream: of one group, or of one consumer of it, at every door and place.

A command is tried alone, behind others that are allowed of the same stream, and in a transaction: what was
asked for the first of them must not stand for the second.
"""

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from app import redis
from app.auth import Grant, Principal
from app.main import ROUTES
from engine import entries
from engine.commands.types import XAdd, XGroupCreate, XGroupCreateConsumer
from tests.app.ten_doors import DOORS, Bench, Door, Http, InWords, WebSocket, opened
from tests.engine.asking import reply_to

OWN: Final = {"group": "g", "consumer": "c"}
OTHERS: Final = [{"group": "h", "consumer": "c"}, {"group": "g", "consumer": "d"}]


class Case(NamedTuple):
    """A command on a group, and whether it is a consumer's; or takes entries from any, and names none."""

    words: str
    consumer: bool = False
    of_any: bool = False


CASES: Final = (
    Case("XREADGROUP GROUP {group} {consumer} STREAMS s >", consumer=True),
    Case("XREADGROUP GROUP {group} {consumer} STREAMS s 0", consumer=True),
    Case("XACK s {group} 1-0"),
    Case("XACKDEL s {group} KEEPREF IDS 1 1-0"),
    Case("XNACK s {group} FAIL IDS 1 1-0", of_any=True),
    Case("XCLAIM s {group} {consumer} 0 1-0", consumer=True),
    Case("XAUTOCLAIM s {group} {consumer} 0 0", consumer=True),
    Case("XGROUP CREATE s {group} 0"),
    Case("XGROUP SETID s {group} 0"),
    Case("XGROUP CREATECONSUMER s {group} {consumer}", consumer=True),
    Case("XGROUP DELCONSUMER s {group} {consumer}", consumer=True),
    Case("XGROUP DESTROY s {group}"),
    Case("WEIR.NACK s {group} FAIL DELAY 5 IDS 1 1-0", of_any=True),
    Case("WEIR.NACK s {group} FAIL CONSUMER {consumer} IDS 1 1-0", consumer=True),
    Case("WEIR.EXTEND s {group} {consumer} 1-0", consumer=True),
    Case("WEIR.PAUSE s {group}"),
    Case("WEIR.RESUME s {group}"),
    Case("WEIR.GROUP SET s {group} MAXAGE 9 DEADLETTER t"),
    Case("XPENDING s {group}"),
    Case("XPENDING s {group} - + 10 {consumer}", consumer=True),
    Case("XINFO CONSUMERS s {group}"),
)
# They destroy or move groups that the grant does not name.
OF_WHOLE_STREAMS: Final = (
    *("DEL s", "UNLINK s", "RENAME s t", "RENAMENX s t", "COPY u s", "XTRIM s MAXLEN 1", "XSETID s 9-0"),
    *("EXPIRE s 9", "PEXPIRE s 9", "EXPIREAT s 9", "PEXPIREAT s 9", "PERSIST s", "XCFGSET s IDMP-DURATION 9"),
    *("WEIR.CLOSE s", "XIDMPRECORD s p i 1-0", "FLUSHALL"),
)
WAYS: Final = [door for door in DOORS if isinstance(door, InWords | WebSocket)]
GRANT: Final[dict[str, Any]] = {
    "actions": ["read", "write", "consume", "manage"],
    "streams": "*",
    "groups": "g",
}


def narrow(**members: str) -> Principal:
    """Who may do everything with streams, and in the group `g`."""
    return Principal("tester", [Grant.from_value(GRANT | members)])


def words(case: Case, names: dict[str, str]) -> Sequence[str]:
    return case.words.format(**names).split()


@pytest.mark.early
def test_every_command_that_a_grant_narrows_is_here() -> None:
    """Those that need to consume or to manage: a grant of a group is about these."""
    tried = {_name(case.words.split()) for case in CASES} | {_name(one.split()) for one in OF_WHOLE_STREAMS}
    narrowed = {
        name for name, row in redis.COMMANDS.items() if {"consume", "manage", "close"} & {*row.all_actions}
    }
    assert narrowed - tried == set(), "on a group it has a row in CASES, else a word in OF_WHOLE_STREAMS"


def _name(asked: Sequence[str]) -> str:
    one, two = asked[0].lower(), "|".join(asked[:2]).lower()
    return two if two in redis.COMMANDS else one


@pytest.fixture
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    """A gateway whose caller has a grant that is narrowed so, and a stream with two groups."""
    async with opened(tmp_path, principal=narrow(**request.param)) as bench:
        for stream in ("s", "u"):
            await reply_to(bench.engine, XAdd(stream=stream, bodies=[entries.body([("a", "1")])]))
        for group in ("g", "h"):
            await reply_to(bench.engine, XGroupCreate(stream="s", group=group, start=0))
        yield bench


def is_refused(answer: str) -> bool:
    return "NOPERM" in answer or "forbidden" in answer


async def last_answer(bench: Bench, door: Door, *asked: Sequence[str]) -> str:
    """What is said to the last command; of a transaction that is not begun there is one answer."""
    assert isinstance(door, InWords | WebSocket), "it takes commands"
    return await door.send(bench, *asked)


ALLOWED: Final = (("XLEN", "s"), ("XPENDING", "s", "g"), ("WEIR.RESUME", "s", "g"), ("XACK", "s", "g", "9-0"))


@pytest.mark.parametrize("door", WAYS, ids=lambda door: door.name)
@pytest.mark.parametrize("bench", [{}, {"consumer": "c"}], ids=["a group", "a consumer"], indirect=True)
async def test_a_command_is_refused_where_the_grant_is_narrower(
    bench: Bench, door: Door, request: pytest.FixtureRequest
) -> None:
    """Also behind others of the same stream and group that are allowed, which do not answer for it."""
    has_consumer = "a consumer" in request.node.callspec.id
    for case in CASES:
        for names in (OWN, *OTHERS):
            other_group = names["group"] != OWN["group"]
            is_other = case.of_any or (case.consumer and names["consumer"] != OWN["consumer"])
            other_consumer = has_consumer and is_other
            asked = words(case, names)
            for before in ((), ALLOWED):
                if door.name == "RESP blocked" and not (other_group or other_consumer):
                    # It would wait: the clock stands still.
                    continue
                answer = await last_answer(bench, door, *before, asked)
                assert is_refused(answer) is (other_group or other_consumer), (before, asked, answer)


@pytest.mark.parametrize("door", WAYS, ids=lambda door: door.name)
@pytest.mark.parametrize("bench", [{}], ids=["a group"], indirect=True)
async def test_nothing_is_done_to_a_whole_stream(bench: Bench, door: Door) -> None:
    """Neither alone nor behind what is allowed of it."""
    for case in OF_WHOLE_STREAMS:
        for before in ((), ALLOWED):
            answer = await last_answer(bench, door, *before, case.split())
            assert is_refused(answer), (before, case, answer)


# ---- the same by REST

BODIES: Final[dict[str, dict[str, Any]]] = {
    "ackEntries": {"ids": ["1-0"], "consumer": "{consumer}"},
    "nackEntries": {"ids": ["1-0"], "mode": "fail", "consumer": "{consumer}"},
    "deadLetterEntries": {"ids": ["1-0"], "consumer": "{consumer}"},
    "extendEntries": {"ids": ["1-0"], "consumer": "{consumer}"},
    "claimEntries": {"ids": ["1-0"], "consumer": "{consumer}", "min_idle_ms": 0},
    "autoclaimEntries": {"consumer": "{consumer}", "min_idle_ms": 0},
}
OF_GROUPS: Final = [route for route in ROUTES if "{group}" in route.template]


@pytest.mark.parametrize("door", [door for door in DOORS if type(door) is Http], ids=lambda door: door.name)
@pytest.mark.parametrize("bench", [{}, {"consumer": "c"}], ids=["a group", "a consumer"], indirect=True)
async def test_a_route_is_refused_where_the_grant_is_narrower(
    bench: Bench, door: Http, request: pytest.FixtureRequest
) -> None:
    """All of those that name a group; what destroys it goes last."""
    has_consumer = "a consumer" in request.node.callspec.id
    assert len(OF_GROUPS) > 15
    for route in sorted(OF_GROUPS, key=lambda route: (route.method == "DELETE", route.template)):
        for names in (*OTHERS, OWN):
            of_body = BODIES.get(route.operation_id, {})
            names_consumer = "{consumer}" in route.template or "consumer" in of_body
            other_group = names["group"] != OWN["group"]
            other_consumer = has_consumer and names_consumer and names["consumer"] != OWN["consumer"]
            path = route.template.format(stream="s", **names)
            body = None if route.method == "GET" else json.loads(_filled(of_body, names))
            if route.end is not None:
                path, method = f"{path}?count=1", "HEAD"
            else:
                method = route.method
            answer = await door.ask(bench, method, path, body)
            expected = other_group or other_consumer
            assert answer.startswith("403") is expected, (route.operation_id, names, answer)


@pytest.mark.parametrize("door", [door for door in DOORS if type(door) is Http], ids=lambda door: door.name)
@pytest.mark.parametrize("bench", [{}, {"consumer": "c"}], ids=["a group", "a consumer"], indirect=True)
async def test_what_a_consumer_holds_goes_to_none_that_the_grant_leaves_out(
    bench: Bench, door: Http, request: pytest.FixtureRequest
) -> None:
    """Neither to another one, nor from it."""
    is_own = "a consumer" not in request.node.callspec.id
    for holder, heir in (("c", "d"), ("d", "c")):
        for consumer in (holder, heir):
            await reply_to(bench.engine, XGroupCreateConsumer(stream="s", group="g", consumer=consumer))
        path = f"/v1/streams/s/groups/g/consumers/{holder}?pending=transfer:{heir}"
        answer = await door.ask(bench, "DELETE", path, None)
        assert answer.startswith("200" if is_own else "403"), (holder, heir, answer)


def _filled(body: dict[str, Any], names: dict[str, str]) -> str:
    return json.dumps(body).replace("{consumer}", names["consumer"])


@pytest.mark.parametrize("bench", [{"consumer": "c"}], ids=["a consumer"], indirect=True)
async def test_a_socket_consumes_as_its_own_consumer_alone(bench: Bench) -> None:
    door = next(door for door in DOORS if isinstance(door, WebSocket))
    for names in (*OTHERS, OWN):
        answer = await door.ask(bench, {"op": "consume", "sub": "s", "stream": "s", **names, "credit": 9})
        assert is_refused(answer) is (names != OWN), (names, answer)
