"""Bounds that no setting moves, moved: in an object of settings, and in a process.

`python -m tests.bounds serve --bound heartbeat_ms=200` is `weir serve` with heartbeats as often as that.

Knows: which bounds there are. Must never know: what they are for.
"""

import sys
from functools import cache
from typing import Any, ClassVar

from app.settings import Bounds, Settings

BOUNDS = frozenset(name for name in vars(Bounds) if not name.startswith("_"))


def bounded(**values: Any) -> Settings:
    """Settings, and bounds of other values than usual. They equal others with the same bounds alone."""
    moved = tuple((name, values.pop(name)) for name in sorted(BOUNDS & values.keys()))
    return _with(moved)(**values)


@cache
def _with(moved: tuple[tuple[str, int], ...]) -> type[Settings]:
    if not moved:
        return Settings
    hints = {name: ClassVar[int] for name, _ in moved}
    return type("Settings", (Settings,), {"__module__": __name__, "__annotations__": hints, **dict(moved)})


def move(words: list[str]) -> list[str]:
    """Move the bounds that a command line names; the words without them."""
    rest, after = [], iter(words)
    for word in after:
        if word == "--bound":
            name, _, value = next(after).partition("=")
            assert name in BOUNDS, name
            setattr(Bounds, name, int(value))
        else:
            rest.append(word)
    return rest


if __name__ == "__main__":
    from weir.cli.entry import main

    sys.argv = move(sys.argv)
    main()
