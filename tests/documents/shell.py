"""A document's shell sessions: found, run in order in one bash, and compared.

Knows: fenced `console` blocks; `$ ` begins a command, `> ` goes on with it, the rest is its output.
Must never know: what the commands are about.

What changes from run to run is compared by shape: numbers of five digits and more (IDs, times, sizes) equal
each other, and `…` stands for anything within its line.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from select import select
from typing import NamedTuple

_BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LONG_NUMBER = re.compile(r"\d{5,}")
_COMMAND_S_MAX = 60
# Of one that starts Spark, beside others.
_STEP_S_MAX = 600
_OVER = b"\nthe command is over\n"
_ROOT = Path(__file__).parents[2]


class ShellStep(NamedTuple):
    """A command and the lines that the document says it prints."""

    command: str
    output: list[str]


def steps(document: str) -> list[ShellStep]:
    """All commands of a document, in order."""
    found: list[ShellStep] = []
    for block in _BLOCK.findall(document):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append(ShellStep(line[2:], []))
            elif line.startswith("> ") and found and not found[-1].output:
                found[-1] = ShellStep(f"{found[-1].command}\n{line[2:]}", [])
            else:
                found[-1].output.append(line)
    return found


def agrees(said: str, printed: str) -> bool:
    """Whether a printed line is what the document says."""
    shape = re.escape(_LONG_NUMBER.sub("#", said)).replace("…", ".*")
    return re.fullmatch(shape, _LONG_NUMBER.sub("#", printed)) is not None


class ShellSession:
    """One bash in a directory of its own, so that variables and background jobs live from step to step."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
        )
        self._printed = b""

    def run(self, command: str) -> list[str]:
        """What the command prints, line by line. Fails where it does not end."""
        assert self._bash.stdin is not None, "a pipe was asked for"
        assert self._bash.stdout is not None, "a pipe was asked for"
        self._bash.stdin.write(f"{command}\nprintf '\\n%s\\n' 'the command is over'\n".encode())
        ends_at = time.monotonic() + _STEP_S_MAX
        while _OVER not in self._printed:
            left_s = max(0, ends_at - time.monotonic())
            assert select([self._bash.stdout], [], [], left_s)[0], f"$ {command}\n{self._printed.decode()}…"
            piece = self._bash.stdout.read(1 << 16)
            if not piece:
                break
            self._printed += piece
        printed, _, self._printed = self._printed.partition(_OVER)
        lines = printed.decode().replace("\r\n", "\n").rstrip("\n")
        return lines.split("\n") if lines else []

    def close(self) -> None:
        """End the shell."""
        self._bash.kill()
        self._bash.communicate(timeout=_COMMAND_S_MAX)


def run_steps(text: str, directory: Path, environment: dict[str, str]) -> None:
    """Type each command of a document, in its order. Fails where one prints what does not stand below it."""
    session = ShellSession(directory, environment)
    try:
        for step in steps(text):
            printed = session.run(step.command)
            same = len(printed) == len(step.output) and all(map(agrees, step.output, printed))
            assert same, "\n".join([f"$ {step.command}", "--- said", *step.output, "--- printed", *printed])
    finally:
        session.close()


def options_of(job: str) -> set[str]:
    """All options that the help of a job of the pipeline names."""
    command = [sys.executable, "-m", "pyspark_weir", job, "--help"]
    environment = os.environ | {"COLUMNS": "200"}
    shown = subprocess.run(
        command,
        cwd=_ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_COMMAND_S_MAX,
        check=True,
    )
    return set(re.findall(r"--[a-z-]+", shown.stdout))
