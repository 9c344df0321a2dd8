"""COMMAND: what commands there are, for clients that look for keys and arities.

Knows: the form of COMMAND INFO and DOCS, where each command has its keys.
Must never know: connections, what a command does.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from app.redis import COMMANDS, parse
from app.redis.resp import Pairs, Resp
from engine import errors

_ALL_KEYS: Final = frozenset({"del", "unlink", "exists", "touch", "watch"})
_TWO_KEYS: Final = frozenset({"rename", "renamenx", "copy"})
_NO_KEY: Final = frozenset(
    {
        "keys",
        "scan",
        "dbsize",
        "flushall",
        "flushdb",
        "ping",
        "echo",
        "time",
        "wait",
        "waitaof",
        "lolwut",
        "randomkey",
    }
)
_MOVABLE: Final = frozenset({"xread", "xreadgroup"})
_IN_CONTAINERS: Final = frozenset({"xgroup", "xinfo", "object", "memory"})
_CONTAINER_ARITY: Final = -2


class CommandTable:
    """All commands: those on streams, and those of the connection, whose arities are given."""

    def __init__(self, session: dict[str, int]) -> None:
        arities = {name: row.arity for name, row in COMMANDS.items() if "|" not in name}
        containers = {name.partition("|")[0] for name in COMMANDS if "|" in name}
        self._arities = {**dict.fromkeys(containers, _CONTAINER_ARITY), **arities, **session}

    def __len__(self) -> int:
        return len(self._arities)

    def names(self) -> list[str]:
        """All names, in order."""
        return sorted(self._arities)

    def of_category(self, category: str) -> list[str]:
        """Those of an ACL category, as far as they are known here: stream, read, write."""
        found = {
            "stream": _is_of_streams,
            "read": lambda name: _has_keys(name) and _reads(name),
            "write": lambda name: _has_keys(name) and not _reads(name),
        }.get(category, lambda _: False)
        return list(filter(found, self.names()))

    def infos(self, names: Iterable[str]) -> list[Resp]:
        """COMMAND INFO: null for what there is not."""
        return [self._info(name) if name in self._arities else None for name in names]

    def docs(self, names: Iterable[str]) -> Resp:
        """COMMAND DOCS: the group of each; unknown ones are left out."""
        found = Pairs()
        for name in names:
            if name in self._arities:
                group = b"stream" if _is_of_streams(name) else b"generic" if _has_keys(name) else b"server"
                summary = b"See docs/redis-clients.md." if name in COMMANDS else b""
                found += [name.encode(), Pairs([b"summary", summary, b"since", b"1.0.0", b"group", group])]
        return found

    def _info(self, name: str) -> Resp:
        flags: list[Resp] = ["readonly" if _reads(name) else "write"] if _has_keys(name) else ["fast"]
        if name in _MOVABLE:
            flags += ["blocking", "movablekeys"]
        first, last, step = _keys(name)
        return [name.encode(), self._arities[name], flags, first, last, step, [], [], [], []]


def _is_of_streams(name: str) -> bool:
    return name.startswith(("x", "weir."))


def _reads(name: str) -> bool:
    row = COMMANDS.get(name)
    return row is not None and set(row.all_actions) <= {"read"}


def _has_keys(name: str) -> bool:
    return (name in COMMANDS and name not in _NO_KEY) or name in _IN_CONTAINERS


def _keys(name: str) -> tuple[int, int, int]:
    if not _has_keys(name) or name in _MOVABLE:
        return 0, 0, 0
    if name in _IN_CONTAINERS:
        return 2, 2, 1
    if name in _ALL_KEYS:
        return 1, -1, 1
    return (1, 2, 1) if name in _TWO_KEYS else (1, 1, 1)


def keys_of(words: Sequence[bytes]) -> list[bytes]:
    """COMMAND GETKEYS. Raises EngineError."""
    parsed = parse(words)
    if not parsed.streams:
        raise errors.invalid("ERR The command has no key arguments")
    return [stream.encode() for stream in parsed.streams]
