"""What a server refuses, and what never came back, as refusals of the engine.

Knows: the sentences of Redis and Valkey. Must never know: connections, commands' words.

A sentence that is not known here is the backend's, not the caller's: the caller cannot do better, and it is
unknown whether trying again would help.
"""

import re
from collections.abc import Mapping
from typing import Final

from engine import errors
from engine.cluster.wire import ConnectionLostError, ServerError
from engine.commands.base import Command, StreamCommand
from engine.commands.types import ConfigSet, FlushAll, XCfgSet, XIdmpRecord, XReadGroup
from engine.commands.weir_commands import PutMetadata, Unchanged, Watch
from engine.errors import EngineError
from engine.protocol import Call

# What a server adds where a command within a script was refused.
_IN_SCRIPT: Final = re.compile(r" script: (?:[0-9a-f]{40}, )?on @user_script:\d+\.$")
_UNAVAILABLE: Final = "backend_unavailable"
_FORBIDDEN: Final = "backend_forbidden"

# What refusals mean by how they begin: a first word alone, or the beginning of a sentence. Those that time
# alone may cure are said before anything has run. For each there is a test in which a real server says it.
KNOWN: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        [
            *("ASK", "BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "MOVED", "NOAUTH"),
            *("NOREPLICAS", "NOSCRIPT", "READONLY", "TRYAGAIN", "WRONGPASS"),
        ],
        _UNAVAILABLE,
    ),
    "BUSYGROUP": "group_exists",
    "CROSSSLOT": "cross_slot",
    "NOGROUP": "no_group",
    "NOPERM": _FORBIDDEN,
    "OOM": "memory_full",
    "WRONGTYPE": "invalid",
    "ERR no such key": "no_stream",
    "ERR The XGROUP subcommand requires the key to exist": "no_stream",
    "ERR The ID specified in XSETID": "last_id_too_small",
    "ERR The entries_added specified in XSETID": "last_id_too_small",
    "ERR invalid expire time": "invalid",
    "ERR unknown command": "not_supported_by_backend",
    "ERR An LFU maxmemory policy is selected": "not_supported_by_backend",
    # Within scripts: Redis, then Valkey.
    "ERR The user executing the script": _FORBIDDEN,
    "ERR ACL failure in script": _FORBIDDEN,
    "ERR Script attempted to access a non local key": _UNAVAILABLE,
    "ERR Attempted to access a non local key": _UNAVAILABLE,
    "ERR Script attempted to execute a": _UNAVAILABLE,
    "ERR Can not execute a": _UNAVAILABLE,
}
_SENTENCES: Final = tuple(beginning for beginning in KNOWN if " " in beginning)
_ELSEWHERE: Final = tuple(beginning for beginning in KNOWN if "non local key" in beginning)
# Clients repeat by themselves what is refused with LOADING: so never what may have been done.
_NOT_NOW: Final = "LOADING the backend cannot be used now: "
_MAYBE: Final = "ERR the backend cannot be used now, and what was sent may have been done: "
_UNKNOWN: Final = "ERR the backend gave an unexpected answer: "


def refusal_of(
    error: ServerError | ConnectionLostError, *, writes: bool, in_part: bool = False
) -> EngineError:
    """The refusal of the engine that says the same. `in_part`: other commands of its request have run."""
    if isinstance(error, ConnectionLostError):
        return unavailable(str(error), is_unknown=writes and error.may_have_run)
    text = _IN_SCRIPT.sub("", error.text)
    code = _code_of(error.code, text)
    if code == _UNAVAILABLE:
        # In the midst of a script these come as plain errors.
        return unavailable(text, is_unknown=writes and (in_part or error.code == "ERR"))
    if code == _FORBIDDEN:
        return _forbidden(text)
    if code is None:
        return _unexpected(text, is_unknown=writes)
    return EngineError(code, text)


def _code_of(word: str, text: str) -> str | None:
    known = KNOWN.get(word)
    if known is None:
        known = next((KNOWN[beginning] for beginning in _SENTENCES if text.startswith(beginning)), None)
    return known


def is_elsewhere(error: ServerError) -> bool:
    """Whether a script was refused in its midst, for a key that is at another server by now."""
    return error.text.startswith(_ELSEWHERE)


def unavailable(reason: str, *, is_unknown: bool = False) -> EngineError:
    """The backend cannot be used now. `is_unknown`: the request may or may not have been carried out."""
    return EngineError(
        _UNAVAILABLE,
        f"{_MAYBE if is_unknown else _NOT_NOW}{reason}",
        f"the backend cannot be used now: {reason}{_end(is_unknown)}",
        outcome=_outcome(is_unknown),
    )


def _unexpected(text: str, *, is_unknown: bool) -> EngineError:
    remedy = "look into the log of the backend; if it is in order there, report this sentence"
    return EngineError(
        "backend_error",
        f"{_UNKNOWN}{text}",
        f"the backend gave an answer that the gateway does not expect: {text}{_end(is_unknown)}; {remedy}",
        outcome=_outcome(is_unknown),
    )


def _forbidden(text: str) -> EngineError:
    word, _, rest = text.partition(" ")
    remedy = "let the user that `backend` names use this key and this command there"
    return EngineError(
        _FORBIDDEN,
        text if word == "NOPERM" else f"NOPERM {rest}",
        f"the backend does not let the gateway do this: {rest}: {remedy}",
    )


def _end(is_unknown: bool) -> str:  # noqa: FBT001 - a fact in a sentence
    return "; the request may or may not have been carried out" if is_unknown else "; nothing was changed"


def _outcome(is_unknown: bool) -> str:  # noqa: FBT001 - as above
    return "unknown" if is_unknown else "not done"


def reason_of(error: EngineError) -> str:
    """The reason that `unavailable` was given, or what the server said that is not known; the sentence of any
    other refusal.
    """
    return error.redis.removeprefix(_NOT_NOW).removeprefix(_MAYBE).removeprefix(_UNKNOWN)


def in_part(refusal: EngineError) -> EngineError:
    """The refusal of one of several requests of which others have changed something."""
    return unavailable(reason_of(refusal), is_unknown=True) if refusal.code == _UNAVAILABLE else refusal


def about(refusal: EngineError, command: Command) -> EngineError:
    """A refusal in a server's words with what is missing, or there already: the command names it."""
    if refusal.members or not isinstance(command, StreamCommand):
        return refusal
    group = getattr(command, "group", "")
    same = {
        "no_stream": errors.no_such_key(command.stream),
        "no_group": errors.no_group(command.stream, group),
        "group_exists": errors.group_exists(group),
    }.get(refusal.code)
    return refusal if same is None else EngineError(same.code, refusal.redis, same.detail, **same.members)


# What callers call the commands that no server is sent.
_NAMES: Final[Mapping[type[Command], str]] = {
    ConfigSet: "CONFIG SET",
    FlushAll: "FLUSHALL",
    Unchanged: "WATCH",
    Watch: "WATCH",
    XCfgSet: "XCFGSET",
    XIdmpRecord: "XIDMPRECORD",
}


def name_of(command: Command) -> str:
    """What a caller calls a command that no server is sent."""
    return _NAMES[type(command)]


def not_supported(what: str, level: str) -> EngineError:
    """What Weir's own engine can do and this server cannot; `level` names the server."""
    sentence = f"{what} is not supported by this backend ({level})"
    return EngineError("not_supported_by_backend", f"ERR {sentence}", level=level)


def refusal_of_terms(call: Call, *, syncs: bool) -> EngineError | None:
    """What a server cannot promise is refused. `syncs`: a write is on its disk when it is answered."""
    # What Weir keeps of its own is as durable as a write here can be. A delivery waits for no disk.
    kept = XReadGroup if syncs else Command
    if call.synced and any(
        isinstance(command, kept) and not isinstance(command, PutMetadata) for command in call.commands
    ):
        remedy = "leave the preference out" if syncs else "with backend_durability=fsync:1 every write is"
        return not_supported(
            "an answer once it is on disk", f"the server syncs by its own settings: {remedy}"
        )
    if call.quotas:
        return not_supported("a quota", "the server does not count a tenant's memory")
    return None
