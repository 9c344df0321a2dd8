"""The examples of the calls for bulk readers and writers; see `examples`.

Knows: the same gateway. Must never know: how anything is served. A test sends each of them.
"""

from collections.abc import Mapping
from typing import Final

from app.openapi.operation import Example

EXAMPLES: Final[Mapping[str, Mapping[str, Example]]] = {
    "plan": {
        "two": Example(
            summary="Two cursors, at most three entries in all",
            body={
                "streams": {"orders": "1526919030474-0", "nothing": "0-0"},
                "pattern": "pay*",
                "max_entries": 3,
                "parts": 2,
            },
            answer={
                "streams": {
                    "orders": {
                        "after": "1526919030474-0",
                        "end": "1526919035120-0",
                        "count": 2,
                        "bytes": 129,
                        "first": "1526919030474-0",
                        "last": "1526919035120-0",
                        "removed_upto": "0-0",
                        "max_deleted_id": "0-0",
                        "generation": "",
                        "durable": "1526919035120-0",
                        "lag": 2,
                        "cuts": ["1526919030474-1"],
                    },
                    "payments": {
                        "after": "0-0",
                        "end": "1526919031000-0",
                        "count": 1,
                        "bytes": 51,
                        "first": "1526919031000-0",
                        "last": "1526919031000-0",
                        "removed_upto": "0-0",
                        "max_deleted_id": "0-0",
                        "generation": "",
                        "durable": "1526919031000-0",
                        "lag": 1,
                        "cuts": [],
                    },
                },
                "missing": ["nothing"],
            },
        ),
    },
}
