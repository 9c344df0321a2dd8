"""The examples of the operations on groups and consumers: requests and their answers, both as they are.

Knows: the gateway that they are about has streams `orders` and `payments`, and a group `billing`.
Must never know: how anything is served. A test sends each of them.
"""

from collections.abc import Mapping
from typing import Final

from app.openapi.operation import Example

EXAMPLES: Final[Mapping[str, Mapping[str, Example]]] = {
    "listGroups": {
        "all": Example(
            summary="All groups",
            answer={
                "groups": [
                    {
                        "name": "billing",
                        "consumers": 2,
                        "pending": 2,
                        "last_delivered_id": "1526919030474-1",
                        "entries_read": 2,
                        "lag": 1,
                        "dead_letter": {"stream": "orders:dead", "max_deliveries": 5},
                        "ack_timeout_ms": None,
                        "consumer_timeout_ms": None,
                    }
                ],
                "next": None,
            },
        ),
    },
    "createGroup": {
        "made": Example(
            summary="A group that reads everything",
            body={"name": "shipping", "start": "0"},
            answer={
                "name": "shipping",
                "consumers": 0,
                "pending": 0,
                "last_delivered_id": "0-0",
                "entries_read": None,
                "lag": 3,
                "dead_letter": None,
                "ack_timeout_ms": None,
                "consumer_timeout_ms": None,
            },
        ),
    },
    "ensureGroup": {
        "there": Example(
            summary="A group that is there",
            body={"start": "$"},
            status=200,
            answer={
                "name": "billing",
                "consumers": 2,
                "pending": 2,
                "last_delivered_id": "1526919030474-1",
                "entries_read": 2,
                "lag": 1,
                "dead_letter": {"stream": "orders:dead", "max_deliveries": 5},
                "ack_timeout_ms": None,
                "consumer_timeout_ms": None,
            },
        ),
        "made": Example(
            summary="A group, and the stream with it",
            given={"stream": "returns", "group": "refunds"},
            body={"start": "0"},
            status=201,
            answer={
                "name": "refunds",
                "consumers": 0,
                "pending": 0,
                "last_delivered_id": "0-0",
                "entries_read": None,
                "lag": 0,
                "dead_letter": None,
                "ack_timeout_ms": None,
                "consumer_timeout_ms": None,
            },
        ),
    },
    "getGroup": {
        "one": Example(
            summary="One group",
            answer={
                "name": "billing",
                "consumers": 2,
                "pending": 2,
                "last_delivered_id": "1526919030474-1",
                "entries_read": 2,
                "lag": 1,
                "dead_letter": {"stream": "orders:dead", "max_deliveries": 5},
                "ack_timeout_ms": None,
                "consumer_timeout_ms": None,
            },
        ),
    },
    "updateGroup": {
        "timeout": Example(
            summary="Give back what is not acknowledged within a minute",
            body={"ack_timeout_ms": 60000},
            answer={
                "name": "billing",
                "consumers": 2,
                "pending": 2,
                "last_delivered_id": "1526919030474-1",
                "entries_read": 2,
                "lag": 1,
                "dead_letter": {"stream": "orders:dead", "max_deliveries": 5},
                "ack_timeout_ms": 60000,
                "consumer_timeout_ms": None,
            },
        ),
        "rewind": Example(
            summary="Read everything again",
            body={"last_delivered_id": "0"},
            answer={
                "name": "billing",
                "consumers": 2,
                "pending": 2,
                "last_delivered_id": "0-0",
                "entries_read": None,
                "lag": 3,
                "dead_letter": {"stream": "orders:dead", "max_deliveries": 5},
                "ack_timeout_ms": None,
                "consumer_timeout_ms": None,
            },
        ),
    },
    "listConsumers": {
        "all": Example(
            summary="All consumers",
            answer={
                "consumers": [
                    {"name": "worker-1", "pending": 2, "idle_ms": 5000, "inactive_ms": 5000},
                    {"name": "worker-2", "pending": 0, "idle_ms": 5000, "inactive_ms": None},
                ],
                "next": None,
            },
        ),
    },
    "getConsumer": {
        "one": Example(
            summary="One consumer",
            answer={"name": "worker-1", "pending": 2, "idle_ms": 5000, "inactive_ms": 5000},
        ),
    },
    "createConsumer": {
        "there": Example(
            summary="A consumer that is there",
            status=200,
            answer={"name": "worker-1", "pending": 2, "idle_ms": 5000, "inactive_ms": 5000},
        ),
        "made": Example(
            summary="A new consumer",
            given={"consumer": "worker-3"},
            status=201,
            answer={"name": "worker-3", "pending": 0, "idle_ms": 0, "inactive_ms": None},
        ),
    },
    "deleteConsumer": {
        "transfer": Example(
            summary="Its entries go to another one",
            given={"pending": "transfer:worker-2"},
            answer={"pending": 2},
        ),
    },
    "readGroup": {
        "new": Example(
            summary="What is new",
            given={"consumer": "worker-2"},
            body={"count": 10, "wait": 1000},
            answer={
                "entries": [{"id": "1526919035120-0", "fields": {"item": "plum", "quantity": "12"}}],
                "last_delivered_id": "1526919035120-0",
                "more": False,
            },
        ),
        "history": Example(
            summary="What the consumer holds",
            body={"after": "0"},
            answer={
                "entries": [
                    {
                        "id": "1526919030474-0",
                        "fields": {"item": "apple", "quantity": "3"},
                        "delivery_count": 2,
                    },
                    {
                        "id": "1526919030474-1",
                        "fields": {"item": "pear", "quantity": "1"},
                        "delivery_count": 2,
                    },
                ],
                "next": "1526919030474-1",
                "more": False,
            },
        ),
    },
    "listPending": {
        "summary": Example(
            summary="In sum",
            answer={
                "count": 2,
                "first_id": "1526919030474-0",
                "last_id": "1526919030474-1",
                "consumers": [{"name": "worker-1", "count": 2}],
            },
        ),
        "list": Example(
            summary="Entry by entry",
            given={"consumer": "worker-1", "count": 1},
            answer={
                "pending": [
                    {"id": "1526919030474-0", "consumer": "worker-1", "idle_ms": 5000, "delivery_count": 1}
                ],
                "next": "1526919030474-0",
                "more": True,
            },
        ),
    },
    "ackEntries": {
        "done": Example(
            summary="Two are done",
            body={"ids": ["1526919030474-0", "1526919030474-1"]},
            answer={
                "acknowledged": 2,
                "results": {"1526919030474-0": "acknowledged", "1526919030474-1": "acknowledged"},
            },
        ),
    },
    "nackEntries": {
        "back": Example(
            summary="Give one back",
            body={"ids": ["1526919030474-0"], "mode": "fail"},
            answer={"released": 1, "results": {"1526919030474-0": "released"}},
        ),
    },
    "claimEntries": {
        "over": Example(
            summary="Take over what was idle for a second",
            body={"consumer": "worker-2", "min_idle_ms": 1000, "ids": ["1526919030474-0"]},
            answer={
                "entries": [
                    {
                        "id": "1526919030474-0",
                        "fields": {"item": "apple", "quantity": "3"},
                        "delivery_count": 2,
                        "idle_ms": 5000,
                    }
                ],
                "more": False,
            },
        ),
    },
    "autoclaimEntries": {
        "first": Example(
            summary="Take over one that was idle for a second",
            body={"consumer": "worker-2", "min_idle_ms": 1000, "count": 1},
            answer={
                "next_start": "1526919030474-1",
                "entries": [
                    {
                        "id": "1526919030474-0",
                        "fields": {"item": "apple", "quantity": "3"},
                        "delivery_count": 2,
                        "idle_ms": 5000,
                    }
                ],
                "deleted_ids": [],
            },
        ),
    },
    "buryEntries": {
        "poison": Example(
            summary="An entry that nobody can work off",
            body={"ids": ["1526919030474-0"], "reason": "no such customer"},
            answer={"stream": "orders:dead", "ids": ["1526919030474-0"]},
        ),
    },
    "redriveDeadLetters": {
        "fixed": Example(
            summary="What one worker could not do, now that it can",
            body={"filter": {"consumer": "worker-1", "reason": "max_deliveries"}},
            answer={
                "stream": "orders:dead",
                "redriven": 1,
                "entries": [{"dead_letter_id": "1526919032000-0", "id": "1526919040000-0"}],
                "next": None,
                "duplicate": False,
            },
        ),
        "one": Example(
            summary="Would this one go back?",
            body={"ids": ["1526919032000-0"], "dry_run": True},
            answer={
                "stream": "orders:dead",
                "redriven": 1,
                "entries": [{"dead_letter_id": "1526919032000-0", "id": None}],
                "next": None,
                "duplicate": False,
            },
        ),
    },
}
