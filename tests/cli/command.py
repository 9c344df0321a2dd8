"""`weir` as a process of its own, and what it is tried with.

Knows: how to run it against a server, to its end or on the side; streams to run it on.
Must never know: what is tested with it.
"""

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final, NamedTuple

from tests.preloaded import Preloaded
from tests.server import call

COMMAND_S_MAX: Final = 60
WEIR: Final = (sys.executable, "-m", "weir")
TRANSACTION_COMMANDS_MAX: Final = 300
ROOT: Final = Path(__file__).parent.parent.parent


class Ended(NamedTuple):
    """A command's exit code and what it printed."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def objects(self) -> list[Any]:
        return [json.loads(line) for line in self.lines]


def environment(url: str) -> dict[str, str]:
    """The environment of people with one gateway and a terminal without colours."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("WEIR_")}
    return {
        **kept,
        "WEIR_URL": url,
        "PYTHONPATH": str(ROOT),
        "TERM": "dumb",
        "COLUMNS": "200",
        "LC_ALL": "C.UTF-8",
    }


def weir(url: str, *words: str, given: bytes = b"", also: Mapping[str, str] | None = None) -> Ended:
    """Run to the end. Standard input is a pipe with `given` in it; `also` has further variables."""
    reading, writing = os.pipe()
    giving = threading.Thread(target=_give, args=(writing, given), daemon=True)
    with TemporaryFile() as out, TemporaryFile() as err:
        with os.fdopen(reading):
            streams = [reading, out.fileno(), err.fileno()]
            process = Preloaded(words, streams, {**environment(url), **(also or {})})
        giving.start()
        try:
            code = process.wait(COMMAND_S_MAX)
        finally:
            process.send_signal(signal.SIGKILL)
        giving.join()
        out.seek(0)
        err.seek(0)
        return Ended(code, out.read().decode(), err.read().decode())


def _give(pipe: int, given: bytes) -> None:
    # A command that is refused reads nothing.
    with contextlib.suppress(BrokenPipeError), os.fdopen(pipe, "wb") as file:
        file.write(given)


def begun(url: str, *words: str) -> subprocess.Popen[str]:
    """Start, and leave running: standard input, output and error are pipes."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*WEIR, *words], stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=1, env=environment(url)
    )


def on_a_terminal(url: str, *words: str) -> tuple[bytes, bytes]:
    """Run to the end with a terminal for standard error: what went to standard output, and what it showed."""
    primary, secondary = pty.openpty()
    environs = environment(url) | {"TERM": "xterm"}
    process = subprocess.Popen([*WEIR, *words], stdout=subprocess.PIPE, stderr=secondary, env=environs)
    os.close(secondary)
    shown = b""
    try:
        while piece := os.read(primary, 4_096):
            shown += piece
    except OSError:
        pass  # how a terminal ends
    os.close(primary)
    out, _ = process.communicate(timeout=COMMAND_S_MAX)
    return out, shown


def redis(url: str, *command: object) -> Any:
    """A Redis command over the command API; its result."""
    return post(url, "/v1/commands", [str(word) for word in command])["result"]


def post(url: str, path: str, body: object) -> Any:
    """POST JSON; the JSON answer."""
    status, answer = call(url, "POST", path, body)
    assert status < 300, answer
    return answer


def values(url: str, stream: str, field: str) -> list[str]:
    """One field of all entries of a stream, in order."""
    return [dict(pairs(flat))[field] for _, flat in redis(url, "XRANGE", stream, "-", "+")]


def pairs(flat: Sequence[str]) -> list[tuple[str, str]]:
    """`[name, value, name, value]` → pairs."""
    return list(zip(flat[::2], flat[1::2], strict=True))


def fill(url: str, stream: str, count: int) -> None:
    """Return `count` entries, `1-0` with the field n = 1 and so on."""
    for number in range(1, count + 1):
        redis(url, "XADD", stream, f"{number}-0", "n", number)


def work(url: str, stream: str) -> None:
    """Five entries, a group that was given three: two to anna, one to bert."""
    fill(url, stream, 5)
    redis(url, "XGROUP", "CREATE", stream, "g", "0")
    for consumer, count in (("anna", 2), ("bert", 1)):
        redis(url, "XREADGROUP", "GROUP", "g", consumer, "COUNT", count, "STREAMS", stream, ">")


def cells(line: str) -> list[str]:
    """A line of a table that has no blanks in its cells."""
    return line.split()


def multi(url: str, commands: Sequence[Sequence[object]]) -> list[dict[str, object]]:
    """Redis commands as transactions of as many as one may have; their answers."""
    answers: list[dict[str, object]] = []
    for begin in range(0, len(commands), TRANSACTION_COMMANDS_MAX):
        some = commands[begin : begin + TRANSACTION_COMMANDS_MAX]
        answers += post(url, "/v1/commands/multi-exec", some)
    return answers
