"""What a server refuses, and what never came back, as refusals of the engine.

Knows: the sentences of Redis and Valkey. Must never know: connections, commands' words.
"""

import re
from typing import Final

from engine.cluster.wire import ConnectionLostError, ServerError
from engine.errors import EngineError

# What a server adds where a command within a script was refused.
_IN_SCRIPT: Final = re.compile(r" script: (?:[0-9a-f]{40}, )?on @user_script:\d+\.$")
# The first word of a refusal that time alone may cure.
_UNAVAILABLE: Final = {
    *("BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "READONLY", "TRYAGAIN", "UNKILLABLE"),
    *("ASK", "MOVED", "NOAUTH", "NOPERM", "NOREPLICAS", "NOSCRIPT", "WRONGPASS"),
}
_NOT_NOW: Final = "LOADING the backend cannot be used now: "
_BY_WORD: Final = {"NOGROUP": "no_group", "BUSYGROUP": "group_exists", "OOM": "memory_full"}
_BY_SENTENCE: Final = (
    ("ERR no such key", "no_stream"),
    ("ERR The XGROUP subcommand requires the key to exist", "no_stream"),
    ("ERR The ID specified in XADD", "id_not_increasing"),
    ("ERR The stream has exhausted", "stream_exhausted"),
    ("ERR The ID specified in XSETID", "last_id_too_small"),
    ("ERR The entries_added specified in XSETID", "last_id_too_small"),
    ("ERR Invalid stream ID", "malformed_id"),
    ("ERR unknown command", "not_supported_by_backend"),
    ("ERR unknown subcommand", "not_supported_by_backend"),
    ("ERR Unknown subcommand", "not_supported_by_backend"),
    ("ERR syntax error", "not_supported_by_backend"),
    ("CROSSSLOT", "cross_slot"),
)


def refusal_of(error: ServerError | ConnectionLostError, *, writes: bool) -> EngineError:
    """The refusal of the engine that says the same."""
    if isinstance(error, ConnectionLostError):
        return unavailable(str(error), is_unknown=writes and error.may_have_run)
    text = _IN_SCRIPT.sub("", error.text)
    if error.code in _UNAVAILABLE:
        return unavailable(text)
    code = _BY_WORD.get(error.code)
    if code is None:
        matching = (code for sentence, code in _BY_SENTENCE if text.startswith(sentence))
        code = next(matching, "invalid")
    return EngineError(code, text)


def unavailable(reason: str, *, is_unknown: bool = False) -> EngineError:
    """The backend cannot be used now. `is_unknown`: the request may or may not have been carried out."""
    outcome = "; the request may or may not have been carried out" if is_unknown else "; nothing was changed"
    return EngineError(
        "backend_unavailable",
        f"{_NOT_NOW}{reason}",
        f"the backend cannot be used now: {reason}{outcome}",
        outcome="unknown" if is_unknown else "not done",
    )


def reason_of(error: EngineError) -> str:
    """The reason that `unavailable` was given; the sentence of any other refusal."""
    return error.redis.removeprefix(_NOT_NOW)


def not_supported(what: str, level: str) -> EngineError:
    """What Weir's own engine can do and this server cannot; `level` names the server."""
    sentence = f"{what} is not supported by this backend ({level})"
    return EngineError("not_supported_by_backend", f"ERR {sentence}", sentence, level=level)
