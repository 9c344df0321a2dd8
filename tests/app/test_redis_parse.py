"""Everything that Redis refuses before it looks at the key is refused by the parser, in Redis's words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.redis import COMMANDS, Resp, parse
from engine import EngineError, entries
from engine.commands import types
from tests.redis_session import RedisSession, parse_or_refusal

ID = "ERR Invalid stream ID specified as stream command argument"
INTEGER = "ERR value is not an integer or out of range"
SYNTAX = "ERR syntax error"
LIMIT_NEEDS_TILDE = "ERR syntax error, LIMIT cannot be used without the special ~ option"
IDMP_AUTO = "ERR syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs"
NUMIDS = "ERR The `numids` parameter must match the number of arguments"
POSITIVE = "ERR Number of IDs must be a positive integer"


def arity(name: str) -> str:
    return f"ERR wrong number of arguments for '{name}' command"


def words(line: str) -> list[bytes]:
    """The words of a line; `''` is the empty one."""
    return [b"" if word == "''" else word.encode() for word in line.split(" ")]


def invalid_name(what: str) -> str:
    rule = (
        "1 to 512 bytes of UTF-8, no control characters, between slashes nothing that is empty, '.' or '..', "
        "and does not begin with 'weir/'"
    )
    return f"ERR invalid name: a {what} has {rule}"


def refusal(line: str) -> str:
    with pytest.raises(EngineError) as caught:
        parse(words(line))
    return caught.value.redis


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("XADD s *", arity("xadd")),
        ("XADD s * a b c", arity("xadd")),
        ("XADD s MAXLEN = 5 NOMKSTREAM", arity("xadd")),
        ("XADD a//b 0-0 a b", "ERR The ID specified in XADD must be greater than 0-0"),
        ("XADD a//b 1-1 a b", invalid_name("stream name")),
        ("XADD s 7- a b", ID),
        ("XADD s 8--1 a b", ID),
        ("XADD s -5 a b", ID),
        ("XADD s 18446744073709551616 a b", ID),
        ("XADD s +6 a b", ID),
        ("XADD s 5-1-* a b", ID),
        ("XADD s *-* a b", ID),
        ("XADD s -* a b", ID),
        ("XADD s $ a b", ID),
        ("XADD s KEEPREF KEEPREF * a b", ID),
        ("XADD s IDMP p1 * a b", ID),
        ("XADD s MAXLEN x * a b", INTEGER),
        ("XADD s MAXLEN 01 * a b", INTEGER),
        ("XADD s MAXLEN -1 * a b", "ERR The MAXLEN argument must be >= 0."),
        ("XADD s MINID x * a b", ID),
        ("XADD s MAXLEN ~ 1 LIMIT -1 * a b", "ERR The LIMIT argument must be >= 0."),
        (
            "XADD s LIMIT 5 * a b",
            "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy",
        ),
        ("XADD s LIMIT 0 * a b", LIMIT_NEEDS_TILDE),
        ("XADD s MAXLEN 5 LIMIT 0 * a b", LIMIT_NEEDS_TILDE),
        ("XADD s IDMP p i IDMPAUTO p * a b", "ERR syntax error, IDMP/IDMPAUTO specified multiple times"),
        ("XADD s IDMPAUTO '' * a b", "ERR syntax error, IDMPAUTO requires a non-empty producer ID"),
        ("XADD s IDMP '' i * a b", "ERR syntax error, IDMP requires a non-empty producer ID"),
        ("XADD s IDMP p '' * a b", "ERR syntax error, IDMP requires a non-empty idempotent ID"),
        ("XADD s IDMP p i 1-* a b", IDMP_AUTO),
        ("XTRIM s MAXLEN ~", INTEGER),
        ("XTRIM s NOMKSTREAM 5", SYNTAX),
        ("XTRIM s ACKED MAXLEN 5 ACKED", SYNTAX),
        ("XTRIM s KEEPREF ACKED", SYNTAX),
        ("XTRIM s MAXLEN ~ 5 LIMIT", SYNTAX),
        ("XRANGE s (- +", ID),
        ("XRANGE s ( +", ID),
        ("XRANGE s - + COUNT", SYNTAX),
        ("XRANGE s - + COUNT x", INTEGER),
        ("XREVRANGE s x y COUNT z", ID),
        ("XDELEX s IDS x 1-1", POSITIVE),
        ("XDELEX s IDS 0 1-1", POSITIVE),
        ("XDELEX s IDS 3 1-1 2-2", NUMIDS),
        ("XDELEX s IDS 1 1-1 2-2", SYNTAX),
        ("XDELEX s ACKED KEEPREF IDS 1 1-1", SYNTAX),
        ("XDELEX s ACKED IDS 1", NUMIDS),
        ("XACKDEL s g ACKED IDS 3 1", NUMIDS),
        ("XACKDEL s g 1-1 2-2 3-3", SYNTAX),
        ("XREAD COUNT 1 STREAMS", SYNTAX),
        ("XREAD MAXCOUNT STREAMS s 0", "ERR MAXCOUNT must be a positive integer"),
        ("XREAD MAXCOUNT 0 STREAMS s 0", "ERR MAXCOUNT must be a positive integer"),
        ("XREAD MAXSIZE -1 STREAMS s 0", "ERR MAXSIZE must be a positive integer"),
        ("XREAD MAXSIZE x STREAMS s 0", "ERR MAXSIZE must be a positive integer"),
        ("XREAD MAXCOUNT 1 COUNT 2 STREAMS s 0", "ERR MAXCOUNT must be greater than or equal to COUNT"),
        (
            "XREADGROUP GROUP g c COUNT 2 MAXCOUNT 1 STREAMS s >",
            "ERR MAXCOUNT must be greater than or equal to COUNT",
        ),
        ("XREAD COUNT x STREAMS s 0", INTEGER),
        ("XREAD BLOCK x STREAMS s 0", "ERR timeout is not an integer or out of range"),
        ("XREAD BLOCK 9223372036854775807 STREAMS s 0", "ERR timeout is out of range"),
        (
            "XREAD STREAMS s s 0",
            (
                "ERR Unbalanced 'xread' list of streams: for each stream key an ID, '+', or '$' must be "
                "specified."
            ),
        ),
        (
            "XREAD GROUP g c STREAMS s 0",
            "ERR The GROUP option is only supported by XREADGROUP. You called XREAD instead.",
        ),
        (
            "XREAD NOACK STREAMS s 0",
            "ERR The NOACK option is only supported by XREADGROUP. You called XREAD instead.",
        ),
        (
            "XREAD CLAIM 5 STREAMS s 0",
            "ERR The CLAIM option is only supported by XREADGROUP. You called XREAD instead.",
        ),
        ("XREADGROUP STREAMS k 0", arity("xreadgroup")),
        ("XREADGROUP COUNT 1 NOACK STREAMS s 0", "ERR Missing GROUP option for XREADGROUP"),
        (
            "XREADGROUP GROUP g c STREAMS s s 0",
            (
                "ERR Unbalanced 'xreadgroup' list of streams: for each stream key an ID or '>' must be "
                "specified."
            ),
        ),
        ("XREADGROUP GROUP g c CLAIM x STREAMS s >", "ERR min-idle-time is not an integer or out of range"),
        ("XREADGROUP GROUP g c CLAIM -1 STREAMS s >", "ERR min-idle-time must be a positive integer"),
        ("XREADGROUP GROUP g '' STREAMS s >", invalid_name("consumer name")),
        ("XPENDING s g -", SYNTAX),
        ("XPENDING s g IDLE 1 - +", SYNTAX),
        ("XPENDING s g IDLE x - +", INTEGER),
        ("XPENDING s g x + x", INTEGER),
        ("XPENDING s g - + 1 c x y z", SYNTAX),
        ("XAUTOCLAIM s g c x 0", "ERR Invalid min-idle-time argument for XAUTOCLAIM"),
        ("XAUTOCLAIM s g c 0 0 COUNT x", "ERR COUNT must be > 0"),
        ("XAUTOCLAIM s g c 0 0 COUNT 576460752303423488", "ERR COUNT must be > 0"),
        ("XAUTOCLAIM s g c 0 0 COUNT", SYNTAX),
        ("XGROUP CREATE s g", arity("xgroup|create")),
        ("XGROUP FOO", "ERR unknown subcommand 'FOO'. Try XGROUP HELP."),
        (
            "XGROUP cReate s g $ FOO",
            "ERR unknown subcommand or wrong number of arguments for 'cReate'. Try XGROUP HELP.",
        ),
        ("XGROUP CREATE s g $ ENTRIESREAD -2", "ERR value for ENTRIESREAD must be positive or -1"),
        ("XGROUP CREATE s g $ ENTRIESREAD x", INTEGER),
        (
            "XGROUP SETID s g $ MKSTREAM",
            "ERR unknown subcommand or wrong number of arguments for 'SETID'. Try XGROUP HELP.",
        ),
        ("XGROUP DESTROY s g x", arity("xgroup|destroy")),
        ("XINFO STREAM", arity("xinfo|stream")),
        ("XINFO GROUPS s x", arity("xinfo|groups")),
        ("XSETID s 1 ENTRIESADDED", SYNTAX),
        ("XSETID s 1 ENTRIESADDED -1", "ERR entries_added must be positive"),
        (
            "XSETID s 1 MAXDELETEDID 2",
            "ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id",
        ),
        ("XIDMPRECORD s '' i 1-1", "ERR producer ID must be non-empty"),
        ("XIDMPRECORD s p '' 1-1", "ERR idempotent ID must be non-empty"),
        ("PING a b", arity("ping")),
        ("FLUSHALL x", SYNTAX),
        ("SCAN x", "ERR invalid cursor"),
        ("SCAN 18446744073709551616", "ERR invalid cursor"),
        ("SCAN 0 COUNT 0", SYNTAX),
        ("SCAN 0 COUNT x", INTEGER),
        ("SCAN 0 TYPE", SYNTAX),
        ("CONFIG SET stream-node-max-bytes 1 x", SYNTAX),
        ("CONFIG SET foo 1", "ERR Unknown option or number of arguments for CONFIG SET - 'foo'"),
        ("CONFIG FOO", "ERR unknown subcommand 'FOO'. Try CONFIG HELP."),
        ("WAIT x 0", INTEGER),
        ("WAITAOF 2 0 0", "ERR value is out of range, must be between 0 and 1"),
        (
            "set a b",
            (
                "ERR unknown command 'set', with args beginning with: 'a' 'b' "
                "(Weir has streams alone; COMMAND LIST shows its commands)"
            ),
        ),
        ("FOO a b", "ERR unknown command 'FOO', with args beginning with: 'a' 'b' "),
        (
            "xgroup|create s g $ x",
            "ERR unknown command 'xgroup|create', with args beginning with: 's' 'g' '$' 'x' ",
        ),
        ("EXISTS ..", invalid_name("stream name")),
    ],
)
def test_refusals_before_the_key(line: str, text: str) -> None:
    """Semantics 1.1 to 1.18: the sentence, to the letter; `tests/vectors` has others."""
    assert refusal(line) == text


def test_an_unknown_command_shows_128_bytes_of_its_arguments() -> None:
    """As Redis: quoted, cut at 128 bytes in all, line ends as blanks, nothing behind a NUL."""
    with pytest.raises(EngineError) as caught:
        parse([b"F\n", b"a" * 120, b"bcdefghijk", b"z"])
    head = "ERR unknown command 'F ', with args beginning with: "
    assert caught.value.redis == head + f"'{'a' * 120}' 'bcdef' "
    with pytest.raises(EngineError) as caught:
        parse([b"FOO", b"a\r\nb\0c", b"d"])
    assert caught.value.redis == "ERR unknown command 'FOO', with args beginning with: 'a  b' 'd' "


@pytest.mark.parametrize("length", [127, 128, 129])
def test_a_refused_word_is_shown_up_to_128_bytes(length: int) -> None:
    """As Redis."""
    word, shown = "x" * length, "x" * min(length, 128)
    assert refusal(word) == f"ERR unknown command '{shown}', with args beginning with: "
    assert refusal(f"XGROUP {word}") == f"ERR unknown subcommand '{shown}'. Try XGROUP HELP."


@pytest.mark.parametrize("name", COMMANDS)
def test_arity_is_checked_before_everything(name: str) -> None:
    """One word too few, however wrong the others are, is an arity error."""
    if abs(COMMANDS[name].arity) == 1:
        return
    given = [*name.encode().split(b"|"), *[b"/"] * 9][: abs(COMMANDS[name].arity) - 1]
    with pytest.raises(EngineError) as caught:
        parse(given)
    container = len(given) < len(name.split("|"))
    assert caught.value.redis == arity(name.split("|", maxsplit=1)[0] if container else name)


def test_field_names_are_text_and_values_are_anything() -> None:
    """Values keep their bytes; a name that is not UTF-8 is refused."""
    command = parse([b"XADD", b"s", b"*", b"a", b"\xff"]).command
    assert isinstance(command, types.XAdd)
    assert command.bodies == (entries.body([("a", b"\xff")]),)
    with pytest.raises(EngineError, match="field names are UTF-8") as caught:
        parse([b"XADD", b"s", b"*", b"\xff", b"a"])
    assert caught.value.redis == "ERR invalid field name"


def test_words_behind_the_id_are_fields() -> None:
    """XADD k * MAXLEN 5 stores a field called MAXLEN."""
    command = parse(words("XADD k ACKED MAXLEN ~ 5 LIMIT 0 NOMKSTREAM 7-* MAXLEN 5")).command
    assert isinstance(command, types.XAdd)
    assert command.bodies == (entries.body([("MAXLEN", b"5")]),)
    assert (command.ids, command.mkstream) == ((types.AutoSequence(7),), False)
    assert command.trim is not None
    assert (command.trim.maxlen, command.trim.approx, command.trim.limit) == (5, True, 0)
    assert command.trim.refs is types.Refs.ACKED


def test_idmpauto_does_not_depend_on_the_order_of_fields() -> None:
    """The same fields in another order are the same production, a repeated one is another."""
    keys = []
    for fields in ("a 1 b 2", "b 2 a 1", "a 1 b 2 b 2"):
        command = parse(words(f"XADD s IDMPAUTO p * {fields}")).command
        assert isinstance(command, types.XAdd)
        assert command.producer_key is not None
        keys.append(command.producer_key.key)
    assert keys[0] == keys[1] != keys[2]


def test_a_mark_is_only_a_mark_before_a_threshold() -> None:
    """`=` and `~` may be left out, and options stand in any order."""
    command = parse(words("XTRIM s LIMIT 7 DELREF MINID ~ 3")).command
    assert isinstance(command, types.XTrim)
    assert (command.trim.minid, command.trim.approx, command.trim.limit) == (3 << 64, True, 7)


def test_range_bounds() -> None:
    """A missing sequence is 0 below, the largest above; `(` excludes; the last COUNT wins; negative is 0."""
    command = parse(words("XREVRANGE s 5 (5 COUNT 1 COUNT -3")).command
    assert isinstance(command, types.XRange)
    assert (command.start, command.end) == ((5 << 64) + 1, (6 << 64) - 1)
    assert (command.count, command.reverse) == (0, True)


def test_the_ids_of_a_read_are_checked_in_their_order() -> None:
    """The first wrong one refuses the read: XREAD has nothing else that may be missing."""
    command = parse(words("XREAD COUNT -1 STREAMS COUNT STREAMS $ +")).command
    assert isinstance(command, types.XRead)
    assert command.count is None
    assert command.streams == [("COUNT", types.Cursor.LATEST), ("STREAMS", types.Cursor.LAST_ENTRY)]
    assert refusal("XREAD STREAMS a b c $ > x").startswith("ERR The > ID can be specified only when calling")
    assert refusal("XREAD STREAMS a b c $ x >") == ID


def test_history_is_told_from_new_for_each_key() -> None:
    """A history read of one key doesn't make one of the other; the largest ID written out is `>`."""
    largest = "18446744073709551615-18446744073709551615"
    line = f"XREADGROUP NOACK GROUP STREAMS COUNT CLAIM 5 STREAMS a b c > 0 {largest}"
    command = parse(words(line)).command
    assert isinstance(command, types.XReadGroup)
    assert (command.group, command.consumer) == ("STREAMS", "COUNT")
    assert [cursor for _, cursor in command.streams] == [types.Cursor.NEW, 0, types.Cursor.NEW]
    assert (command.noack, command.claim_min_idle_ms) == (True, 5)


def test_a_group_read_looks_at_each_group_before_the_id() -> None:
    """Stream after stream: the first that has no group, or whose ID is wrong, refuses the read. All of them
    are asked for, by any caller.
    """
    session = RedisSession()
    session.call("XGROUP", "CREATE", "a", "g", "0", "MKSTREAM")
    meaningless = "-ERR The $ ID is meaningless in the context of XREADGROUP"
    for streams, expected in [
        ("a b > $", "-NOGROUP No such key 'b'"),
        ("a b $ $", meaningless),
        ("a b $ >", meaningless),
        ("b a > x", "-NOGROUP No such key 'b'"),
        ("a a > x", f"-{ID}"),
    ]:
        answer = session.call(*f"XREADGROUP GROUP g c STREAMS {streams}".split())
        assert isinstance(answer, str)
        assert answer.startswith(expected), streams
    assert session.call("XINFO", "CONSUMERS", "a", "g") == []
    assert parse(words("XREADGROUP GROUP g c STREAMS a b c > x >")).streams == ("a", "b", "c")


def test_a_long_block_is_cut_to_the_limit() -> None:
    """BLOCK 0 is for ever in Redis; here both end at the limit."""
    for block, expected in ((0, 60_000), (5, 5), (70_000, 60_000)):
        command = parse(words(f"XREAD BLOCK {block} STREAMS s 0")).bounded(60_000).command
        assert isinstance(command, types.XRead)
        assert command.block_ms == expected
    command = parse(words("XREAD STREAMS s 0")).bounded(60_000).command
    assert isinstance(command, types.XRead)
    assert command.block_ms is None


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("XCLAIM s g c x 1-1", "ERR Invalid min-idle-time argument for XCLAIM"),
        ("XCLAIM s g c 0 1-1 x", "ERR Unrecognized XCLAIM option 'x'"),
        ("XCLAIM s g c 0 1-1 FORCE 2-2", "ERR Unrecognized XCLAIM option '2-2'"),
        ("XCLAIM s g c 0 1-1 IDLE", "ERR Unrecognized XCLAIM option 'IDLE'"),
        ("XCLAIM s g c 0 1-1 IDLE x", "ERR Invalid IDLE option argument for XCLAIM"),
        ("XCLAIM s g c 0 1-1 TIME x", "ERR Invalid TIME option argument for XCLAIM"),
        ("XCLAIM s g c 0 1-1 RETRYCOUNT x", "ERR Invalid RETRYCOUNT option argument for XCLAIM"),
        ("XCLAIM s g c 0 1-1 LASTID x", ID),
        ("XNACK s g MAYBE IDS 1 1-1", "ERR mode must be SILENT, FAIL, or FATAL"),
        ("XNACK s g FAIL IDS 0 1-1", "ERR numids must be a positive integer"),
        ("XNACK s g FAIL IDS x 1-1", "ERR numids must be a positive integer"),
        ("XNACK s g FAIL IDS 3 1-1", "ERR number of IDs doesn't match numids"),
        ("XNACK s g FAIL IDS 1 1-1 2-2", "ERR Unrecognized XNACK option '2-2'"),
        ("XNACK s g FAIL IDS 1 1-1 RETRYCOUNT -1", "ERR Invalid RETRYCOUNT value, must be >= 0"),
        ("XNACK s g FAIL RETRYCOUNT 1 FORCE", "ERR syntax error, expected IDS keyword"),
        ("XNACK s g FAIL IDS 1 x", ID),
    ],
)
def test_some_words_are_looked_at_behind_the_group(line: str, text: str) -> None:
    """NOGROUP wins over each of these, whether the stream is missing or the group."""
    session = RedisSession()
    assert session.call(*words(line)) == "-NOGROUP No such key 's' or consumer group 'g'"
    session.call("XADD", "s", "1-1", "a", "1")
    assert session.call(*words(line)) == "-NOGROUP No such key 's' or consumer group 'g'"
    session.call("XGROUP", "CREATE", "s", "g", "0")
    assert session.call(*words(line)) == f"-{text}"
    assert session.call("XINFO", "CONSUMERS", "s", "g") == []


@pytest.mark.parametrize(("line", "missing"), [("XACK s g x", 0), ("XACKDEL s g IDS 2 1-1 x", [-1, -1])])
def test_ids_are_looked_at_behind_the_group(line: str, missing: Resp) -> None:
    """Without it nothing is acknowledged, for any IDs."""
    session = RedisSession()
    assert session.call(*words(line)) == missing
    session.call("XADD", "s", "1-1", "a", "1")
    assert session.call(*words(line)) == missing
    session.call("XGROUP", "CREATE", "s", "g", "0")
    assert session.call(*words(line)) == f"-{ID}"


@pytest.mark.parametrize(
    ("line", "missing", "text"),
    [
        ("XDEL s x", 0, ID),
        ("XDELEX s IDS 2 1-1 x", [-1, -1], ID),
        ("XCFGSET s x", "-ERR no such key", SYNTAX),
    ],
)
def test_some_words_are_looked_at_behind_the_key(line: str, missing: Resp, text: str) -> None:
    """A missing stream wins over each of these."""
    session = RedisSession()
    assert session.call(*words(line)) == missing
    session.call("XADD", "s", "1-1", "a", "1")
    assert session.call(*words(line)) == f"-{text}"
    assert session.call("XLEN", "s") == 1


def test_claim_options() -> None:
    """The later of IDLE and TIME wins; a negative min-idle is 0, RETRYCOUNT below 0 none; no ID is fine."""
    command = parse(words("XCLAIM s g c -5 IDLE 1 TIME 2 RETRYCOUNT -1 force JustId LASTID 4")).command
    assert isinstance(command, types.XClaim)
    expected = types.Claim(ids=[], min_idle_ms=0, time_ms=2, force=True, just_ids=True, last_id=4 << 64)
    assert command.claim == expected


@pytest.mark.parametrize(
    ("tail", "text"),
    [
        ("MAXAGE", "wrong number of arguments for 'weir.group|set'"),
        ("MAXAGE 1 MAXAGE 2", SYNTAX),
        ("NONE 1", SYNTAX),
        ("MAXAGE 1 NOACK", SYNTAX),
        ("MAXAGE -1", "a number of a policy is 0 or more, 0 for none"),
        ("MAXDELIVERIES 2", "MAXDELIVERIES goes with DEADLETTER key"),
        ("DEADLETTER s", "a dead letter in the same stream would be read again"),
        ("INFLIGHTPERKEY 2", "in_flight_per_key needs ordered_by"),
    ],
)
def test_a_policy_that_cannot_be_changes_nothing(tail: str, text: str) -> None:
    session = RedisSession()
    session.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
    assert text in str(session.call(*words(f"WEIR.GROUP SET s g {tail}")))
    assert session.call(*words("WEIR.GROUP SET s g DEADLETTER d MAXDELIVERIES 2")) == "OK"


def test_xnack_options_stand_on_both_sides() -> None:
    """RETRYCOUNT and FORCE before and behind the IDs."""
    command = parse(words("XNACK s g fatal FORCE IDS 2 1 2-2 RETRYCOUNT 3")).command
    assert isinstance(command, types.XNack)
    expected = types.Nack(ids=[1 << 64, (2 << 64) + 2], mode=types.NackMode.FATAL, retry_count=3, force=True)
    assert command.nack == expected


def test_xpending_ignores_words_behind_the_consumer() -> None:
    """As Redis: up to nine words in all."""
    command = parse(words("XPENDING s g - + -1 c x y")).command
    assert isinstance(command, types.XPendingRange)
    assert (command.consumer, command.count) == ("c", 0)


def test_group_starts() -> None:
    """SETID takes the edges, CREATE does not."""
    created = parse(words("XGROUP CREATE s g 5 ENTRIESREAD -1")).command
    assert isinstance(created, types.XGroupCreate)
    assert (created.start, created.entries_read) == (5 << 64, None)
    assert getattr(parse(words("XGROUP SETID s g +")).command, "start", None) == (1 << 128) - 1
    assert getattr(parse(words("XGROUP SETID s g $")).command, "start", None) is types.Cursor.LATEST


def test_a_wrong_start_waits_for_the_key_and_setid_for_the_group() -> None:
    """But a key that CREATE would make is not missing."""
    session = RedisSession()
    assert refusal("XGROUP CREATE s g - MKSTREAM") == ID
    no_key = session.call("XGROUP", "CREATE", "s", "g", "-")
    assert isinstance(no_key, str)
    assert no_key.startswith("-ERR The XGROUP subcommand requires the key to exist.")
    assert session.call("XGROUP", "SETID", "s", "g", "x") == no_key
    session.call("XADD", "s", "1-1", "a", "1")
    assert session.call("XGROUP", "CREATE", "s", "g", "-") == f"-{ID}"
    no_group = "-NOGROUP No such consumer group 'g' for key name 's'"
    assert session.call("XGROUP", "SETID", "s", "g", "x") == no_group
    session.call("XGROUP", "CREATE", "s", "g", "0")
    # A group that is there already comes after the ID.
    assert session.call("XGROUP", "CREATE", "s", "g", "-") == f"-{ID}"
    assert session.call("XGROUP", "SETID", "s", "g", "x") == f"-{ID}"


def test_every_name_goes_through_the_same_check() -> None:
    """Decision 24, for streams, groups and consumers."""
    for name in ("''", ".", "..", "a//b", "/a", "a/", "a/./b", "weir/a", "a\x01", "\x7f", "x" * 513):
        for line in (
            f"XLEN {name}",
            f"XACK s {name} 1",
            f"XGROUP CREATECONSUMER s g {name}",
            f"DEL s {name}",
        ):
            assert refusal(line).startswith("ERR invalid name: a ")
    with pytest.raises(EngineError, match="stream name"):
        parse([b"XLEN", b"\xff"])


def test_actions_and_streams() -> None:
    """What authorisation asks: each action on each stream; None is all of them."""
    request = parse(words("XREADGROUP GROUP g c STREAMS a b a > > >"))
    assert (request.name, request.actions, request.streams) == ("xreadgroup", ("consume",), ("a", "b"))
    assert parse(words("xackdel s g IDS 1 1-1")).actions == ("consume", "write")
    assert parse(words("XGROUP DESTROY s g")).name == "xgroup|destroy"
    assert parse(words("FLUSHALL async")).streams is None
    assert parse(words("KEYS *")).streams == ()
    assert parse(words("PING")).actions == ()


VOCABULARY = (  # noqa: SIM905 - as they are typed
    "MAXLEN MINID ~ = LIMIT NOMKSTREAM 0 1 -1 5-5 x * COUNT BLOCK STREAMS GROUP g s NOACK > $ - + (1 "
    "IDS 2 KEEPREF IDLE RETRYCOUNT FORCE JUSTID LASTID MKSTREAM ENTRIESREAD FULL CLAIM IDMP IDMPAUTO "
    "MATCH TYPE FAIL '' SET ACKTIMEOUT DEADLETTER"
).split()


@given(st.sampled_from(sorted(COMMANDS)), st.lists(st.sampled_from(VOCABULARY) | st.text(), max_size=10))
def test_no_words_break_the_parser(name: str, rest: list[str]) -> None:
    """For any words the result is a request or a refusal."""
    given_words = [*name.split("|"), *("" if word == "''" else word for word in rest)]
    request = parse_or_refusal([word.encode() for word in given_words])
    if isinstance(request, EngineError):
        assert request.redis.startswith("ERR ")
    else:
        assert request.name == name
