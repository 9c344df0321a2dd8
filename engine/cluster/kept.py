"""What Weir keeps of a stream in its metadata, as settings that people see: policies of groups, retention.

Knows: the names of the fields. Must never know: connections, scripts.

    weir/{9cz}/m/orders   g <generation>   ack_timeout_ms/<group> 30000   max_len 1000
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from engine import ids
from engine.cluster.scripts import Word
from engine.replies import StreamInfo

Fields = Mapping[bytes, bytes]
_TIMES: Final = ("max_deliveries", "ack_timeout_ms", "consumer_timeout_ms", "max_age_ms")
POLICY: Final = ("dead_letter_stream", *_TIMES, "paused")
LIMITS: Final = ("max_len", "max_age_ms", "max_bytes")
FLAGS: Final = ("keep_unacknowledged", "keep_unarchived")
RETENTION: Final = (*LIMITS, *FLAGS, "archived_up_to")
# Whether the stream is known to have had a group.
HAD_GROUP: Final = "had_group"
# Of a stream of Durable Streams: its media type, and the stream that it is a fork of.
DURABLE: Final = ("media", "source")


def setting_word(name: str, value: Any) -> Word | None:  # noqa: ANN401 - a value of a policy or a retention
    """A setting as it is kept, None where it is not set."""
    if name == "archived_up_to":
        return ids.format(value) if value else None
    if isinstance(value, bool):
        return 1 if value else None
    word: Word | None = value
    return word


def policy_fields(group: str) -> list[bytes]:
    """The fields of a group's policy, in the order of `POLICY`."""
    return [f"{name}/{group}".encode() for name in POLICY]


def failed_field(group: str) -> bytes:
    """The field that says when an entry of the group last failed."""
    return f"failed/{group}".encode()


def policy_of(fields: Fields, group: str) -> dict[str, Any]:
    """The members of `GroupInfo` that are the group's policy."""
    return policy_from([fields.get(field) for field in policy_fields(group)])


def policy_from(values: Sequence[bytes | None]) -> dict[str, Any]:
    """The same by the values of `policy_fields`."""
    letters, *numbers, paused = values
    return {
        "dead_letter_stream": None if letters is None else letters.decode(),
        **{
            name: None if number is None else int(number)
            for name, number in zip(_TIMES, numbers, strict=True)
        },
        "paused": paused is not None,
    }


def retention_from(values: Sequence[bytes | None]) -> dict[str, Any]:
    """The members of `StreamInfo` that are the retention, by the values of the fields `RETENTION`."""
    found = dict(zip(RETENTION, values, strict=True))
    archived = found["archived_up_to"]
    return {
        **{name: None if (limit := found[name]) is None else int(limit) for name in LIMITS},
        **{name: found[name] is not None for name in FLAGS},
        "archived_up_to": 0 if archived is None else ids.parse_canonical(archived),
    }


def description_of(info: StreamInfo | None) -> str:
    """The text that `lua/retention.lua` makes of a stream that is so; empty for None."""
    if info is None:
        return ""
    limits = ["" if (limit := getattr(info, name)) is None else str(limit) for name in LIMITS]
    flags = ["1" if getattr(info, name) else "" for name in FLAGS]
    facts = [
        *(str(info.length), str(info.nodes), ids.format(info.last_id), ids.format(info.max_deleted_id)),
        *(str(info.entries_added), ids.format(info.first_id), str(info.groups), info.generation),
        *(ids.format(info.removed_upto), str(-1 if info.expires_at_ms is None else info.expires_at_ms)),
        "" if info.closed_at_ms is None else f"{info.closed_at_ms} {info.close_reason}",
        str(info.schedules),
        *(*limits, *flags, ids.format(info.archived_up_to) if info.archived_up_to else ""),
    ]
    return "/".join(facts)
