"""The end of a closed stream as a server keeps it: a field of the stream's metadata.

Knows: the field and its form. Must never know: scripts, who reads.

    weir/{9cz}/m/orders   c 1795737600000 done
"""

from typing import Final

from engine.replies import StreamEnd

CLOSED: Final = "c"


def end_from(stream: str, mark: bytes | None, last_id: int, *, drained: bool = False) -> StreamEnd | None:
    """The end by the value of the field, None or empty for an open stream."""
    if not mark:
        return None
    closed_at_ms, _, reason = mark.decode().partition(" ")
    return StreamEnd(stream, last_id, int(closed_at_ms), reason, drained)
