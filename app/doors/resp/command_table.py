"""COMMAND: what commands there are, for clients that look for keys and arities.

Knows: the form of COMMAND INFO and DOCS, where each command has its keys.
Must never know: connections, what a command does.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from app.redis import COMMANDS, parse
from app.redis.resp import Pairs, Resp
from engine import errors

# Places of keys, as COMMAND INFO has them: the first, the last, and how far apart.
_NOWHERE: Final = 0, 0, 0
_ALL_KEYS: Final = frozenset({"del", "unlink", "exists", "touch", "watch"})
_TWO_KEYS: Final = frozenset({"rename", "renamenx", "copy"})
# About all streams; flushall and flushdb are, too.
_NO_KEY: Final = frozenset({"keys", "scan", "dbsize", "randomkey"})
_BLOCKING: Final = frozenset({"xread", "xreadgroup"})
# With DEADLETTER a group's has a second one, in any place.
_MOVABLE: Final = _BLOCKING | {"weir.group|set"}
_CONTAINER_ARITY: Final = -2


class CommandTable:
    """All commands: those on streams, and those of the connection, whose arities are given."""

    def __init__(self, session: dict[str, int]) -> None:
        self._subcommands: dict[str, list[str]] = {}
        for name in sorted(COMMANDS):
            container, bar, _ = name.partition("|")
            if bar and container not in session:
                self._subcommands.setdefault(container, []).append(name)
        containers = dict.fromkeys(self._subcommands, _CONTAINER_ARITY)
        rows = {name: row.arity for name, row in COMMANDS.items()}
        self._arities = {**containers, **rows, **session}

    def __len__(self) -> int:
        return len(self.names())

    def names(self) -> list[str]:
        """All names but those of subcommands, in order."""
        return sorted(name for name in self._arities if "|" not in name)

    def of_category(self, category: str) -> list[str]:
        """Those of an ACL category, as far as they are known here: stream, read, write. Subcommands by
        themselves.
        """
        found = {
            "stream": _is_of_streams,
            "read": lambda name: "readonly" in _flags(name),
            "write": lambda name: "write" in _flags(name),
        }.get(category, lambda _: False)
        return sorted(filter(found, self._arities.keys() - self._subcommands.keys()))

    def infos(self, names: Iterable[str]) -> list[Resp]:
        """COMMAND INFO: null for what there is not."""
        return [self._info(name) if name in self._arities else None for name in names]

    def docs(self, names: Iterable[str]) -> Resp:
        """COMMAND DOCS: the group of each, and of its subcommands; unknown ones are left out."""
        return Pairs(part for name in names if name in self._arities for part in self._docs(name))

    def _docs(self, name: str) -> Iterator[Resp]:
        own = self._subcommands.get(name, ())
        is_ours = name in COMMANDS or name in self._subcommands
        keyed = any(_keys(one) != _NOWHERE for one in (name, *own))
        group = b"stream" if _is_of_streams(name) else b"generic" if keyed else b"server"
        summary = b"See docs/redis-clients.md." if is_ours else b""
        docs = Pairs([b"summary", summary, b"since", b"1.0.0", b"group", group])
        if own:
            docs += [b"subcommands", Pairs(part for one in own for part in self._docs(one))]
        yield name.encode()
        yield docs

    def _info(self, name: str) -> Resp:
        subcommands = self.infos(self._subcommands.get(name, ()))
        return [name.encode(), self._arities[name], _flags(name), *_keys(name), [], [], [], subcommands]


def _is_of_streams(name: str) -> bool:
    return name.startswith(("x", "weir."))


def _flags(name: str) -> list[Resp]:
    """As far as they are of use here: what a container does, its subcommands say."""
    row = COMMANDS.get(name)
    if row is None:
        return [] if any(one.startswith(f"{name}|") for one in COMMANDS) else ["fast"]
    if not row.all_actions:
        return ["fast"]
    if name.startswith("config|"):
        return ["admin"]
    reads = set(row.all_actions) <= {"read"}
    blocking, movable = ["blocking"] * (name in _BLOCKING), ["movablekeys"] * (name in _MOVABLE)
    return ["readonly" if reads else "write", *blocking, *movable]


def _keys(name: str) -> tuple[int, int, int]:
    row = COMMANDS.get(name)
    if name in _ALL_KEYS:
        return 1, -1, 1
    if row is None or not row.actions or "admin" in row.actions or name in _MOVABLE | _NO_KEY:
        return _NOWHERE
    if name in _TWO_KEYS:
        return 1, 2, 1
    return (2, 2, 1) if "|" in name else (1, 1, 1)


def keys_of(words: Sequence[bytes]) -> list[bytes]:
    """COMMAND GETKEYS. Raises EngineError."""
    parsed = parse(words)
    if not parsed.streams:
        raise errors.invalid("ERR The command has no key arguments")
    return [stream.encode() for stream in parsed.streams]
