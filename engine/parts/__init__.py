"""The capabilities of a stream, in the order of their records in a snapshot, and of their refusals.

Knows: all of them. Must never know: what any of them does.
"""

from typing import Final

from engine.parts.closing import Closed
from engine.parts.durable import DurableStream
from engine.parts.idempotence import Idempotence
from engine.parts.keeping import Kept
from engine.parts.part import StreamPart
from engine.parts.schedules import StreamSchedules

PARTS: Final[tuple[type[StreamPart], ...]] = (Idempotence, Closed, Kept, DurableStream, StreamSchedules)
assert [kind.rank for kind in PARTS] == sorted(kind.rank for kind in PARTS), "each is behind those before it"
