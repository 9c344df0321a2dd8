"""A gateway under strace: calls that fail, take long or kill it, and the order of its calls.

Knows: how to say it to strace, and what its lines mean.
Must never know: what the gateway promises.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

# pid, time, then `call(arguments) = result`, or one of its halves.
_LINE: Final = re.compile(r"^(\d+) +([\d.]+) (.*)$")
_WHOLE: Final = re.compile(r"^(\w+)\((.*)\) += (-?\d+|\?)")
_BEGUN: Final = re.compile(r"^(\w+)\((.*?),? *<unfinished \.\.\.>$")
_ENDED: Final = re.compile(r"^<\.\.\. (\w+) resumed>(.*)\) += (-?\d+|\?)")
_RESULT: Final = re.compile(r" res=(-?\d+)")
CALLS: Final = (
    "write,pwrite64,writev,sendto,sendmsg,fdatasync,fsync,rename,renameat,renameat2,unlink,unlinkat"
    ",io_submit,io_getevents"
)
# The program takes its machine for one of 32 bits, where a thread does each sync.
BY_THREAD: Final = ("setarch", "linux32")


def injecting(call: str, fault: str, *, path: Path | None = None) -> tuple[str, ...]:
    """A wrapper with a fault: `error=EIO:when=3`, `delay_exit=300000:when=1+`, `signal=KILL:when=2`.

    Under one of fdatasync it is called for every sync.
    """
    where = () if path is None else ("-P", str(path))
    faulty = (*_STRACE, "-o", "/dev/null", *where, "-e", f"trace={call}", "-e", f"inject={call}:{fault}")
    return (*faulty, *BY_THREAD) if call == "fdatasync" else faulty


def failing_in_kernel(code: int, *, when: int) -> tuple[str, ...]:
    """A wrapper in which the n-th sync that the kernel does by itself ends with this errno."""
    event = bytes(16) + (-code).to_bytes(8, "little", signed=True) + bytes(8)
    return injecting("io_getevents", f"poke_exit=@arg4={event.hex()}:when={when}")


def recording(into: Path) -> tuple[str, ...]:
    """A wrapper that writes down every call that changes files or answers."""
    return (*_STRACE, "-ttt", "-y", "-s", "48", "-o", str(into), "-e", f"trace={CALLS}")


# -D: the tracer stands aside, so that the program is our own child.
_STRACE: Final = ("strace", "-D", "-f", "-qq")


class TracedCall(NamedTuple):
    """A system call that has ended: when it began and ended, by the order of lines."""

    name: str
    arguments: str
    result: int
    begun: int
    ended: int

    @property
    def is_answer(self) -> bool:
        """Whether it sends the beginning of an answer that is not a refusal."""
        return '"HTTP/1.1 2' in self.arguments and self.name in {"write", "writev", "sendto", "sendmsg"}

    def on(self, part: str) -> bool:
        """Whether it is about a file of such a name."""
        return part in self.arguments.split('"')[0] if self.name in _BY_DESCRIPTOR else part in self.arguments


_BY_DESCRIPTOR: Final = frozenset({"write", "pwrite64", "writev", "sendto", "sendmsg", "fdatasync", "fsync"})


def calls(trace: Path) -> Iterator[TracedCall]:
    """The calls of a recording, in the order in which they ended.

    A sync that the kernel does by itself counts as fdatasync, until the program learns of its end.
    """
    submitted: TracedCall | None = None
    for call in _calls(trace):
        if call.name == "io_submit":
            submitted = call
        elif call.name == "io_getevents" and submitted is not None:
            result = _RESULT.search(call.arguments)
            assert result is not None, f"one sync has ended: {call}"
            yield TracedCall("fdatasync", submitted.arguments, int(result[1]), submitted.begun, call.ended)
        else:
            yield call


def _calls(trace: Path) -> Iterator[TracedCall]:
    begun: dict[str, tuple[str, str, int]] = {}
    for number, line in enumerate(trace.read_text(errors="replace").splitlines()):
        match = _LINE.match(line)
        if match is None:
            continue
        thread, _, text = match.groups()
        if whole := _WHOLE.match(text):
            yield TracedCall(whole[1], whole[2], _number(whole[3]), number, number)
        elif half := _BEGUN.match(text):
            begun[thread] = (half[1], half[2], number)
        elif (half := _ENDED.match(text)) and thread in begun:
            name, arguments, at = begun.pop(thread)
            yield TracedCall(name, arguments + half[2], _number(half[3]), at, number)


def _number(result: str) -> int:
    return int(result) if result != "?" else -1
