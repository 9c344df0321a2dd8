"""An engine with one stream and one group."""

from engine import SystemClock
from engine.commands.weir_commands import EnsureGroup
from tests.engine.running import engine_of

engine = engine_of(EnsureGroup(stream="s", group="g", start=0, mkstream=True), clock=SystemClock)
