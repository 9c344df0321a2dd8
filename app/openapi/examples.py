"""The examples of the description, by operation: requests and their answers, both as they are.

Knows: the gateway that they are about has streams `orders` and `payments`, and a group `billing`.
Must never know: how anything is served. A test sends each of them.
"""

from collections.abc import Mapping
from typing import Final

from app.http.media import COLUMNS
from app.openapi.operation import Example

EXAMPLES: Final[Mapping[str, Mapping[str, Example]]] = {
    "startRewrite": {
        "begun": Example(
            summary="Begin one",
            answer={
                "state": "running",
                "bytes_before": None,
                "bytes_after": None,
                "duration_ms": None,
                "error": None,
            },
        ),
    },
    "getRewrite": {
        "none": Example(
            summary="None was made yet",
            answer={
                "state": "none",
                "bytes_before": None,
                "bytes_after": None,
                "duration_ms": None,
                "error": None,
            },
        ),
    },
    "startBackup": {
        "monday": Example(
            summary="Begin one",
            body={"name": "monday"},
            answer={
                "state": "running",
                "name": "monday",
                "started_ms": 1526919040000,
                "ended_ms": None,
                "files": None,
                "frames": None,
                "bytes": None,
                "error": None,
            },
        ),
    },
    "getBackup": {
        "none": Example(
            summary="None was made yet",
            answer={
                "state": "none",
                "name": None,
                "started_ms": None,
                "ended_ms": None,
                "files": None,
                "frames": None,
                "bytes": None,
                "error": None,
            },
        ),
    },
    "runCommand": {
        "publish": Example(
            summary="Append an entry",
            body=["XADD", "orders", "*", "item", "cherry", "quantity", "7"],
            answer={"result": "1526919040000-0"},
        ),
        "length": Example(
            summary="Count entries",
            body=["XLEN", "orders"],
            answer={"result": 3},
        ),
    },
    "runPipeline": {
        "mixed": Example(
            summary="Two commands, one of which fails",
            body=[["XLEN", "orders"], ["XLEN"]],
            answer=[{"result": 3}, {"error": "ERR wrong number of arguments for 'xlen' command"}],
        ),
    },
    "runTransaction": {
        "together": Example(
            summary="Two commands as one turn",
            body=[["XADD", "payments", "*", "amount", "1.10"], ["XLEN", "payments"]],
            answer=[{"result": "1526919040000-0"}, {"result": 2}],
        ),
    },
    "listStreams": {
        "page": Example(
            summary="The first page",
            given={"prefix": "order", "limit": 1},
            answer={
                "streams": [
                    {
                        "name": "orders",
                        "type": "stream",
                        "length": 3,
                        "first_id": "1526919030474-0",
                        "last_id": "1526919035120-0",
                        "first_entry": {
                            "id": "1526919030474-0",
                            "fields": {"item": "apple", "quantity": "3"},
                        },
                        "last_entry": {"id": "1526919035120-0", "fields": {"item": "plum", "quantity": "12"}},
                        "max_deleted_id": "0-0",
                        "removed_upto": "0-0",
                        "entries_added": 3,
                        "nodes": 1,
                        "groups": 1,
                        "generation": "9f86d081884c7d65",
                        "retention": {
                            "max_len": None,
                            "max_age_ms": None,
                            "max_bytes": None,
                            "keep_unacknowledged": False,
                            "keep_unarchived": False,
                        },
                        "archived_up_to": "0-0",
                        "memory_bytes": 194,
                    }
                ],
                "next": "orders",
            },
        ),
    },
    "getStream": {
        "brief": Example(
            summary="What there is to know in a line",
            answer={
                "name": "orders",
                "type": "stream",
                "length": 3,
                "first_id": "1526919030474-0",
                "last_id": "1526919035120-0",
                "first_entry": {"id": "1526919030474-0", "fields": {"item": "apple", "quantity": "3"}},
                "last_entry": {"id": "1526919035120-0", "fields": {"item": "plum", "quantity": "12"}},
                "max_deleted_id": "0-0",
                "removed_upto": "0-0",
                "entries_added": 3,
                "nodes": 1,
                "groups": 1,
                "generation": "9f86d081884c7d65",
                "retention": {
                    "max_len": None,
                    "max_age_ms": None,
                    "max_bytes": None,
                    "keep_unacknowledged": False,
                    "keep_unarchived": False,
                },
                "archived_up_to": "0-0",
                "memory_bytes": 194,
            },
        ),
        "full": Example(
            summary="With entries, groups and what is pending",
            given={"full": True, "count": 1},
            answer={
                "name": "orders",
                "type": "stream",
                "length": 3,
                "first_id": "1526919030474-0",
                "last_id": "1526919035120-0",
                "first_entry": {"id": "1526919030474-0", "fields": {"item": "apple", "quantity": "3"}},
                "last_entry": {"id": "1526919035120-0", "fields": {"item": "plum", "quantity": "12"}},
                "max_deleted_id": "0-0",
                "removed_upto": "0-0",
                "entries_added": 3,
                "nodes": 1,
                "groups": 1,
                "generation": "9f86d081884c7d65",
                "retention": {
                    "max_len": None,
                    "max_age_ms": None,
                    "max_bytes": None,
                    "keep_unacknowledged": False,
                    "keep_unarchived": False,
                },
                "archived_up_to": "0-0",
                "memory_bytes": 194,
                "entries": [{"id": "1526919030474-0", "fields": {"item": "apple", "quantity": "3"}}],
                "group_details": [
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
                        "nacked": 0,
                        "pending_entries": [
                            {
                                "id": "1526919030474-0",
                                "consumer": "worker-1",
                                "delivery_time_ms": 1526919035000,
                                "delivery_count": 1,
                            }
                        ],
                        "consumer_details": [
                            {
                                "name": "worker-1",
                                "pending": 2,
                                "seen_time_ms": 1526919035000,
                                "active_time_ms": 1526919035000,
                                "pending_entries": [
                                    {
                                        "id": "1526919030474-0",
                                        "delivery_time_ms": 1526919035000,
                                        "delivery_count": 1,
                                    }
                                ],
                            },
                            {
                                "name": "worker-2",
                                "pending": 0,
                                "seen_time_ms": 1526919035000,
                                "active_time_ms": -1,
                                "pending_entries": [],
                            },
                        ],
                    }
                ],
            },
        ),
    },
    "putStream": {
        "made": Example(
            summary="A new stream that keeps a million entries",
            given={"stream": "invoices"},
            body={"retention": {"max_len": 1000000}},
            status=201,
            answer={
                "name": "invoices",
                "type": "stream",
                "length": 0,
                "first_id": "0-0",
                "last_id": "0-0",
                "first_entry": None,
                "last_entry": None,
                "max_deleted_id": "0-0",
                "removed_upto": "0-0",
                "entries_added": 0,
                "nodes": 0,
                "groups": 0,
                "generation": "9f86d081884c7d65",
                "retention": {
                    "max_len": 1000000,
                    "max_age_ms": None,
                    "max_bytes": None,
                    "keep_unacknowledged": False,
                    "keep_unarchived": False,
                },
                "archived_up_to": "0-0",
                "memory_bytes": 0,
            },
        ),
        "kept": Example(
            summary="A stream that is there: at most a week, and nothing that a group still needs",
            given={"stream": "payments"},
            body={"retention": {"max_age_ms": 604800000, "keep_unacknowledged": True}},
            status=200,
            answer={
                "name": "payments",
                "type": "stream",
                "length": 1,
                "first_id": "1526919031000-0",
                "last_id": "1526919031000-0",
                "first_entry": {"id": "1526919031000-0", "fields": {"amount": "4.20"}},
                "last_entry": {"id": "1526919031000-0", "fields": {"amount": "4.20"}},
                "max_deleted_id": "0-0",
                "removed_upto": "0-0",
                "entries_added": 1,
                "nodes": 1,
                "groups": 0,
                "generation": "9f86d081884c7d65",
                "retention": {
                    "max_len": None,
                    "max_age_ms": 604800000,
                    "max_bytes": None,
                    "keep_unacknowledged": True,
                    "keep_unarchived": False,
                },
                "archived_up_to": "0-0",
                "memory_bytes": 51,
            },
        ),
    },
    "updateStream": {
        "bytes": Example(
            summary="Another limit by bytes",
            given={"stream": "payments"},
            body={"retention": {"max_bytes": 1073741824}},
            answer={
                "name": "payments",
                "type": "stream",
                "length": 1,
                "first_id": "1526919031000-0",
                "last_id": "1526919031000-0",
                "first_entry": {"id": "1526919031000-0", "fields": {"amount": "4.20"}},
                "last_entry": {"id": "1526919031000-0", "fields": {"amount": "4.20"}},
                "max_deleted_id": "0-0",
                "removed_upto": "0-0",
                "entries_added": 1,
                "nodes": 1,
                "groups": 0,
                "generation": "9f86d081884c7d65",
                "retention": {
                    "max_len": None,
                    "max_age_ms": None,
                    "max_bytes": 1073741824,
                    "keep_unacknowledged": False,
                    "keep_unarchived": False,
                },
                "archived_up_to": "0-0",
                "memory_bytes": 51,
            },
        ),
        "archived": Example(
            summary="Everything up to an ID is kept elsewhere",
            given={"stream": "payments"},
            body={"archived_up_to": "1526919031000-0"},
            answer={
                "name": "payments",
                "type": "stream",
                "length": 1,
                "first_id": "1526919031000-0",
                "last_id": "1526919031000-0",
                "first_entry": {"id": "1526919031000-0", "fields": {"amount": "4.20"}},
                "last_entry": {"id": "1526919031000-0", "fields": {"amount": "4.20"}},
                "max_deleted_id": "0-0",
                "removed_upto": "0-0",
                "entries_added": 1,
                "nodes": 1,
                "groups": 0,
                "generation": "9f86d081884c7d65",
                "retention": {
                    "max_len": None,
                    "max_age_ms": None,
                    "max_bytes": None,
                    "keep_unacknowledged": False,
                    "keep_unarchived": False,
                },
                "archived_up_to": "1526919031000-0",
                "memory_bytes": 51,
            },
        ),
    },
    "setLastId": {
        "moved": Example(
            summary="Go on where the stream stood elsewhere",
            given={"stream": "payments"},
            body={"last_id": "1526919039999-0", "entries_added": 1500},
            answer={
                "name": "payments",
                "type": "stream",
                "length": 1,
                "first_id": "1526919031000-0",
                "last_id": "1526919039999-0",
                "first_entry": {"id": "1526919031000-0", "fields": {"amount": "4.20"}},
                "last_entry": {"id": "1526919031000-0", "fields": {"amount": "4.20"}},
                "max_deleted_id": "0-0",
                "removed_upto": "0-0",
                "entries_added": 1500,
                "nodes": 1,
                "groups": 0,
                "generation": "9f86d081884c7d65",
                "retention": {
                    "max_len": None,
                    "max_age_ms": None,
                    "max_bytes": None,
                    "keep_unacknowledged": False,
                    "keep_unarchived": False,
                },
                "archived_up_to": "0-0",
                "memory_bytes": 51,
            },
        ),
    },
    "trimStream": {
        "dry": Example(
            summary="What would go",
            body={"maxlen": 1, "dry_run": True},
            answer={"deleted": 2, "first_id": "1526919035120-0", "pending_affected": 2},
        ),
        "length": Example(
            summary="Keep the newest two",
            body={"maxlen": 2},
            answer={"deleted": 1, "first_id": "1526919030474-1", "pending_affected": 1},
        ),
        "age": Example(
            summary="Remove what is older than five seconds",
            body={"older_than_ms": 5000, "refs": "delete"},
            answer={"deleted": 2, "first_id": "1526919035120-0", "pending_affected": 2},
        ),
    },
    "addEntries": {
        "one": Example(
            summary="One entry",
            body={"fields": {"item": "cherry", "quantity": "7"}},
            answer={"id": "1526919040000-0", "duplicate": False},
        ),
        "batch": Example(
            summary="A batch, stored whole or not at all",
            given={"maxlen": 1000000},
            body={"entries": [{"fields": {"item": "cherry"}}, {"fields": {"item": "quince"}}]},
            answer={
                "first_id": "1526919040000-0",
                "last_id": "1526919040000-1",
                "count": 2,
                "ids": ["1526919040000-0", "1526919040000-1"],
                "duplicate": False,
                "trimmed": 0,
                "pending_affected": 0,
            },
        ),
    },
    "readEntries": {
        "range": Example(
            summary="From a time on",
            given={"since": "2018-05-21T16:10:31Z"},
            answer={
                "entries": [{"id": "1526919035120-0", "fields": {"item": "plum", "quantity": "12"}}],
                "next": "1526919035120-0",
                "more": False,
            },
        ),
        "tail": Example(
            summary="What came after a cursor",
            given={"after": "1526919030474-1", "wait": 1000},
            answer={
                "entries": [{"id": "1526919035120-0", "fields": {"item": "plum", "quantity": "12"}}],
                "next": "1526919035120-0",
                "more": False,
            },
        ),
        "newest": Example(
            summary="The last entry, one of its fields",
            given={"last": 1, "fields": "item"},
            answer={
                "entries": [{"id": "1526919035120-0", "fields": {"item": "plum"}}],
                "next": "1526919035120-0",
                "more": False,
            },
        ),
        "columns": Example(
            summary="A page of columns",
            given={"after": "1526919030474-0", "end": "1526919035120-0"},
            media=COLUMNS,
            answer={
                "ms": [1526919030474, 1526919035120],
                "seq": [1, 0],
                "n": [2, 2],
                "kd": ["item", "quantity"],
                "k": [0, 1, 0, 1],
                "v": ["pear", "1", "plum", "12"],
            },
        ),
    },
    "getEntry": {
        "one": Example(
            summary="One entry",
            answer={"id": "1526919030474-0", "fields": {"item": "apple", "quantity": "3"}},
        ),
    },
    "deleteEntries": {
        "some": Example(
            summary="One of two is there",
            body={"ids": ["1526919030474-0", "1526919030474-9"]},
            answer={"deleted": 1, "results": {"1526919030474-0": "deleted", "1526919030474-9": "absent"}},
        ),
    },
    "readStreams": {
        "plain": Example(
            summary="Two streams, each behind its cursor",
            body={"streams": {"orders": "1526919035120-0", "payments": "0"}, "count": 10},
            answer={
                "streams": {
                    "orders": {"entries": [], "next": "1526919035120-0", "more": False},
                    "payments": {
                        "entries": [{"id": "1526919031000-0", "fields": {"amount": "4.20"}}],
                        "next": "1526919031000-0",
                        "more": False,
                    },
                }
            },
        ),
        "group": Example(
            summary="As a consumer of a group",
            body={"streams": {"orders": ">"}, "group": "billing", "consumer": "worker-2"},
            answer={
                "streams": {
                    "orders": {
                        "entries": [{"id": "1526919035120-0", "fields": {"item": "plum", "quantity": "12"}}],
                        "last_delivered_id": "1526919035120-0",
                        "more": False,
                    }
                }
            },
        ),
    },
    "publish": {
        "two": Example(
            summary="An order and its payment, both or none",
            body={
                "streams": {
                    "orders": [{"fields": {"item": "cherry"}}],
                    "payments": [{"fields": {"amount": "7.70"}}],
                }
            },
            answer={
                "streams": {
                    "orders": {"first_id": "1526919040000-0", "last_id": "1526919040000-0", "count": 1},
                    "payments": {"first_id": "1526919040000-0", "last_id": "1526919040000-0", "count": 1},
                },
                "duplicate": False,
            },
        ),
    },
    "getRoot": {
        "links": Example(
            summary="Where everything is",
            answer={
                "name": "weir",
                "version": "0.1.0",
                "links": {
                    "api": "/v1",
                    "streams": "/v1/streams",
                    "commands": "/v1/commands",
                    "console": "/console",
                    "docs": "/docs",
                    "openapi": "/openapi.json",
                    "asyncapi": "/asyncapi.json",
                    "live": "/healthz/live",
                    "ready": "/healthz/ready",
                    "status": "/v1/status",
                },
            },
        ),
    },
    "getVersion": {
        "links": Example(
            summary="Where everything is",
            answer={
                "name": "weir",
                "version": "0.1.0",
                "links": {
                    "api": "/v1",
                    "streams": "/v1/streams",
                    "commands": "/v1/commands",
                    "console": "/console",
                    "docs": "/docs",
                    "openapi": "/openapi.json",
                    "asyncapi": "/asyncapi.json",
                    "live": "/healthz/live",
                    "ready": "/healthz/ready",
                    "status": "/v1/status",
                },
            },
        ),
    },
    "isLive": {
        "live": Example(
            summary="It lives",
            answer={"status": "live"},
        ),
    },
    "isReady": {
        "ready": Example(
            summary="It is ready",
            answer={"status": "ready"},
        ),
    },
}
