"""How upkeep of the log is shown.

Knows: the members of an answer. Must never know: statuses, what a rewrite does.
"""

import msgspec

from engine import EngineProtocol


def rewrite(engine: EngineProtocol) -> bytes:
    """The state of the last rewrite, or of the one under way."""
    return msgspec.json.encode(rewrite_state(engine))


def rewrite_state(engine: EngineProtocol) -> dict[str, object]:
    """Its members."""
    latest = engine.rewriting
    state = "none"
    numbers: tuple[int | None, int | None, int | None] = (None, None, None)
    if latest.running:
        state = "running"
    elif latest.failure is not None:
        state = "failed"
    elif latest.last is not None:
        state, numbers = "done", latest.last
    before, after, duration_ms = numbers
    return {
        "state": state,
        "bytes_before": before,
        "bytes_after": after,
        "duration_ms": duration_ms,
        "error": latest.failure if state == "failed" else None,
    }
