"""Where a streaming query stands, as it lies in Spark's checkpoint.

Knows: `{"v":1,"s":{"g0/orders":["1700000099999-9","a1b2c3"]}}`: by gateway and stream the last ID read and
the stream's generation; that Spark compares offsets as texts, so that the same place must be the same text.
Beside them, where there are any, `"gone"`: streams that do not exist any more, of which that is known;
`"lost"`: what was given up on between the offset before and this one; and `"cut"`: how the batch that ends
there is cut into tasks, which must not change when it is run again.
Must never know: how an offset is come by, Spark.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from pyspark_weir import ids
from pyspark_weir.errors import PipelineError
from pyspark_weir.planning import Sizes

VERSION: Final = 1
_GONE: Final = "gone"
_LOST: Final = "lost"
_CUT: Final = "cut"


class Position(NamedTuple):
    """`id`: the last one read. `generation`: the stream's, "" where it did not exist yet.

    `floor` stands in the first offset in which a stream has its generation: what had been removed from its
    front by then. What is missing above it later on has been lost in between.
    """

    id: str
    generation: str
    floor: str | None = None


class Lost(NamedTuple):
    """Entries of a stream (`key`) that were gone before they were read, which was accepted: in
    `(after, upto]`, or all after `after` where it is None. `why`: trimmed, deleted, deleted and made anew.
    """

    key: str
    generation: str
    after: str
    upto: str | None
    why: str

    def __str__(self) -> str:
        return f"{self.key}: {self.sentence}"

    @property
    def sentence(self) -> str:
        if self.upto is None:
            return f"the stream was {self.why}; what was unread of it, after {self.after}, is lost"
        return f"entries after {self.after} up to {self.upto} were {self.why} before they were read"


# By "gateway/stream"; the name of a gateway holds no slash.
Offsets = dict[str, Position]


def encode(
    offsets: Mapping[str, Position],
    *,
    gone: Collection[str] = (),
    lost: Collection[Lost] = (),
    cut: Sizes | None = None,
) -> dict[str, Any]:
    """What Spark is given: sorted, so that one place is one text."""
    written: dict[str, Any] = {"v": VERSION, "s": {key: _members(offsets[key]) for key in sorted(offsets)}}
    if gone:
        written[_GONE] = sorted(gone)
    if lost:
        written[_LOST] = [list(one) for one in sorted(lost)]
    if cut is not None:
        written[_CUT] = [cut.min_partitions, cut.max_entries, cut.max_bytes, cut.ordered]
    return written


def decode(offset: Mapping[str, Any]) -> Offsets:
    """What Spark gave back. Raises PipelineError WEIR_CHECKPOINT for what is no offset of this version."""
    try:
        if offset["v"] != VERSION:
            raise PipelineError(
                "WEIR_CHECKPOINT",
                f"this checkpoint holds offsets of version {offset['v']}, known is {VERSION}: read "
                "on with the version of Weir that wrote it",
            )
        return {key: Position(ids.canonical(place[0]), *place[1:]) for key, place in offset["s"].items()}
    except (KeyError, TypeError, IndexError, AttributeError):
        raise PipelineError(
            "WEIR_CHECKPOINT", "this checkpoint holds offsets of another source: give the query its own"
        ) from None


def gone(offset: Mapping[str, Any]) -> frozenset[str]:
    """Which of an offset's streams had been deleted by then, without a loss or with one that was accepted."""
    return frozenset(offset.get(_GONE, ()))


def lost(offset: Mapping[str, Any]) -> tuple[Lost, ...]:
    """What was lost between the offset before and this one."""
    return tuple(Lost(*one) for one in offset.get(_LOST, ()))


def cut(offset: Mapping[str, Any]) -> Sizes | None:
    """How the batch that ends there is cut; None where a version wrote it that did not tell."""
    return Sizes(*offset[_CUT]) if _CUT in offset else None


def key(gateway: str, stream: str) -> str:
    """Under which name a stream of a gateway stands."""
    return f"{gateway}/{stream}"


def parts(name: str) -> tuple[str, str]:
    """Gateway and stream of a key."""
    gateway, _, stream = name.partition("/")
    return gateway, stream


def _members(place: Position) -> list[str]:
    return [place.id, place.generation] if place.floor is None else list(place)  # type: ignore[arg-type]
