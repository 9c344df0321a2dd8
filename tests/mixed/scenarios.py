"""What a program does with a client, and what it sees: the same words for an old client and for a new one.

Knows: methods that both have. Must never know: which client or gateway it is.
"""

from collections.abc import Callable
from inspect import signature
from typing import Any

from weir import Client, Gap

Seen = dict[str, Any]


def _publish(client: Client, stream: str, *ids: str) -> None:
    for entry_id in ids:
        client.publish(stream, {"n": entry_id}, id=entry_id)


def read_pages(client: Client) -> Seen:
    """Two pages; between them the stream is deleted and made again with smaller IDs."""
    _publish(client, "paged", "5-0", "5-1", "5-2")
    first = client.read_after("paged", "0", count=2)
    client.delete_stream("paged")
    _publish(client, "paged", "3-0")
    then = client.read_after("paged", first.next or "")
    return {
        "first": [one.id for one in first.entries],
        "then": [one.id for one in then.entries],
        "gap": then.gap and then.gap.reason,
    }


def read_trimmed(client: Client) -> Seen:
    """A page and a tail from before the oldest entry that is kept."""
    _publish(client, "trimmed", "5-0", "5-1", "5-2")
    client.trim("trimmed", maxlen=1)
    page = client.read_after("trimmed", "5-0")
    assert page.gap is not None
    gaps: list[Gap] = []
    tailed = next(client.tail("trimmed", after="5-0", on_gap=gaps.append))
    return {
        "page": [page.gap.requested, page.gap.first_available, [one.id for one in page.entries]],
        "tail": [[one.requested for one in gaps], tailed.id],
    }


def tail_several(client: Client) -> Seen:
    """A tail of two streams."""
    _publish(client, "one", "5-0")
    _publish(client, "two", "5-1")
    tail = client.tail("one", "two", after="0")
    return {"tail": sorted(next(tail).id for _ in range(2))}


def settle_late(client: Client) -> Seen:
    """What one consumer gives up after another has taken it over; it says who it is, where its client can."""
    _publish(client, "late", "5-0", "5-1")
    group = client.group("late", "g")
    group.ensure(start="0", dead_letter={"stream": "late-dead"})
    group.read("a")
    client.command("XCLAIM", "late", "g", "b", 0, "5-0", "5-1", "JUSTID")
    named: Any = {"consumer": "a"} if "consumer" in signature(group.nack).parameters else {}
    group.nack("5-0", **named)
    moved = group.dead_letter("5-1", **named)["ids"]
    return {"moved": moved, "pending": client.command("XPENDING", "late", "g")}


def finish_late(client: Client) -> Seen:
    """What one consumer has done after another has taken it over; it says who it is, where its client can."""
    _publish(client, "done", "5-0", "5-1")
    group = client.group("done", "g")
    group.ensure(start="0")
    group.read("a")
    client.command("XCLAIM", "done", "g", "b", 0, "5-0", "JUSTID")
    named: Any = {"consumer": "a"} if "consumer" in signature(group.ack).parameters else {}
    return {"done": group.ack("5-0", "5-1", **named), "pending": client.command("XPENDING", "done", "g")}


SCENARIOS: dict[str, Callable[[Client], Seen]] = {
    "finish_late": finish_late,
    "read_pages": read_pages,
    "read_trimmed": read_trimmed,
    "settle_late": settle_late,
    "tail_several": tail_several,
}
