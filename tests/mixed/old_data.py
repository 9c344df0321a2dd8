"""What a gateway of the last release left on its disk: made by it, kept here, and looked at by this version.

Knows: requests that bring about each kind of record, and questions about all that they made.
Must never know: files.

`python -m tests.mixed.old_data URL DIR`, with a gateway of that release that serves `DIR/data` at URL, makes
the requests, and writes its answers to `DIR/answers.json`; then the gateway is killed, and `data` packed.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.server import call

Asked = tuple[str, str, Any]

DEAD: Final = {"dead_letter": {"stream": "dead", "max_deliveries": 2}, "ack_timeout_ms": 86_400_000}
KEPT: Final = {"max_len": 50, "max_age_ms": None, "max_bytes": None, "keep_unacknowledged": True}

# Before the log is rewritten: these become its base. And after it: these stay records.
REQUESTS: Final[tuple[tuple[Asked, ...], ...]] = (
    (
        *[
            (
                "POST",
                "/v1/streams/orders/entries",
                {"id": f"{n}-0", "fields": {"n": str(n), "v": "a" * (n % 7)}},
            )
            for n in range(1, 120)
        ],
        ("POST", "/v1/streams/orders/groups", {"name": "billing", "start": "0", **DEAD}),
        ("POST", "/v1/streams/orders/groups/billing/consumers/anna/read", {"count": 10}),
        ("POST", "/v1/streams/orders/groups/billing/ack", {"ids": ["1-0", "3-0"]}),
        ("POST", "/v1/streams/orders/groups/billing/nack", {"ids": ["4-0"], "mode": "fail"}),
        ("POST", "/v1/streams/orders/entries/delete", {"ids": ["5-0", "60-0"]}),
        ("POST", "/v1/streams/orders/trim", {"maxlen": 100}),
        ("POST", "/v1/commands", ["XADD", "binary", "7-1", "f", "ä", "g", ""]),
        ("POST", "/v1/commands", ["XADD", "gone", "1-0", "a", "b"]),
        ("DELETE", "/v1/streams/gone", None),
    ),
    (
        ("PUT", "/v1/streams/kept", {"retention": KEPT}),
        (
            "POST",
            "/v1/streams/kept/entries",
            {"entries": [{"id": f"{n}-0", "fields": {"n": str(n)}} for n in range(1, 90)]},
        ),
        ("POST", "/v1/streams/orders/groups/billing/consumers/bert/read", {"count": 5, "after": "0"}),
        ("POST", "/v1/streams/orders/groups/billing/consumers/bert/read", {"count": 5}),
        (
            "POST",
            "/v1/streams/orders/groups/billing/claim",
            {"consumer": "bert", "ids": ["20-0", "21-0"], "min_idle_ms": 0},
        ),
        ("POST", "/v1/streams/orders/groups/billing/dead-letter", {"ids": ["20-0"], "reason": "spoilt"}),
        ("POST", "/v1/commands", ["XSETID", "binary", "9-0", "ENTRIESADDED", "4", "MAXDELETEDID", "8-0"]),
        ("POST", "/v1/commands", ["XGROUP", "CREATE", "binary", "late", "$"]),
        ("POST", "/v1/commands", ["COPY", "orders", "copied"]),
        ("POST", "/v1/commands", ["RENAME", "copied", "renamed"]),
        ("POST", "/v1/commands", ["EXPIREAT", "renamed", "4102444800"]),
        (
            "POST",
            "/v1/commands/multi-exec",
            [["XADD", "both", "1-1", "a", "1"], ["XADD", "both", "1-2", "a", "2"]],
        ),
    ),
)
STREAMS: Final = ("binary", "both", "dead", "gone", "kept", "orders", "renamed")


def questions() -> Iterator[Asked]:
    """Everything that can be asked of what is there, but for what changes with the time."""
    yield ("GET", "/v1/streams", None)
    for name in STREAMS:
        for words in (["XRANGE", name, "-", "+"], ["XINFO", "STREAM", name], ["EXPIRETIME", name]):
            yield ("POST", "/v1/commands", words)
        yield ("GET", f"/v1/streams/{name}", None)
        yield ("GET", f"/v1/streams/{name}/groups", None)
    for name in ("orders", "renamed"):
        yield ("POST", "/v1/commands", ["XPENDING", name, "billing"])
        yield ("GET", f"/v1/streams/{name}/groups/billing/pending?count=100", None)


def rewrite(url: str) -> None:
    """Have the log rewritten, and wait for its end."""
    call(url, "POST", "/v1/admin/rewrite", {})
    while call(url, "GET", "/v1/admin/rewrite")[1]["state"] == "running":
        pass


def main(url: str, directory: Path) -> None:
    """Make the data, and write down the answers."""
    for part in REQUESTS:
        for asked in part:
            status, answer = call(url, *asked)
            assert status < 300, (asked, answer)
        if part is REQUESTS[0]:
            rewrite(url)
    # Retention is kept to exactly about once a second.
    time.sleep(3)
    answers = [[*asked, *call(url, *asked)] for asked in questions()]
    lines = ",\n".join(json.dumps(answer, ensure_ascii=False) for answer in answers)
    (directory / "answers.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
