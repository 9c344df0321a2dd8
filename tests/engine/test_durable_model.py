"""Random histories of Durable Streams give what a naive model gives, over restarts and rewrites.

Knows: the real engine, and the rules of docs/durable-streams.md word for word. Slow on purpose.
"""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from engine import EngineError, entries
from engine.commands import durable_commands
from engine.commands.base import Command
from engine.commands.types import Delete
from engine.parts.closing import Closed
from engine.replies import DurableAppended, DurableCreated
from tests import halves
from tests.engine.house import House

NAMES = ("a", "b", "c")
MEDIA = ("text/plain", "application/json")


@dataclass
class ModelStream:
    """A stream; `config` is what its creator said of its lifetime and its source."""

    kind: str
    config: bytes
    texts: list[str] = field(default_factory=list)
    closed: bool = False
    writer: bytes = b""
    producers: dict[str, tuple[int, int]] = field(default_factory=dict)


class Model:
    """All streams, which is a fork of which, and the names of removed ones that have forks."""

    def __init__(self) -> None:
        self.streams: dict[str, ModelStream] = {}
        self.sources: dict[str, str] = {}
        self.hidden: set[str] = set()

    def create(self, command: durable_commands.CreateDurable) -> str:
        there = self.streams.get(command.stream)
        if there is not None:
            alike = command.config == there.config and command.media in ("", there.kind)
            return "found" if alike and command.closes == there.closed else "stream_exists"
        if command.stream in self.hidden:
            return "stream_exists"
        made = ModelStream(command.media, command.config)
        if command.fork is not None:
            source = self.streams.get(command.fork.source)
            if source is None:
                return "stream_exists" if command.fork.source in self.hidden else "no_stream"
            if command.media not in ("", source.kind):
                return "media_type_differs"
            made = ModelStream(source.kind, command.config, list(source.texts))
            self.sources[command.stream] = command.fork.source
        made.texts += _texts(command.bodies)
        made.closed = command.closes
        self.streams[command.stream] = made
        return "created"

    def append(self, command: durable_commands.AppendDurable) -> str:
        stream, batch = self.streams.get(command.stream), command.batch
        if stream is None:
            return "stream_gone" if command.stream in self.hidden else "no_stream"
        epoch, seq = stream.producers.get(batch.producer, (-1, -1)) if batch else (-1, -1)
        stored = batch is not None and batch.epoch == epoch and batch.seq <= seq
        if batch is not None and batch.epoch < epoch and (stream.closed or self._fits(command, stream)):
            return "producer_fenced"
        if stream.closed:
            asks_again = batch is None and command.closes and not command.bodies
            return "repeated" if stored or asks_again else "stream_closed"
        if not self._fits(command, stream):
            return "media_type_differs"
        if stored:
            return "repeated"
        if batch is not None and batch.epoch > epoch and batch.seq:
            return "producer_gap" if epoch < 0 else "malformed_header"
        if batch is not None and batch.epoch == epoch and batch.seq != seq + 1:
            return "producer_gap"
        if command.writer_seq is not None and command.writer_seq <= stream.writer:
            return "sequence_too_small"
        stream.texts += _texts(command.bodies)
        stream.writer = stream.writer if command.writer_seq is None else command.writer_seq
        if batch is not None:
            stream.producers[batch.producer] = batch.epoch, batch.seq
        stream.closed = command.closes
        return "appended"

    @staticmethod
    def _fits(command: durable_commands.AppendDurable, stream: ModelStream) -> bool:
        return not command.bodies or command.kind == stream.kind

    def run(self, command: Command) -> str:
        """What comes of it."""
        if isinstance(command, durable_commands.CreateDurable):
            return self.create(command)
        if isinstance(command, durable_commands.AppendDurable):
            return self.append(command)
        assert isinstance(command, Delete)
        return self.delete(command.streams[0])

    def delete(self, name: str) -> str:
        if self.streams.pop(name, None) is None:
            return "0"
        self.hidden.add(name)
        while free := [one for one in self.hidden if one not in self.sources.values()]:
            for one in free:
                self.hidden.discard(one)
                self.sources.pop(one, None)
        return "1"


def _texts(bodies: object) -> list[str]:
    return [entries.pairs_of(b'{"id":"0-0"' + body)[0][1].decode() for body in bodies]  # type: ignore[attr-defined]


def _run(house: House, command: Command) -> str:
    try:
        return word_of(house.run(command))
    except EngineError as refusal:
        return word_of(refusal)


def word_of(reply: object) -> str:
    """What came of a command, in a word."""
    if isinstance(reply, EngineError):
        return reply.code
    if isinstance(reply, DurableCreated):
        return "created" if reply.created else "found"
    if isinstance(reply, DurableAppended):
        return "repeated" if reply.duplicate else "appended"
    return str(reply)


names, numbers = st.sampled_from((*NAMES, "a", "a", "a")), st.integers(0, 3)
bodies = st.lists(numbers.map(lambda number: entries.body([("data", f"{number}")])), max_size=2)
batches = st.none() | st.builds(
    durable_commands.ProducerBatch,
    st.sampled_from("ppq"),
    st.sampled_from((0, 0, 0, 1, 2)),
    st.sampled_from((0, 0, 1, 1, 2)),
)
sometimes = st.integers(0, 19).map(lambda number: number == 19)
creating = st.builds(
    durable_commands.CreateDurable,
    stream=names,
    media=st.sampled_from(MEDIA),
    config=st.sampled_from((b"", b"c")),
    bodies=bodies,
    closes=sometimes,
)
forking = st.builds(
    durable_commands.CreateDurable,
    stream=names,
    media=st.sampled_from(("", "", *MEDIA)),
    config=st.just(b"f"),
    bodies=bodies,
    fork=st.builds(durable_commands.ForkPoint, names),
).filter(lambda command: command.fork is not None and command.stream != command.fork.source)
appending = st.builds(
    durable_commands.AppendDurable,
    stream=names,
    bodies=bodies,
    kind=st.integers(0, 9).map(lambda number: MEDIA[number == 9]),
    writer_seq=st.sampled_from((None, None, None, b"1", b"10", b"2", b"20")),
    batch=batches,
    closes=sometimes,
).filter(lambda command: bool(command.bodies) or command.closes)
deleting = names.map(lambda name: Delete(streams=[name]))
again = st.sampled_from(("restart", "rewrite"))
KINDS = (creating, forking, deleting, again, *[appending] * 12)
# Two streams, so that there is something to go wrong.
beginning = [durable_commands.CreateDurable(stream=name, media=MEDIA[0]) for name in NAMES[:2]]
any_step = st.sampled_from(KINDS).flatmap(lambda kind: kind)


@settings(max_examples=halves.some(300), deadline=None)
@given(st.lists(any_step, min_size=10, max_size=40))
def test_histories_give_what_the_model_gives(steps: list[Command | str]) -> None:
    house, model = House(), Model()
    for step in [*beginning, *steps]:
        if isinstance(step, str):
            getattr(house, step)()
            continue
        assert _run(house, step) == model.run(step), step
        house.pass_ms(1)
    for name in NAMES:
        there = model.streams.get(name)
        if there is None:
            assert _run(house, durable_commands.DescribeDurable(stream=name)) == (
                "stream_gone" if name in model.hidden else "None"
            )
            continue
        assert [value.decode() for ((_, value),) in house.pairs(name)] == there.texts
        assert (Closed.of(house.key(name)) is not None) == there.closed
    house.check()
