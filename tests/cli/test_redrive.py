"""`weir redrive`: dead letters go back, each once, though answers get lost.

Knows: what must be in both streams afterwards. Must never know: routes.
"""

import httpx
import pytest

from tests.cli.command import multi, post, redis, values, weir
from tests.cli.link import BUSY, LOSE, PASS, link
from tests.server import Server
from weir import Client
from weir.cli.redrive import RedriveCalls


def dead_letter(url: str, stream: str, count: int, reason: str = "bad") -> list[str]:
    """Make `count` entries that died, 5-0 and so on; the IDs of their dead letters."""
    commands = [["XADD", stream, f"5-{number}", "n", number] for number in range(count)]
    commands.append(["XGROUP", "CREATE", stream, "g", "0"])
    commands.append(["XREADGROUP", "GROUP", "g", "c", "COUNT", count, "STREAMS", stream, ">"])
    multi(url, commands)
    call_group(url, stream, "PATCH", "", {"dead_letter": {"stream": f"{stream} dead"}})
    for begin in range(0, count, 1_000):
        ids = [f"5-{number}" for number in range(begin, min(count, begin + 1_000))]
        call_group(url, stream, "POST", "/dead-letter", {"ids": ids, "reason": reason})
    return [entry_id for entry_id, _ in redis(url, "XRANGE", f"{stream} dead", "-", "+")]


def call_group(url: str, stream: str, method: str, path: str, body: object) -> object:
    answer = httpx.request(method, f"{url}/v1/streams/{stream}/groups/g{path}", json=body, timeout=30)
    return answer.raise_for_status().json()


def test_the_oldest_go_back(url: str, stream: str) -> None:
    """A line each, both IDs; then how many, and that there may be more."""
    letters = dead_letter(url, stream, 3)
    done = weir(url, "redrive", stream, "g", "--count", "2")
    assert done.code == 0, done.err
    copies = [entry_id for entry_id, _ in redis(url, "XRANGE", stream, "6", "+")]
    assert done.lines == [f"{letter} {copy}" for letter, copy in zip(letters, copies, strict=False)]
    assert done.err.splitlines() == [
        f"weir: 2 dead letters of {stream} dead went back to {stream}",
        f"weir: there may be more: --start '({letters[1]}' goes on",
    ]
    rest = weir(url, "redrive", stream, "g", "--start", f"({letters[1]}", "--json")
    assert [one["dead_letter_id"] for one in rest.objects] == letters[2:]
    assert rest.err.count("\n") == 1
    assert values(url, stream, "n")[3:] == ["0", "1", "2"]
    nothing = weir(url, "redrive", stream, "g")
    assert (nothing.code, nothing.out) == (0, "")
    assert nothing.err == f"weir: 0 dead letters of {stream} dead went back to {stream}\n"


def test_a_dry_run_shows_which(url: str, stream: str) -> None:
    letters = dead_letter(url, stream, 3)
    done = weir(url, "redrive", stream, "g", letters[1], letters[2], "9-9", "--dry-run")
    assert done.lines == letters[1:]
    assert done.err == f"weir: 2 dead letters of {stream} dead would go back to {stream}\n"
    assert weir(url, "redrive", stream, "g", "--reason", "worse", "--dry-run").out == ""
    assert (
        weir(url, "redrive", stream, "g", "--consumer", "c", "--end", letters[0], "--dry-run").lines
        == letters[:1]
    )
    assert redis(url, "XLEN", stream) == redis(url, "XLEN", f"{stream} dead") == 3


@pytest.mark.parametrize("words", [["--all"], ["--count", "450"], ["ids"]])
def test_many_go_back_in_many_calls(server: Server, stream: str, words: list[str]) -> None:
    """Each dead letter once and in order, though an answer is lost and another refused."""
    letters = dead_letter(server.url, stream, 450)
    if words == ["ids"]:
        words = letters
    # Where the dead letters end is looked up first.
    looks = [] if words == letters else [PASS, PASS]
    with link(server.port, *looks, LOSE, BUSY) as flaky:
        done = weir(flaky.url, "redrive", stream, "g", *words)
    assert done.code == 0, done.err
    assert [line.split()[0] for line in done.lines] == letters
    assert redis(server.url, "XLEN", f"{stream} dead") == 0
    assert values(server.url, stream, "n")[450:] == [str(number) for number in range(450)]
    keys = [key for key in flaky.seen if key is not None]
    assert keys[0] == keys[1] == keys[2], "what was not answered is asked for under the same key"
    assert len(set(keys)) == len(keys) - 2 >= 3, "and everything else under another"


@pytest.mark.parametrize(
    "words", [["5-0", "--reason", "x"], ["5-0", "--all"], ["5-0", "--count", "1"], ["--all", "--count", "1"]]
)
def test_what_contradicts_itself_is_a_usage_error(url: str, stream: str, words: list[str]) -> None:
    assert weir(url, "redrive", stream, "g", *words).code == 2


def test_without_dead_letters_to_look_for(url: str, stream: str) -> None:
    """The stream, the group or its dead-letter stream may be missing: one line says which."""
    assert weir(url, "redrive", stream, "g").err.endswith("(no_stream)\n")
    post(url, "/v1/commands", ["XGROUP", "CREATE", stream, "g", "0", "MKSTREAM"])
    assert weir(url, "redrive", stream, "h").err.endswith("(no_group)\n")
    done = weir(url, "redrive", stream, "g")
    assert done.code == 1
    assert "dead_letter" in done.err


def test_a_dry_run_of_many_shows_each_once(url: str, stream: str) -> None:
    """Nothing goes away between its calls: each goes on behind the last one."""
    letters = dead_letter(url, stream, 230)
    assert weir(url, "redrive", stream, "g", "--all", "--dry-run").lines == letters


def test_what_dies_again_meanwhile_is_not_sent_back_again(server: Server, stream: str) -> None:
    """A task that no worker can do would go round for ever, a copy more each time."""
    letters = dead_letter(server.url, stream, 150)
    sent: list[str] = []
    with Client(server.url) as client:
        for answer in RedriveCalls(client, stream, "g", dry_run=False).redrive_matching({}, None):
            sent += [row["dead_letter_id"] for row in answer["entries"]]
            redis(server.url, "XREADGROUP", "GROUP", "g", "c", "STREAMS", stream, ">")
            call_group(
                server.url, stream, "POST", "/dead-letter", {"ids": [row["id"] for row in answer["entries"]]}
            )
            assert len(sent) <= len(letters)
    assert sent == letters
    assert redis(server.url, "XLEN", f"{stream} dead") == 150, "all of them have died again"
