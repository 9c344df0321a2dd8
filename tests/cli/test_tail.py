"""`weir tail`: what was, what comes, what was missed, and how it ends.

Knows: what must have been printed when. Must never know: how it waits.
"""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.cli.command import begun, environment, post, redis, weir
from tests.cli.link import LOSE, PASS, link
from tests.server import Server
from tests.waiting import completed, until
from weir import Client
from weir.cli import tail

END_S_MAX: Final = 30.0


@contextmanager
def tailing(url: str, *words: str) -> Iterator["subprocess.Popen[str]"]:
    """A tail on the side, killed if it is still there at the end."""
    process = begun(url, "tail", *words)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line(process: "subprocess.Popen[str]") -> str:
    """The next line that it prints; nothing where none comes in time, which ends it."""
    assert process.stdout is not None
    late = threading.Timer(END_S_MAX, process.kill)
    late.start()
    try:
        return process.stdout.readline().rstrip("\n")
    finally:
        late.cancel()


def interrupted(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    """Ctrl-C: exit code, and what was left to print."""
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=END_S_MAX)
    return process.returncode, out, err


def add(url: str, stream: str, *numbers: int) -> None:
    for number in numbers:
        redis(url, "XADD", stream, f"{number}-0", "n", number)


def all_acknowledged(url: str, stream: str) -> None:
    """Wait until the group has nothing pending: acknowledging follows printing."""
    until(lambda: not redis(url, "XPENDING", stream, "g")[0], "what was printed is acknowledged", END_S_MAX)


def test_it_begins_a_few_entries_back_and_goes_on(url: str, stream: str) -> None:
    """-n 2 shows the last two in order, then everything that comes; Ctrl-C is a fine end."""
    add(url, stream, 1, 2, 3)
    with tailing(url, stream, "-n", "2") as process:
        assert [line(process), line(process)] == ["2-0 n=2", "3-0 n=3"]
        add(url, stream, 4)
        assert line(process) == "4-0 n=4"
        assert interrupted(process) == (0, "", "")


def test_it_begins_ten_entries_back_unless_told(url: str, stream: str) -> None:
    """As its namesake does."""
    add(url, stream, *range(1, 13))
    with tailing(url, stream) as process:
        assert [line(process) for _ in range(10)] == [f"{number}-0 n={number}" for number in range(3, 13)]


def test_a_stream_that_is_not_there_yet_is_waited_for(url: str, stream: str) -> None:
    """It says so, and the first entry ever is shown too."""
    waits = f"weir: there is no stream {stream!r} yet: waiting for its first entry (weir streams lists all)\n"
    with tailing(url, stream, "--json") as process:
        assert process.stderr is not None
        assert process.stderr.readline() == waits
        add(url, stream, 1)
        assert json.loads(line(process)) == {"id": "1-0", "fields": {"n": "1"}}


@pytest.mark.parametrize("words", [["-n", "0"], ["--after", "$"], ["--after", "0"], ["--after", "5-0"]])
def test_a_stream_that_is_not_there_is_named_wherever_a_tail_begins(
    url: str, stream: str, words: list[str]
) -> None:
    with tailing(url, stream, *words) as process:
        assert process.stderr is not None
        assert "there is no stream" in process.stderr.readline()


@pytest.mark.parametrize("words", [[], ["--after", "0"], ["--after", "5-0"]])
def test_a_stream_that_is_empty_is_there(url: str, stream: str, words: list[str]) -> None:
    redis(url, "XGROUP", "CREATE", stream, "g", "$", "MKSTREAM")
    with tailing(url, stream, *words) as process:
        add(url, stream, 6)
        assert line(process) == "6-0 n=6"
        assert interrupted(process) == (0, "", "")


def test_the_first_entry_of_an_empty_stream_is_not_missed(url: str, stream: str) -> None:
    """Published between the look at its end and the first read: the tail begins at the beginning."""
    with Client(url) as client:
        cursor = tail.show_last(client, stream, 10, as_json=False)
        client.publish(stream, {"n": "1"})
        assert [entry.fields for entry in client.read_after(stream, cursor).entries] == [{"n": "1"}]


def test_with_none_of_the_last_it_begins_with_the_next(url: str, stream: str) -> None:
    add(url, stream, 1)
    with Client(url) as client:
        assert tail.show_last(client, stream, 0, as_json=False) == "$"


@pytest.mark.parametrize(("after", "first"), [("0", 1), ("1-0", 2), ("1", 2)])
def test_it_begins_after_an_id(url: str, stream: str, after: str, first: int) -> None:
    """The ID itself has been seen; 0 is the oldest that is kept."""
    add(url, stream, 1, 2)
    with tailing(url, stream, "--after", after) as process:
        assert line(process) == f"{first}-0 n={first}"


def test_what_was_missed_is_told(url: str, stream: str) -> None:
    """A cursor before trimmed entries is a gap: for people beside the output, for programs a line of it."""
    add(url, stream, 1, 2, 3, 4)
    redis(url, "XTRIM", stream, "MAXLEN", 1)
    with tailing(url, stream, "--after", "1-0") as process:
        assert line(process) == "4-0 n=4"
        _, _, err = interrupted(process)
        missed = f"an unknown number of entries of {stream!r} after 1-0 were removed before they were read"
        assert err == f"weir: gap: {missed}; the first left is 4-0\n"
    with tailing(url, stream, "--after", "1-0", "--json") as process:
        assert json.loads(line(process)) == {
            "gap": {"requested": "1-0", "first_available": "4-0", "lost": None, "reason": "trimmed"}
        }
        assert json.loads(line(process))["id"] == "4-0"


def test_another_stream_of_the_name_is_told(url: str, stream: str) -> None:
    """Then it is followed from its first entry on, also where its IDs are smaller."""
    add(url, stream, 7)
    with tailing(url, stream) as process:
        assert line(process) == "7-0 n=7"
        redis(url, "DEL", stream)
        add(url, stream, 3)
        assert line(process) == "3-0 n=3"
        _, _, err = interrupted(process)
    # It may be made again before it is seen that it was deleted.
    assert err.startswith(f"weir: gap: the stream {stream!r} was deleted")
    assert "after 7-0 was read" in err


def test_it_outlives_its_server(tmp_path: Path) -> None:
    """A gateway that is killed and comes back is read on, from where it was."""
    with Server(tmp_path / "data") as server:
        add(server.url, "s", 1)
        with tailing(server.url, "s") as process:
            assert line(process) == "1-0 n=1"
            server.restart()
            add(server.url, "s", 2)
            assert line(process) == "2-0 n=2"
            code, _, err = interrupted(process)
    assert code == 0
    assert "trying again" in err


@pytest.mark.parametrize("nth", [1, 2, 3, 5, 8])
def test_ctrl_c_ends_it_also_while_the_http_client_has_a_lock(url: str, stream: str, nth: int) -> None:
    """A lock that is kept would hold up the end for ever."""
    redis(url, "XGROUP", "CREATE", stream, "g", "$", "MKSTREAM")
    program = [sys.executable, "-m", "tests.cli.interrupted", str(nth), "tail", stream]
    ended = completed(program, env=environment(url), timeout=END_S_MAX)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_hostile_entries_stay_one_line_each(url: str, stream: str) -> None:
    """Line ends, escapes and marks that turn text around are shown, not obeyed; quotes tell words apart."""
    values = ["a b", "", 'say "x"', '"x"', "a=b", "\x1b[31m\r\n", "\u202eevil", "\u2028", "ü"]
    post(url, "/v1/commands", ["XADD", stream, "1-0", *[word for value in values for word in ("v v", value)]])
    with tailing(url, stream) as process:
        name = '"v v"='
        values_shown = [
            r'"a b"',
            '""',
            r'"say \"x\""',
            r'"\"x\""',
            '"a=b"',
            r'"\u001b[31m\r\n"',
            r'"\u202eevil"',
            r'"\u2028"',
            "ü",
        ]
        assert line(process) == "1-0 " + " ".join(name + value for value in values_shown)


def test_as_a_consumer_it_acknowledges_what_it_printed(url: str, stream: str) -> None:
    """First what this consumer was given before and never finished, then new entries; none stays pending."""
    add(url, stream, 1, 2)
    redis(url, "XGROUP", "CREATE", stream, "g", "0")
    redis(url, "XREADGROUP", "GROUP", "g", "anna", "COUNT", 1, "STREAMS", stream, ">")
    with tailing(url, stream, "--group", "g", "--consumer", "anna", "--json") as process:
        assert [json.loads(line(process))["id"] for _ in range(2)] == ["1-0", "2-0"]
        add(url, stream, 3)
        assert json.loads(line(process))["id"] == "3-0"
        all_acknowledged(url, stream)
        assert interrupted(process)[0] == 0


def test_what_could_not_be_printed_is_not_acknowledged(url: str, stream: str) -> None:
    """The reader of the output left between two entries: the second one is shown again."""
    add(url, stream, 1)
    redis(url, "XGROUP", "CREATE", stream, "g", "0")
    words = (stream, "--group", "g", "--consumer", "c")
    with tailing(url, *words) as process:
        assert line(process).startswith("1-0 n=1")
        all_acknowledged(url, stream)
        assert process.stdout is not None
        process.stdout.close()
        add(url, stream, 2)
        assert process.wait(END_S_MAX) == 0
    assert redis(url, "XPENDING", stream, "g")[:2] == [1, "2-0"]
    with tailing(url, *words) as process:
        assert line(process).startswith("2-0 n=2")


def test_now_is_the_moment_when_it_began(server: Server, stream: str) -> None:
    """`$` is resolved once: what is published while an answer gets lost is not skipped by asking again."""
    redis(server.url, "XGROUP", "CREATE", stream, "g", "0", "MKSTREAM")
    with (
        link(server.port, LOSE, PASS, LOSE) as flaky,
        tailing(flaky.url, stream, "--after", "$") as process,
    ):
        deadline = time.monotonic() + END_S_MAX / 2
        while len(flaky.seen) < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        add(server.url, stream, 1)
        assert line(process) == "1-0 n=1"


def test_deliveries_that_were_lost_on_the_way_are_asked_for_again(server: Server, stream: str) -> None:
    """An answer that the network ate has been delivered all the same: it is in the consumer's history."""
    add(server.url, stream, 1)
    redis(server.url, "XGROUP", "CREATE", stream, "g", "0")
    with (
        link(server.port, PASS, LOSE) as flaky,
        tailing(flaky.url, stream, "--group", "g", "--consumer", "c") as process,
    ):
        add(server.url, stream, 2)
        assert [line(process).split(" ")[0] for _ in range(2)] == ["1-0", "2-0"]
        all_acknowledged(server.url, stream)


def test_a_reader_that_has_seen_enough_ends_it(url: str, stream: str) -> None:
    """`weir tail | head` ends quietly when it has something to write and the pipe is closed."""
    add(url, stream, 1)
    with tailing(url, stream) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        line(process)
        process.stdout.close()
        add(url, stream, 2)
        assert process.wait(END_S_MAX) == 0
        assert process.stderr.read() == ""


@pytest.mark.parametrize(
    "words",
    [
        ["-n", "1", "--after", "0"],
        ["--group", "g"],
        ["--consumer", "c"],
        ["--group", "g", "--consumer", "c", "--after", "0"],
        ["-n", "-1"],
        ["-n", "10001"],
    ],
)
def test_places_to_begin_exclude_each_other(url: str, stream: str, words: list[str]) -> None:
    """What contradicts itself is a usage error, before anything is asked of the gateway."""
    assert weir(url, "tail", stream, *words).code == 2


def test_a_group_that_is_not_there_is_told(url: str, stream: str) -> None:
    """One line, with the code."""
    add(url, stream, 1)
    done = weir(url, "tail", stream, "--group", "g", "--consumer", "c")
    assert done.code == 1
    assert done.err.endswith("(no_group)\n")
    assert done.err.count("\n") == 1
