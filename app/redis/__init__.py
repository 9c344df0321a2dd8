"""Redis commands: parses their words into engine commands, and shapes replies as RESP2 or JSON.

Knows: which commands exist, their syntax, the shapes of their replies.
Must never know: HTTP, tokens, the clock, how the engine runs a command.

    request = checked(parse(arguments(json_list, base64=…)), limits)
    resp = request.immediate(now_us) if request.command is None else request.answer(await ask_one(…))
    body = {"result": to_json(resp, base64=…)}, or at once request.written(await ask_one(…), base64=…)
"""

from app.redis.bounds import (
    check_probed,
    check_written,
    checked,
    is_long,
    probes,
    within,
)
from app.redis.parsers.table import COMMANDS, check_transaction, parse
from app.redis.request import EXECABORT, Action, CommandRequest, Visible, seeing_all
from app.redis.resp import Resp, arguments, load, to_json
from app.redis.written import is_laborious

__all__ = [
    "COMMANDS",
    "EXECABORT",
    "Action",
    "CommandRequest",
    "Resp",
    "Visible",
    "arguments",
    "check_probed",
    "check_transaction",
    "check_written",
    "checked",
    "is_laborious",
    "is_long",
    "load",
    "parse",
    "probes",
    "seeing_all",
    "to_json",
    "within",
]
