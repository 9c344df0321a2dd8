"""What holds for every command: help, completion, addresses, tokens, exit codes.

Knows: the command line as a whole. Must never know: what single commands do.
"""

import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from tests.cli.command import WEIR, environment, weir
from tests.server import free_port
from tests.turns import assert_within
from tests.waiting import completed

NOWHERE: Final = "http://127.0.0.1:9"
HEAVY: Final = ("app.main", "app.settings", "engine", "fastapi", "httpx", "orjson", "pydantic", "uvicorn")
# Twice what a quiet machine takes.
HELP_CPU_S_MAX: Final = 0.5
LOCAL: Final = ("serve", "config", "backup", "restore", "log")
COMMANDS: Final = (
    "publish",
    "tail",
    "read",
    "streams",
    "info",
    "trim",
    "groups",
    "pending",
    "claim",
    "redrive",
    "lag",
    "doctor",
)


def test_help_names_every_command_and_waits_for_no_library() -> None:
    """Help and shell completion run at each Tab: nothing heavy is imported before a command runs."""
    program = (
        "import sys; from weir.cli.main import add_plugins; add_plugins();"
        "print(*(name for name in sys.argv[1:] if name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *HEAVY, "rich"],
        capture_output=True,
        text=True,
        check=True,
        env=environment(NOWHERE),
    )
    assert done.stdout.split() == []
    shown = weir(NOWHERE, "--help").out
    assert all(f" {command} " in shown for command in (*COMMANDS, *LOCAL))


_INTERRUPTED: Final = """
import importlib.abc, os, signal, sys

class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
signal.signal(signal.SIGINT, signal.{handler})
sys.argv = ["weir", "--version"]
from weir.cli.entry import main
main()
"""


@pytest.mark.parametrize(("handler", "exit_code"), [("default_int_handler", -signal.SIGINT), ("SIG_IGN", 0)])
def test_ctrl_c_during_an_import_ends_without_a_trace(handler: str, exit_code: int) -> None:
    """As it ends any program; where a script has it ignored, it is."""
    program = _INTERRUPTED.replace("{handler}", handler)
    command = [sys.executable, "-c", program]
    ended = completed(command, timeout=60)
    assert (ended.returncode, ended.stderr) == (exit_code, "")


@pytest.mark.alone
def test_help_is_there_at_once() -> None:
    """Help takes little processor time, the interpreter's start included."""

    def used_s() -> float:
        before = os.times()
        subprocess.run([*WEIR, "--help"], capture_output=True, check=True, env=environment(NOWHERE))
        after = os.times()
        return after.children_user - before.children_user + after.children_system - before.children_system

    assert_within(HELP_CPU_S_MAX, used_s)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_complete(shell: str) -> None:
    """Each shell is given a script of its own, and commands complete."""
    variables = environment(NOWHERE) | {"_MAIN_COMPLETE": f"complete_{shell}"}
    assert "--show-completion" in weir(NOWHERE, "--help").out
    name = Path(sys.executable).with_name("weir")
    script = completed([name], env=variables | {"_WEIR_COMPLETE": f"source_{shell}"})
    assert "_WEIR_COMPLETE" in script.stdout
    words = {"COMP_WORDS": "weir pub", "COMP_CWORD": "1", "_TYPER_COMPLETE_ARGS": "weir pub"}
    fish = {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = completed([name], env=variables | {"_WEIR_COMPLETE": f"complete_{shell}"} | words | fish)
    assert "publish" in done.stdout
    assert "tail" not in done.stdout


def test_a_gateway_that_is_not_there_is_one_line() -> None:
    """Which address, and why."""
    url = f"http://127.0.0.1:{free_port()}"
    assert weir(url, "read", "s") == (
        1,
        "",
        f"weir: the gateway at {url} does not answer: connection refused\n",
    )


def test_the_option_wins_over_the_environment(url: str) -> None:
    """--url is what was typed last."""
    assert weir(NOWHERE, "streams", "--url", f"{url}/").code == 0


@pytest.mark.parametrize(
    "url", ["", "localhost:8080", "ftp://127.0.0.1", "http://", "http://h/?a=b", "http://[::1"]
)
def test_an_address_is_checked_before_it_is_used(url: str) -> None:
    """What is no address of a gateway is a usage error."""
    assert weir(NOWHERE, "read", "s", f"--url={url}").code == 2


@pytest.mark.parametrize("name", ["", ".", "..", "a//b", "/a", "a/..", "a/"])
def test_a_name_never_becomes_another_path(url: str, name: str) -> None:
    """A name that a path would take for something else is a usage error."""
    assert weir(url, "read", name).code == 2
    assert weir(url, "groups", name).code == 2


@pytest.mark.parametrize("token", [None, b"", b"two words", b"line\nline", b"\xff", b"x" * 10_000])
def test_a_token_file_holds_one_token(url: str, tmp_path: Path, token: bytes | None) -> None:
    """Anything else is a usage error, and the message does not show what the file holds."""
    file = tmp_path / "token"
    if token is not None:
        file.write_bytes(token)
    done = weir(url, "read", "s", "--token-file", str(file))
    assert done.code == 2
    assert "two words" not in done.err


def test_a_token_is_sent_without_its_line_end(url: str, tmp_path: Path) -> None:
    """Files that editors and `echo` write end with a line end."""
    file = tmp_path / "token"
    file.write_text("secret\n")
    assert weir(url, "streams", "--token-file", str(file)).code == 0


@pytest.mark.parametrize(
    "words",
    [
        ["publish"],
        ["publish", "s", "no-such-file"],
        ["publish", "s", "."],
        ["publish", "s", "--format", "xml"],
        ["publish", "s", "--batch", "0"],
        ["publish", "s", "--resume-key", ""],
        ["publish", "s", "--retry-for", "10"],
        ["read", "s", "--count", "0"],
        ["trim", "s"],
        ["trim", "s", "--maxlen", "1", "--minid", "1"],
        ["trim", "s", "--maxlen", "-1"],
        ["trim", "s", "--older-than", "7"],
        ["trim", "s", "--older-than", "-7d"],
        ["claim", "s", "g"],
        ["redrive", "s"],
        ["claim", "s", "g", "c", "--min-idle", "soon"],
        ["pending", "s", "g", "--min-idle", "1w"],
        ["no-such-command"],
    ],
)
def test_usage_errors_end_with_2(words: list[str]) -> None:
    """They are found before anything is asked of a gateway: there is none."""
    done = completed([*WEIR, *words], env=environment(NOWHERE), stdin=subprocess.DEVNULL)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("command", [(), ("publish",), ("tail",), ("serve",), ("import",), ("log", "repair")])
def test_help_wraps_paragraphs_where_the_terminal_ends(command: tuple[str, ...]) -> None:
    """And not where a line of the source ends as well."""
    shown = weir(NOWHERE, *command, "--help").out
    prose = [line.strip() for line in shown[: shown.index("╭")].splitlines()]
    width = int(environment(NOWHERE)["COLUMNS"]) - 2
    short = [line for line, after in pairwise(prose) if after and len(f"{line} {after.split()[0]}") < width]
    assert [line for line in short if line] == []
