"""`weir import`: what is in Weir afterwards is what was in Redis, however often the copy was cut off."""

import json
import os
import sys
import time
from pathlib import Path

import pytest

from app.cli.migration.reading import PAGE_ENTRIES_MAX
from tests import halves
from tests.cli.command import ROOT, begun, environment, on_a_terminal, redis, weir
from tests.cli.migrating import MARK, WAIT_S_MAX, asked, assert_same, filled, full, imported, publish_story
from tests.cli.other_redis import other_redis
from tests.cluster.servers import BackendServer
from tests.server import Server, free_port
from tests.waiting import completed, until


def test_random_streams_are_the_same_afterwards(url: str, origin: BackendServer) -> None:
    """Forty streams with a past of 300 commands each: XINFO STREAM FULL and XRANGE agree on both sides."""
    seeds = halves.half(range(40))
    streams = [f"random:ü {seed}" for seed in seeds]
    for seed, stream in zip(seeds, streams, strict=True):
        publish_story(origin, seed, stream)
    done = imported(url, origin.url, "--match", "random:*", "--json")
    assert done.code == 0, done.err
    assert [row["stream"] for row in done.objects] == sorted(streams)
    for stream in streams:
        assert_same(origin, url, stream)
    again = imported(url, origin.url, "--match", "random:*", "--json")
    assert again.code == 0, again.err
    assert all(row["entries"] == row["deleted"] == 0 for row in again.objects)


def test_an_import_killed_half_way_goes_on(url: str, origin: BackendServer, stream: str) -> None:
    """Killed with -9, three times; then the same command copies the rest, and only the rest."""
    count = 20_000
    filled(origin, stream, count)
    origin.call("XGROUP", "CREATE", stream, "g", "0")
    origin.call("XREADGROUP", "GROUP", "g", "anna", "COUNT", 5_000, "STREAMS", stream, ">")
    origin.call("XDEL", stream, *(f"{n}-0" for n in range(50, 3_000, 7)))
    least = 0
    for _ in range(3):
        process = begun(url, "import", "--redis", origin.url, stream)
        until(lambda least=least: asked(url, "XLEN", stream) > least)
        process.kill()
        process.communicate()
        least = asked(url, "XLEN", stream)
        assert least < count / 2, "it was killed before its end"
    done = imported(url, origin.url, stream, "--json")
    assert done.code == 0, done.err
    assert done.objects[0]["entries"] == origin.call("XLEN", stream) - least
    assert done.objects[0]["pending"] == 5_000
    assert_same(origin, url, stream)


def test_nobody_sees_what_is_not_redis_s(url: str, origin: BackendServer, stream: str) -> None:
    """Entries that are pending and deleted are pending in Weir without ever having been readable there."""
    filled(origin, stream, 3_000)
    origin.call("XGROUP", "CREATE", stream, "g", "0")
    origin.call("XREADGROUP", "GROUP", "g", "anna", "COUNT", 3_000, "STREAMS", stream, ">")
    origin.call("XDEL", stream, *(f"{n}-0" for n in range(2, 3_000, 2)))
    origin.call("XTRIM", stream, "MINID", "500-0")
    process = begun(url, "import", "--redis", origin.url, stream)
    seen = set[bytes]()
    while process.poll() is None:
        seen |= {flat[0] for _, flat in asked(url, "XRANGE", stream, "-", "+", "COUNT", 2_000)}
    process.communicate()
    assert seen == {b"n"}
    assert_same(origin, url, stream)
    assert asked(url, "XPENDING", stream, "g")[0] == 3_000


@pytest.mark.parametrize("count", [PAGE_ENTRIES_MAX, PAGE_ENTRIES_MAX + 1])
def test_pending_entries_of_neighbouring_ids_come_along(
    url: str, origin: BackendServer, stream: str, count: int
) -> None:
    """Where a page of them ends, the next one begins one ID later."""
    origin.each([("XADD", stream, f"5-{number}", "n", number) for number in range(1, count + 1)])
    origin.call("XGROUP", "CREATE", stream, "g", "0")
    origin.call("XREADGROUP", "GROUP", "g", "anna", "COUNT", count, "STREAMS", stream, ">")
    done = imported(url, origin.url, stream, "--json")
    assert (done.code, done.objects[0]["pending"]) == (0, count)
    assert asked(url, "XPENDING", stream, "g")[:3] == [count, b"5-1", b"5-%d" % count]


def test_an_import_outlives_its_gateway(origin: BackendServer, stream: str, tmp_path: Path) -> None:
    """The gateway is killed with -9 and started again meanwhile: nothing twice, nothing lost."""
    filled(origin, stream, 10_000)
    with Server(tmp_path / "data") as server:
        process = begun(server.url, "import", "--redis", origin.url, stream)
        until(lambda: asked(server.url, "XLEN", stream) > 1_000)
        server.restart()
        _, err = process.communicate(timeout=WAIT_S_MAX)
        assert process.returncode == 0, err
        assert_same(origin, server.url, stream)


def test_streams_come_from_another_gateway_too(
    url: str, origin: BackendServer, stream: str, tmp_path: Path
) -> None:
    """By its port for Redis clients; nothing of what Weir has of Redis is lost."""
    port = free_port()
    with Server(tmp_path / "data", "--resp-listen", str(port)) as other:
        publish_story(origin, 6, stream)
        assert imported(other.url, origin.url, stream).code == 0
        done = imported(url, f"redis://127.0.0.1:{port}", stream, "--cut-over")
        assert done.code == 0, done.err
    # Idle times were turned into times twice.
    assert_same(origin, url, stream, apart_ms=500)


def test_names_that_weir_does_not_take_are_told_and_left_out(
    url: str, origin: BackendServer, stream: str
) -> None:
    """Streams, groups, consumers: the rest is copied, what such a consumer had is released; the code is 1."""
    for name in (f"{stream}//x", f"{stream}\nx", stream.encode() + b"\xff", stream, f"{stream}/x"):
        origin.call("XADD", name, "1-0", "a", "b")
    for group in ("g", "h//h", "h/h", MARK):
        origin.call("XGROUP", "CREATE", stream, group, "0")
    origin.call("XREADGROUP", "GROUP", "g", "an//na", "STREAMS", stream, ">")
    origin.call("SET", f"{stream} of another type", "x")
    done = imported(url, origin.url, "--match", f"{stream}*", "--json")
    assert done.code == 1
    assert [row["stream"] for row in done.objects if not row["problems"]] == [f"{stream}/x"]
    assert len(done.objects) == 5
    assert all(line.startswith("weir: ") for line in done.err.splitlines())
    assert sorted(key.decode() for key in asked(url, "KEYS", f"{stream}*")) == [stream, f"{stream}/x"]
    assert [group[1] for group in asked(url, "XINFO", "GROUPS", stream)] == [b"g", b"h/h"]
    assert asked(url, "XPENDING", stream, "g", "-", "+", 10) == [[b"1-0", b"", -1, 1]]


def test_entries_that_weir_does_not_take_are_told(url: str, origin: BackendServer, stream: str) -> None:
    """A field name that is no text, an entry too large to send: reported by ID; the others are copied."""
    origin.call("XADD", stream, "1-0", "a", "b")
    origin.call("XADD", stream, "2-0", b"\xff", "b")
    origin.call("XADD", stream, "3-0", "a", b"\xff" * (9 << 20))
    origin.call("XADD", stream, "4-0", "a", "b")
    done = imported(url, origin.url, stream, "--json")
    assert done.code == 1
    assert [sentence.split(":")[0] for sentence in done.objects[0]["problems"]] == [
        "entry 2-0 was skipped",
        "entry 3-0 was skipped",
    ]
    assert [entry_id for entry_id, _ in asked(url, "XRANGE", stream, "-", "+")] == [b"1-0", b"4-0"]
    again = imported(url, origin.url, stream, "--json")
    assert (again.code, again.objects[0]["entries"]) == (1, 0)
    assert "2 entries are not in Weir" in again.err


@pytest.mark.parametrize(
    ("commands", "sentence"),
    [
        ([("XADD", "1-0", "a", "other")], "1-0 differs"),
        ([("XADD", "0-5", "a", "b")], "Redis has no 0-5"),
        ([("XADD", "1-0", "a", "b"), ("XADD", "9-0", "a", "b")], "others publish to it in Weir already"),
        ([("XADD", "1-0", "a", "b"), ("XADD", "1-5", "a", "b")], "Redis has no 1-5"),
    ],
)
def test_a_stream_that_is_another_one_is_left_as_it_is(
    url: str, origin: BackendServer, stream: str, commands: list[tuple[str, ...]], sentence: str
) -> None:
    """A stream of the same name that is no copy of Redis's is neither added to nor changed."""
    for number in (1, 2, 3):
        origin.call("XADD", stream, f"{number}-0", "a", "b")
    for name, *words in commands:
        asked(url, name, stream, *words)
    before = asked(url, "XINFO", "STREAM", stream, "FULL")
    done = imported(url, origin.url, stream)
    assert (done.code, sentence in done.err) == (1, True), done.err
    assert asked(url, "XINFO", "STREAM", stream, "FULL") == before


def test_a_finished_copy_is_weir_s(url: str, origin: BackendServer, stream: str) -> None:
    """What Redis deletes after the import is over is not deleted in Weir, and the difference is reported."""
    filled(origin, stream, 300)
    assert imported(url, origin.url, stream).code == 0
    origin.call("XTRIM", stream, "MAXLEN", "=", 100)
    origin.call("XDEL", stream, "250-0")
    done = imported(url, origin.url, stream)
    assert (done.code, "the stream of this name in Weir is another one" in done.err) == (1, True)
    assert asked(url, "XLEN", stream) == 300


def test_lifetimes_come_from_a_redis_that_knows_pttl_alone(url: str, stream: str) -> None:
    """Before 7.0: with the clock of that server."""
    now_ms = time.time_ns() // 1_000_000
    with other_redis("5.0", now_ms) as other:
        other.session.call("XADD", stream, "1-0", "a", "b")
        other.session.call("PEXPIRE", stream, "3600000")
        assert imported(url, other.url, stream).code == 0
    assert asked(url, "PEXPIRETIME", stream) == now_ms + 3_600_000


def test_a_group_that_is_ahead_is_left_as_it_is(url: str, origin: BackendServer, stream: str) -> None:
    """Workers that have begun on Weir are not set back; new entries come nevertheless."""
    filled(origin, stream, 10)
    origin.call("XGROUP", "CREATE", stream, "g", "5")
    assert imported(url, origin.url, stream).code == 0
    asked(url, "XREADGROUP", "GROUP", "g", "anna", "STREAMS", stream, ">")
    origin.call("XADD", stream, "11-0", "n", "11")
    done = imported(url, origin.url, stream)
    assert (done.code, "group 'g' is ahead in Weir" in done.err) == (1, True)
    assert asked(url, "XPENDING", stream, "g")[0] == 5
    assert asked(url, "XLEN", stream) == 11


def test_progress_is_for_terminals(url: str, origin: BackendServer, stream: str) -> None:
    """How far each stream is, written over; it is gone at the end, and the outcome is the same."""
    origin.each([("XADD", stream, f"5-{number}", "n", number) for number in range(1, 2_501)])
    out, shown = on_a_terminal(url, "import", "--redis", origin.url, "--json", stream)
    assert json.loads(out)["entries"] == 2_500, (out, shown)
    assert b" entries copied, Redis has 2,500" in shown
    assert shown.startswith(b"\r\x1b[K")
    assert shown.endswith(b"\r\x1b[K")


def test_a_dry_run_only_tells(url: str, origin: BackendServer, stream: str) -> None:
    """What there is and how far it is in Weir; nothing is written."""
    filled(origin, stream, 10)
    origin.call("XGROUP", "CREATE", stream, "g", "0")
    origin.call("XREADGROUP", "GROUP", "g", "anna", "COUNT", 3, "STREAMS", stream, ">")
    done = imported(url, origin.url, stream, "--dry-run", "--json")
    row = {"stream": stream, "length": 10, "last_id": "10-0", "groups": 1, "pending": 3, "in_weir": None}
    assert (done.code, done.objects) == (0, [row])
    assert redis(url, "EXISTS", stream) == 0
    assert imported(url, origin.url, stream).code == 0
    assert imported(url, origin.url, stream, "--dry-run", "--json").objects[0]["in_weir"] == "10-0"


def test_redis_8_8_brings_released_entries_and_idempotency(url: str, stream: str) -> None:
    """Released entries stay released, with their counts; the settings of idempotent producers come along."""
    with other_redis("8.8") as other:
        run = other.session.call
        for number in range(1, 7):
            run("XADD", stream, f"{number}-0", "a", "b")
        run("XCFGSET", stream, "IDMP-DURATION", "50", "IDMP-MAXSIZE", "7")
        run("XGROUP", "CREATE", stream, "g", "0")
        run("XREADGROUP", "GROUP", "g", "anna", "COUNT", "5", "STREAMS", stream, ">")
        run("XNACK", stream, "g", "FAIL", "IDS", "2", "2-0", "3-0")
        run("XNACK", stream, "g", "FATAL", "IDS", "1", "4-0")
        run("XDEL", stream, "3-0")
        done = imported(url, other.url, stream)
        assert (done.code, done.err) == (0, "")
        listed = ("XPENDING", stream, "g", "-", "+", "10")
        mine, theirs = run(*listed), asked(url, *listed)
    assert [(*one[:2], one[3]) for one in theirs] == [
        (b"1-0", b"anna", 1),
        (b"2-0", b"", 1),
        (b"3-0", b"", 1),
        (b"4-0", b"", b"9223372036854775807"),
        (b"5-0", b"anna", 1),
    ]
    assert isinstance(mine, list)
    assert len(mine) == 5
    info = asked(url, "XINFO", "STREAM", stream)
    assert [info[info.index(name) + 1] for name in (b"idmp-duration", b"idmp-maxsize")] == [50, 7]


def test_redis_5_0_has_no_counters(url: str, stream: str) -> None:
    """Before 7.0 nothing was counted: the present entries are all that were added."""
    with other_redis("5.0") as other:
        run = other.session.call
        for number in range(1, 7):
            run("XADD", stream, f"{number}-0", "a", "b")
        run("XGROUP", "CREATE", stream, "g", "0")
        run("XREADGROUP", "GROUP", "g", "anna", "COUNT", "2", "STREAMS", stream, ">")
        run("XTRIM", stream, "MAXLEN", "=", "5")
        done = imported(url, other.url, stream)
        assert (done.code, done.err) == (0, "")
    info = full(asked(url, "XINFO", "STREAM", stream, "FULL"))
    assert (info[b"length"], info[b"entries-added"], info[b"last-generated-id"]) == (5, 5, b"6-0")
    group = info[b"groups"][b"g"]
    assert (group[b"last-delivered-id"], group[b"entries-read"], group[b"pel-count"]) == (b"2-0", None, 2)


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("--redis", "http://127.0.0.1"), 2, "--redis"),
        (("--redis", "redis://127.0.0.1:1", "--retry-for", "0"), 1, "connection refused, at 127.0.0.1:1"),
        (("--match", "a", "b"), 2, "it does not go with names of streams"),
        (("no such stream",), 1, "there is no such stream in Redis"),
    ],
)
def test_mistakes_are_told_in_one_sentence(
    url: str, origin: BackendServer, words: tuple[str, ...], code: int, sentence: str
) -> None:
    """Usage is 2, a failure 1, and there is never a traceback."""
    done = weir(url, "import", *(() if "--redis" in words else ("--redis", origin.url)), *words)
    assert (done.code, sentence in done.err) == (code, True), done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("way", [(), ("--follow",), ("--dry-run",)])
def test_a_gateway_that_asks_for_a_token_ends_the_import(
    origin: BackendServer, stream: str, tmp_path: Path, way: tuple[str, ...]
) -> None:
    """With the option that names it, once; with a token that is wrong, with what the gateway says."""
    names = (f"{stream} 1", f"{stream} 2")
    for name in names:
        filled(origin, name, 1)
    tokens, secret = tmp_path / "tokens.toml", tmp_path / "secret"
    assert weir("", "token", "create", "--grant", "*:*", "--file", str(tokens)).code == 0
    secret.write_text("wrong")
    with Server(tmp_path / "data", "--set", f"tokens_file={tokens}") as guarded:
        unnamed = imported(guarded.url, origin.url, *names, *way)
        wrong = imported(guarded.url, origin.url, *names, *way, "--token-file", str(secret))
    asked_for = "the gateway asks for a token: name the file that holds it with --token-file"
    assert (unnamed.code, unnamed.out, unnamed.err) == (1, "", f"weir: {asked_for} (unauthenticated)\n")
    assert (wrong.code, wrong.out, wrong.err.count("unauthenticated")) == (1, "", 1)


def test_a_gateway_that_is_away_is_told(origin: BackendServer, stream: str) -> None:
    """Patience ends, and says how to go on."""
    filled(origin, stream, 1)
    done = imported(f"http://127.0.0.1:{free_port()}", origin.url, stream, "--retry-for", "0")
    assert done.code == 1
    assert "does not answer" in done.err
    assert "run the same command again to go on" in done.err


def test_the_client_of_redis_is_asked_for(url: str) -> None:
    """Without the extra the command says what to install."""
    without = "import sys; sys.modules['redis'] = sys.modules['redis.connection'] = None"
    program = f"{without}; import weir.cli.main; weir.cli.main.main()"
    done = completed(
        [sys.executable, "-c", program, "import"],
        cwd=ROOT,
        env=environment(url) | {"PATH": os.environ["PATH"]},
        timeout=WAIT_S_MAX,
    )
    assert (done.returncode, f"{sys.executable} -m pip install 'redis>=8.1'" in done.stderr) == (1, True), (
        done.stderr
    )
