"""Fails when a function, method, class, attribute or import is used nowhere, with vulture.

Fields of models and messages do not count: they are read by the programs that get the JSON. What a framework
calls, and what users of a library call, is listed below with its reason.
"""

import sys
from typing import Final

from vulture import Vulture

SOURCES: Final = ("app", "engine", "history", "sdk/python", "spark")
CONFIDENCE_MIN: Final = 60
# Below this confidence a variable may be a field.
VARIABLE_CONFIDENCE_MIN: Final = 100
DECORATORS: Final = [
    "@router.*",
    "@routes.*",
    "@runs",
    "@sends",
    "@gathers",
    "@model_validator",
    "@field_validator",
    "@_ENTRIES.*",
    "@_GROUPS.*",
    "@_MANY.*",
]
ALLOWED: Final = {
    "python": ["__delitem__", "__getattr__", "__setitem__"],
    "pydantic": ["__pydantic_config__", "settings_customise_sources", "core"],
    "pydantic passes these by name": ["dotenv_settings", "file_secret_settings"],
    "structlog passes these by position": ["logger"],
    "asyncio": ["eof_received"],
    "ssl": ["num_tickets"],
    "pyspark_weir.table, as its first page has it": ["write_files"],
    "io, as pyarrow asks": ["writable"],
    "starlette": ["background", "get_route_handler"],
    "uvicorn": ["capture_signals"],
    "httptools": [
        "on_body",
        "on_header",
        "on_headers_complete",
        "on_message_begin",
        "on_message_complete",
        "on_url",
    ],
    "spark": [
        "__func__",
        "commit",
        "getDefaultReadLimit",
        "initialOffset",
        "latestOffset",
        "onQuery*",
        "partitions",
        "prepareForTriggerAvailableNow",
        "pushFilters",
        "reportLatestOffset",
        "streamReader",
        "streamWriter",
    ],
    "named in quoted annotations": ["Attempt", "Concatenate", "PendingRow", "Source"],
    "programs that read an archive call these": ["known_upto"],
    "users of the client call these": ["publish_batch", "read_after", "running_gateway", "wait_until_ready"],
    "assistant-ui calls these": ["WeirResumableStreamStore", "acquire", "finalize"],
    "taskiq calls these": ["WeirScheduleSource", "get_schedules", "kick"],
    "a backend of several servers needs these; the engine over one does not": [
        "acknowledge",
        "missing_events",
        "read_group",
        "rearrange",
        "words_with_text",
    ],
    "faults that tests inject": ["heal", "stop_before", "crash", "unsynced_name_changes", "rival"],
}


def main() -> int:
    """Print what is used nowhere; 1 if there is anything."""
    names = [name for group in ALLOWED.values() for name in group]
    vulture = Vulture(ignore_names=names, ignore_decorators=DECORATORS)
    vulture.scavenge(SOURCES)
    found = [
        item
        for item in vulture.get_unused_code(min_confidence=CONFIDENCE_MIN)
        if item.typ != "variable" or item.confidence >= VARIABLE_CONFIDENCE_MIN
    ]
    for item in found:
        print(item.get_report())
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
