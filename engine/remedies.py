"""What an operator can do: about an error of the system, by its number; and about a refusal or a group that
delivers nothing, in the words of each door.

Knows: errno, words for reasons, the ways in. Must never know: what was tried, and what follows from it.
"""

import errno
import shlex
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import quote

_OTHERWISE: Final = "check the disk (dmesg, smartctl)"
_GONE: Final = "something in the data directory was deleted or moved: put it back in its place"
_FORBIDDEN: Final = "let the user of the gateway write there"
_REMEDIES: Final[Mapping[int, str]] = {
    errno.ENOSPC: "make room on that disk",
    errno.EDQUOT: "raise the quota on that disk, or make room in it",
    errno.EMFILE: "raise the limit of open files (systemd: LimitNOFILE, shell: ulimit -n), or have fewer "
    "clients",
    errno.ENFILE: "raise the system's limit of open files (sysctl fs.file-max), or end what has so many open",
    errno.ENOENT: _GONE,
    errno.ENOTDIR: _GONE,
    errno.ESTALE: _GONE,
    errno.EROFS: "the system has made the disk read-only: check it (dmesg), then mount it for writing again",
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
    errno.EFBIG: "raise the limit of the size of files (systemd: LimitFSIZE, shell: ulimit -f)",
    errno.ENOMEM: "give the machine or the container more memory",
}


# Of something that the process lacks now, and that says nothing of the disk.
PASSING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def explain(error: BaseException) -> str:
    """What has happened, and for an error of the system what to do: its own `remedy`, where it has one."""
    if not isinstance(error, OSError) or error.errno is None:
        return str(error) or repr(error)
    remedy = getattr(error, "remedy", None) or _REMEDIES.get(error.errno, _OTHERWISE)
    return f"{error.strerror}: {remedy}"


class Remedy(NamedTuple):
    """What to do, in the words of each door: a request, a command line, a button, a command of Redis."""

    rest: str
    cli: str
    console: str
    redis: str


_OTHER_RIGHT: Final = "ask for a token that has it"
_G: Final = "/v1/streams/{stream}/groups/{group}"
# Reasons after which the same is to be done.
_SAME: Final[Mapping[str, str]] = {
    "caught_up": "no_stream",
    "deferred": "held",
    "no_consumer": "ready",
    "holds_stream": "key_busy",
}
# Of reasons why a group delivers nothing, and of refusals: by the same word.
_BY_DOOR: Final[Mapping[str, Remedy]] = {
    "no_stream": Remedy(
        "publish to it: POST /v1/streams/{stream}/entries",
        "publish to it: weir publish {stream} NAME=VALUE",
        "publish to it: Publish",
        "publish to it: XADD {stream} * field value",
    ),
    "no_group": Remedy(
        f'make it: PUT {_G} {{{{"start": "0"}}}}',
        "make it: weir groups create {stream} {group} --start 0",
        "make it: New group",
        "make it: XGROUP CREATE {stream} {group} 0",
    ),
    "drained": Remedy(*["publish to another stream: this one has ended for good"] * 4),
    "memory_full": Remedy(
        *["acknowledge, trim or delete entries, or raise the setting memory_bytes_max"] * 4
    ),
    "paused": Remedy(
        f'resume it: PATCH {_G} {{{{"paused": false}}}}',
        "resume it: weir groups resume {stream} {group}",
        "resume it: Resume",
        "resume it: WEIR.RESUME {stream} {group}",
    ),
    "trimmed": Remedy(
        'keep what groups need from here on: PATCH /v1/streams/{stream} {{"retention": '
        '{{"keep_unacknowledged": true}}}}',
        "keep what groups need from here on: weir retention {stream} --keep-unacknowledged",
        "keep what groups need from here on: Limits…",
        "keep what groups need from here on, by the retention of the stream, which is set over REST",
    ),
    "too_old": Remedy(
        f'let the group have old entries: PATCH {_G} {{{{"max_age_ms": null}}}}',
        "let the group have old entries: weir groups set {stream} {group} --max-age none",
        "let the group have old entries: Policy…",
        "let the group have old entries: WEIR.GROUP SET {stream} {group} MAXAGE 0",
    ),
    "starts_at_end": Remedy(
        f'move it to the beginning: PATCH {_G} {{{{"last_delivered_id": "0"}}}}',
        "move it to the beginning: weir groups set {stream} {group} --start 0",
        "move it to the beginning: Move…, with 0",
        "move it to the beginning: XGROUP SETID {stream} {group} 0",
    ),
    "no_consumers": Remedy(
        f"start a worker, or read by hand: POST {_G}/consumers/{{consumer}}/read",
        "start a worker, or read by hand: weir tail {stream} --group {group} --consumer NAME",
        "start a worker",
        "start a worker, or read by hand: XREADGROUP GROUP {group} {consumer} STREAMS {stream} >",
    ),
    "ready": Remedy(
        f"read: POST {_G}/consumers/{{consumer}}/read",
        "read: weir tail {stream} --group {group} --consumer {consumer}",
        "start a worker",
        "read: XREADGROUP GROUP {group} {consumer} STREAMS {stream} >",
    ),
    "held": Remedy(
        f'wait, or let another have it: POST {_G}/claim {{{{"consumer": "OTHER", "min_idle_ms": 0, "ids": '
        '["{id}"]}}',
        "wait, or let another have it: weir claim {stream} {group} OTHER {id} --min-idle 0",
        "wait, or let another have it: Claim…",
        "wait, or let another have it: XCLAIM {stream} {group} OTHER 0 {id}",
    ),
    "key_busy": Remedy(
        f'once it is done, acknowledge it: POST {_G}/ack {{{{"ids": ["{{id}}"]}}}}',
        "once it is done, acknowledge it: weir ack {stream} {group} {id}",
        "once it is done, acknowledge it: Acknowledge",
        "once it is done, acknowledge it: XACK {stream} {group} {id}",
    ),
    "released": Remedy(
        f'read with claims: POST {_G}/consumers/{{consumer}}/read {{{{"claim_min_idle_ms": 60000}}}}',
        "take it: weir claim {stream} {group} {consumer} {id} --min-idle 0",
        "take it: Claim…",
        "take it: XCLAIM {stream} {group} {consumer} 0 {id}",
    ),
    "credit_used": Remedy(*["acknowledge what the consumer holds, or send more credit on its socket"] * 4),
    "replaced": Remedy(*["give each worker a name of its own"] * 4),
    "entries_damaged": Remedy(
        "POST …/trim with minid {next_id} gives up all entries up to there, PATCH …/groups/{{group}} with "
        "last_delivered_id {damaged_upto} lets a group read on behind them, and POST …/ack drops what is "
        "pending of them",
        "weir trim STREAM --minid {next_id} gives up all entries up to there, weir groups set STREAM GROUP "
        "--start {damaged_upto} lets a group read on behind them, and weir ack STREAM GROUP drops what is "
        "pending of them",
        "Trim… from {next_id} on gives up all entries up to there, Move… with {damaged_upto} lets a group "
        "read on behind them, and Acknowledge drops what is pending of them",
        "XTRIM MINID {next_id} gives up all entries up to there, XGROUP SETID {damaged_upto} lets a group "
        "read on behind them, and XACK drops what is pending of them",
    ),
    "group_has_pending": Remedy(
        "acknowledge them, or say pending=drop",
        "acknowledge them, or agree to drop them: --yes",
        "acknowledge them, or choose to drop them",
        "acknowledge them, or XGROUP DESTROY",
    ),
    "consumer_has_pending": Remedy(
        "say pending=drop, or transfer:<consumer>",
        "let another consumer claim them first: weir claim",
        "choose to drop them, or to transfer them",
        "let another consumer claim them first: XAUTOCLAIM",
    ),
    "recurring_forbidden": Remedy(
        *(_OTHER_RIGHT, _OTHER_RIGHT, _OTHER_RIGHT),
        "say RECURRING as the last word",
    ),
    "close_has_schedules": Remedy(
        "cancel them, or close it with POST /v1/streams/{{stream}}/close?schedules=drop",
        "cancel them, or close it with --drop-schedules",
        "cancel them on the tab Scheduled, or close the stream once more and agree",
        "cancel them, or close it with SCHEDULES DROP",
    ),
    "delete_has_schedules": Remedy(
        "cancel them, or delete it with DELETE /v1/streams/{{stream}}?schedules=drop",
        "cancel them, or delete it with --drop-schedules",
        "cancel them on the tab Scheduled, or delete the stream once more and agree",
        "cancel them first",
    ),
}


_REFUSALS: Final[Mapping[str, tuple[str, ...]]] = {
    "consumer_has_pending": ("consumer_has_pending",),
    "group_has_pending": ("group_has_pending",),
    "entries_damaged": ("entries_damaged",),
    "forbidden": ("recurring_forbidden",),
    "has_schedules": ("close_has_schedules", "delete_has_schedules"),
}


def remedy(code: str, **named: str) -> Remedy:
    """What to do about that, with the names of what it is about: as they are written at each door."""
    words, quoted = _BY_DOOR[_SAME.get(code, code)], {key: shlex.quote(value) for key, value in named.items()}
    encoded = {key: quote(value) for key, value in named.items()}
    return Remedy(
        words.rest.format(**encoded),
        words.cli.format(**quoted),
        words.console.format(**named),
        words.redis.format(**quoted),
    )


def remedies_of(code: str, members: Mapping[str, str | int]) -> list[Remedy]:
    """Those of refusals with this code and these members."""
    return [
        remedy(name, **{key: str(value) for key, value in members.items()})
        for name in _REFUSALS.get(code, ())
    ]
