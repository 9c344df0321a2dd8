"""What limits of a stream would remove at once, in words for the question before.

Knows: how a gateway is asked for that. Must never know: who asks, and how the answer is taken.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weir.cli import output

if TYPE_CHECKING:
    from weir import Client


def by_retention(client: "Client", stream: str, changes: Mapping[str, Any]) -> str:
    """What goes at once with these changes, empty if nothing. How many by size is only known once they are
    gone.
    """
    from weir.paths import stream_path

    # What is no longer kept goes at once, too, by limits that stay.
    if all(value is None or value is True for value in changes.values()):
        return ""
    path = stream_path(stream)
    found = client.call("GET", path)
    limits = {**found["retention"], **changes}
    trims = [("maxlen", limits["max_len"]), ("older_than_ms", limits["max_age_ms"])]
    if found.get("held_by") == "no group" and limits["keep_unacknowledged"]:
        trims = []
    gone = pending = 0
    for name, value in trims:
        if value is not None:
            body = {name: value, "dry_run": True}
            answer = client.call("POST", f"{path}/trim", body=body, repeatable=True)
            gone = max(gone, answer["deleted"])
            pending = max(pending, answer.get("pending_affected") or 0)
    what = [f"remove {output.counted(gone, 'entry', 'entries')} at once"] if gone else []
    if limits["max_bytes"] is not None:
        what.append("remove entries beyond that size")
    if pending:
        is_kept = limits["keep_unacknowledged"]
        kept = "which stay until they are acknowledged" if is_kept else "which their groups then miss"
        what.append(f"{pending} of them pending, {kept}")
    return "; ".join(what)
