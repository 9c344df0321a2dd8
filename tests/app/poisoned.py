"""`weir` with a fault inside its engine: an entry for the stream `poison` is in memory, and then it raises.

Knows: where a change is applied. Must never know: what must follow from that.
"""

from engine.keyspace import Keyspace
from engine.records.changes import Append
from weir.cli.main import main

POISON = "poison"
_apply = Append.apply


def _poisoned(record: Append, keyspace: Keyspace) -> None:
    _apply(record, keyspace)
    if record.stream == POISON:
        raise RuntimeError("a planted fault")


def poison() -> None:
    """Let it fail from now on."""
    Append.apply = _poisoned  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    poison()
    main()
