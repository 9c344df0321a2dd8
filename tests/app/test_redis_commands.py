"""Replies have the shapes that RESP2 clients know, the engine itself behind them where it has a say."""

import msgspec
import pytest

from app.redis import Resp, parse, seeing_all
from app.redis.parsers.parse_server import _BOOKMARKS_MAX, Bookmarks
from app.redis.replies import just_ids, resp
from engine import EngineError, entries, ids
from engine.commands.types import ListStreams
from engine.replies import (
    AutoClaimed,
    Claimed,
    Deletions,
    Delivered,
    GroupRead,
    Listing,
    PendingEntry,
    PendingList,
    PendingSummary,
    StreamDeliveries,
    StreamsRead,
    Trimmed,
)
from tests.redis_session import RedisSession

ONE = ids.make(1, 0)
TEXT = entries.encode(ONE, entries.body([("a", b"1"), ("a", b"\xff")]))
FIELDS: Resp = [b"a", b"1", b"a", b"\xff"]


def delivered(text: bytes | None, idle_ms: int | None = None, deliveries: int | None = None) -> Delivered:
    return Delivered(ONE, text, 1, idle_ms, deliveries)


def group_read(*found: Delivered) -> GroupRead:
    return GroupRead([StreamDeliveries("s", found, history=True, after=0, last_delivered_id=0)])


@pytest.mark.parametrize(
    ("shaped", "expected"),
    [
        (resp(None), None),
        (resp(True), "OK"),  # noqa: FBT003
        (resp("none"), "none"),
        (resp(Trimmed(3)), 3),
        (resp(Deletions((1, -1, 2))), [1, -1, 2]),
        (resp(StreamsRead((), (("s", 0),))), None),
        (resp(GroupRead(())), None),
        (resp(group_read()), [[b"s", []]]),
        (resp(group_read(delivered(TEXT))), [[b"s", [[b"1-0", FIELDS]]]]),
        (resp(group_read(delivered(None))), [[b"s", [[b"1-0", None]]]]),
        (resp(group_read(delivered(TEXT, 7, 0))), [[b"s", [[b"1-0", FIELDS, 7, 0]]]]),
        (resp(Claimed([delivered(TEXT, 5, 1)])), [[b"1-0", FIELDS]]),
        (just_ids(Claimed([delivered(None)])), [b"1-0"]),
        (resp(AutoClaimed(0, [delivered(TEXT)], [2])), [b"0-0", [[b"1-0", FIELDS]], [b"0-2"]]),
        (just_ids(AutoClaimed(ONE, [delivered(None)], [])), [b"1-0", [b"1-0"], []]),
        (resp(PendingSummary(0, 0, 0, ())), [0, None, None, None]),
        (resp(PendingSummary(2, 1, 2, [("c", 1)])), [2, b"0-1", b"0-2", [[b"c", b"1"]]]),
        (resp(PendingSummary(1, 1, 1, ())), [1, b"0-1", b"0-1", []]),
        (
            resp(PendingList([PendingEntry(ONE, None, -1, 9), PendingEntry(ONE, "c", 4, 1)])),
            [[b"1-0", b"", -1, 9], [b"1-0", b"c", 4, 1]],
        ),
        (resp([]), []),
    ],
)
def test_shapes(shaped: Resp, expected: Resp) -> None:
    """Null, empty and absent are three things; counts of the summary are strings."""
    assert shaped == expected


@pytest.fixture
def session() -> RedisSession:
    return RedisSession(now_ms=1_000)


def test_null_and_empty_are_told_apart(session: RedisSession) -> None:
    """XRANGE COUNT 0 is null on a stream that exists and empty on one that does not; XREAD is null."""
    assert session.call("XRANGE", "s", "-", "+", "COUNT", "0") == []
    assert session.call("XADD", "s", "NOMKSTREAM", "*", "a", "b") is None
    assert session.call("XADD", "s", "*", "a", "b") == b"1000-0"
    assert session.call("XRANGE", "s", "-", "+", "COUNT", "0") is None
    assert session.call("XREAD", "STREAMS", "s", "$") is None
    assert session.call("XREAD", "STREAMS", "s", "s", "0", "0") == [[b"s", [[b"1000-0", [b"a", b"b"]]]]] * 2


def test_xinfo_keeps_the_order_of_its_fields(session: RedisSession) -> None:
    """Clients index flat maps by position (docs/semantics.md, Protocol)."""
    session.call("XADD", "s", "1-1", "a", "b")
    session.call("XGROUP", "CREATE", "s", "g", "0")
    session.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    head = [
        "length",
        "radix-tree-keys",
        "radix-tree-nodes",
        "last-generated-id",
        "max-deleted-entry-id",
        "entries-added",
        "recorded-first-entry-id",
        "idmp-duration",
        "idmp-maxsize",
        "pids-tracked",
        "iids-tracked",
        "iids-added",
        "iids-duplicates",
    ]
    short = session.call("XINFO", "STREAM", "s")
    full = session.call("XINFO", "STREAM", "s", "FULL")
    assert isinstance(short, list)
    assert isinstance(full, list)
    assert short[::2] == [name.encode() for name in [*head, "groups", "first-entry", "last-entry"]]
    assert full[::2] == [name.encode() for name in [*head, "entries", "groups"]]
    group = full[-1]
    assert isinstance(group, list)
    assert group == [
        [
            *(b"name", b"g", b"last-delivered-id", b"1-1", b"entries-read", 1, b"lag", 0),
            *(b"pel-count", 1, b"nacked-count", 0, b"pending", [[b"1-1", b"c", 1000, 1]], b"consumers"),
            [
                [
                    *(b"name", b"c", b"seen-time", 1000, b"active-time", 1000, b"pel-count", 1),
                    *(b"pending", [[b"1-1", 1000, 1]]),
                ]
            ],
        ]
    ]
    assert session.call("XINFO", "CONSUMERS", "s", "g") == [
        [b"name", b"c", b"pending", 1, b"idle", 0, b"inactive", 0]
    ]


def test_a_consumer_that_finds_nothing_is_seen_and_inactive(session: RedisSession) -> None:
    """`idle` counts from its last call, `inactive` from its last entry."""
    session.call("XADD", "s", "1-1", "f", "v")
    session.call("XGROUP", "CREATE", "s", "g", "0")
    read = ("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    session.call(*read)
    session.now_ms += 500
    session.call(*read)
    session.now_ms += 70
    assert session.call("XINFO", "CONSUMERS", "s", "g") == [
        [b"name", b"c", b"pending", 1, b"idle", 70, b"inactive", 570]
    ]


def test_entries_that_were_given_back_are_counted(session: RedisSession) -> None:
    """Of two pending ones, the one without an owner."""
    for entry_id in ("1-1", "1-2"):
        session.call("XADD", "s", entry_id, "f", "v")
    session.call("XGROUP", "CREATE", "s", "g", "0")
    session.call("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    session.call("XNACK", "s", "g", "FAIL", "IDS", "1", "1-1")
    full = session.call("XINFO", "STREAM", "s", "FULL")
    assert isinstance(full, list)
    (group,) = full[-1] if isinstance(full[-1], list) else []
    assert isinstance(group, list)
    assert group[8:12] == [b"pel-count", 2, b"nacked-count", 1]


@pytest.mark.parametrize(
    "tail", [["FOO"], ["FULL", "COUNT"], ["FULL", "FOO", "1"], ["FULL", "COUNT", "1", "2"]]
)
def test_xinfo_stream_looks_at_the_key_before_its_options(session: RedisSession, tail: list[str]) -> None:
    """A missing key wins over any option, also over one that is wrong."""
    assert session.call("XINFO", "STREAM", "s", *tail) == "-ERR no such key"
    session.call("XADD", "s", "1-1", "a", "b")
    text = "-ERR unknown subcommand or wrong number of arguments for 'stream'. Try XINFO HELP."
    assert session.call("XINFO", "stream", "s", *tail) == text


def test_commands_without_an_engine() -> None:
    """PING, ECHO, TIME, WAIT and COMMAND COUNT answer at once."""
    session = RedisSession(now_ms=1_234)
    assert session.call("PING") == "PONG"
    assert session.call("ping", "a") == b"a"
    assert session.call("ECHO", b"\xff") == b"\xff"
    assert session.call("TIME") == [b"1", b"234000"]
    assert session.call("WAIT", "0", "0") == 0
    assert session.call("WAITAOF", "0", "0", "0") == [0, 0]
    assert parse([b"WAITAOF", b"1", b"0", b"0"]).synced
    count = session.call("COMMAND", "COUNT")
    assert isinstance(count, int)
    assert count > 30
    lines = session.call("XGROUP", "HELP")
    assert isinstance(lines, list)
    assert lines[0] == "XGROUP <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"
    assert lines[-2:] == ["HELP", "    Print this help."]


def test_keyspace_commands(session: RedisSession) -> None:
    """DEL and UNLINK count what was there, EXISTS counts repeated names."""
    session.call("XADD", "a", "1-1", "f", "v")
    session.call("XADD", "b", "1-1", "f", "v")
    assert session.call("EXISTS", "a", "a", "x") == 2
    assert session.call("TYPE", "a") == "stream"
    assert session.call("TYPE", "x") == "none"
    assert session.call("DBSIZE") == 2
    assert session.call("KEYS", "[b-z]") == [b"b"]
    assert session.call("UNLINK", "a", "a") == 1
    assert session.call("FLUSHALL") == "OK"
    assert session.call("DBSIZE") == 0


def scan(session: RedisSession, *options: str) -> list[bytes]:
    """A whole scan, and one more stream and one less after every page."""
    found: list[bytes] = []
    cursor, page = b"0", 0
    while True:
        answer = session.call("SCAN", cursor, *options)
        assert isinstance(answer, list)
        assert isinstance(answer[0], bytes)
        assert isinstance(answer[1], list)
        assert int(answer[0]) < 1 << 53
        found += [name for name in answer[1] if isinstance(name, bytes)]
        cursor, page = answer[0], page + 1
        if cursor == b"0":
            return found
        session.call("DEL", f"gone-{page}")
        session.call("XADD", f"a-new-{page}", "*", "f", "v")


def test_a_scan_gives_every_name_that_stays(session: RedisSession) -> None:
    """Names that come and go between the pages move none of the others out of it."""
    stays = [f"kept-{number}".encode() for number in range(35)]
    for name in [*stays, *[f"gone-{number}".encode() for number in range(9)]]:
        session.call("XADD", name, "*", "f", "v")
    found = scan(session, "COUNT", "4")
    assert set(stays) <= set(found)
    assert len(found) == len(set(found))
    assert set(scan(session, "MATCH", "kept-?", "TYPE", "stream")) == set(stays[:10])
    assert scan(session, "TYPE", "list") == []


def test_an_unknown_cursor_begins_again() -> None:
    """A bookmark that was dropped costs names twice, never a name."""
    bookmarks = Bookmarks()
    first = bookmarks.put("a")
    assert bookmarks.find(first) == "a"
    assert bookmarks.find(0) is None
    for _ in range(_BOOKMARKS_MAX):
        bookmarks.put("b")
    assert bookmarks.find(first) is None


def test_only_visible_names_are_listed() -> None:
    """A list shows what the token may read, and the scan goes on behind what it hides."""
    request = parse([b"SCAN", b"0", b"COUNT", b"1"])
    answer = request.answer(Listing(["a", "b", "c"]), lambda name: name != "b")
    assert isinstance(answer, list)
    assert answer[0] != b"0"
    assert answer[1] == [b"a"]
    # Nor does it say that something hidden follows.
    assert request.answer(Listing(["a", "b"]), lambda name: name != "b") == [b"0", [b"a"]]
    assert parse([b"KEYS", b"*"]).answer(Listing(["a", "b"]), lambda name: name != "b") == [b"a"]


def test_a_scan_for_who_sees_all_looks_at_no_more_names_than_it_shows() -> None:
    """A walk over many streams would look at all that are left, page after page. KEYS shows all of them."""
    asked = seeing_all(parse([b"SCAN", b"0", b"MATCH", b"a*", b"COUNT", b"2"]))
    assert asked.command == ListStreams(prefix="a", limit=3)
    first = asked.answer(Listing(["a", "aa", "ab"], "ab"))
    assert isinstance(first, list)
    assert (first[0] != b"0", first[1]) == (True, [b"a", b"aa"])
    assert asked.answer(Listing(["a", "aa"])) == [b"0", [b"a", b"aa"]]
    most = seeing_all(parse([b"SCAN", b"0", b"COUNT", b"1000000"])).command
    assert most == ListStreams(limit=10_001)
    assert seeing_all(parse([b"KEYS", b"a*"])).command == ListStreams(prefix="a")


def test_config_is_the_settings_of_streams(session: RedisSession) -> None:
    """Globs in any case, several at once; memory has units; what is unknown gives nothing, or is refused."""
    assert session.call("CONFIG", "SET", "Stream-Node-Max-Bytes", "4kb", "stream-idmp-duration", "7") == "OK"
    assert session.call("CONFIG", "GET", "STREAM-node-max-b*", "stream-idmp-d*", "no-such-*") == [
        *(b"stream-idmp-duration", b"7", b"stream-node-max-bytes", b"4096")
    ]
    assert session.call("CONFIG", "GET", "no-such-setting") == []
    failed = "-ERR CONFIG SET failed (possibly related to argument 'stream-node-max-{}') - {}"
    for name, value, reason in (
        ("bytes", "x", "argument must be a memory value"),
        ("bytes", "1.5kb", "argument must be a memory value"),
        ("entries", "4kb", "argument couldn't be parsed into an integer"),
    ):
        answer = session.call("CONFIG", "SET", f"stream-node-max-{name}", value)
        assert answer == failed.format(name, reason)
    twice = session.call("CONFIG", "SET", *["stream-node-max-entries", "1"] * 2)
    assert twice == failed.format("entries", "duplicate parameter")


def test_a_refusal_as_the_reply_is_raised() -> None:
    """Transactions give replies and refusals side by side: `answer` takes both."""
    refused = EngineError("no_stream", "ERR no such key")
    with pytest.raises(EngineError) as caught:
        parse([b"XLEN", b"s"]).answer(refused)
    assert caught.value is refused


def test_every_command_is_frozen() -> None:
    """Nothing between the parser and the engine changes the request."""
    command = parse([b"XLEN", b"s"]).command
    assert isinstance(command, msgspec.Struct)
    with pytest.raises(AttributeError):
        setattr(command, "stream", "t")  # noqa: B010
