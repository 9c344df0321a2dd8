"""No JSON takes more memory to be read than is held for it, and none keeps the loop: shapes of 8 MB at every
door that takes JSON.

Knows: how each operation and each frame is reached, where in a body a value may stand (by their documents).
Must never know: who reads what, how much is held for it.

Each case is a process of its own: what others have left in the allocator would hide what it takes. By hand,
all shapes of one operation: `pytest tests/app/test_weights_of_bodies.py -k putSchedule`.
"""

import asyncio
import json
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import httpx
import pytest

from app.doors.durable import door
from app.doors.websocket import frames
from app.main import ROUTES, create_app
from engine import SystemClock
from tests import halves
from tests.app.shapes import ENTRIES, SHAPES, Shape, lines_of, list_of
from tests.app.sockets import Raw, masked
from tests.app.weighed import SETTINGS
from tests.preloaded import Preloaded
from tests.turns import TURN_S_MAX

JSON: Final = "application/json"
LINES: Final = "application/x-ndjson"
# Beside what is held: what a thread may take without asking, 4 MiB, and what the allocator keeps.
SLACK_BYTES: Final = 5 << 20
# What the engine's turn takes that stores a body: its record, the entries, what is written. There is one turn
# at a time, whoever asks.
STORED_COPIES: Final = 5
# What is sent before the gateway is weighed, so that what is made once is there: it is read in a thread.
WARM_BYTES: Final = 300 << 10
TRIES: Final = 3
# Beside very many other processes a turn takes twice as long; one that others notice takes far longer.
LONGEST_S: Final = 2 * TURN_S_MAX
LATE_S: Final = 60.0
# A shape stands here in a body.
HERE: Final = "@"
NAMES: Final = {"group": "g", "consumer": "c", "id": "1-0", "schedule": "n", "token": "t", "hook": "h"}


class Row(NamedTuple):
    """How an operation is reached: its media type, where shapes stand beside what its document names, and
    where a list of entries does, if it takes one.
    """

    media: str = JSON
    places: Sequence[str] = ()
    batch: str | None = None


ENTRY_PLACES: Final = ('{"fields":[["a",@]]}', '{"id":@,"fields":{"a":"1"}}', '{"a":@}', "[@]", '[{"a":@}]')
PLAIN: Final = Row()
# Others are reached by their documents alone.
ROWS: Final[Mapping[str, Row]] = {
    "runCommand": Row(places=('["XADD","s","*","a",@]', '["SET",@]')),
    "runPipeline": Row(places=('[["XADD","s","*","a",@]]', '[["PING"],@]')),
    "runTransaction": Row(places=('[["XADD","s","*","a",@]]', '[["PING"],@]')),
    "updateStream": Row("application/merge-patch+json"),
    "addEntries": Row(
        places=(*ENTRY_PLACES, '{"entries":[{"fields":{"a":@}}]}', '{"entries":[@]}'), batch="@"
    ),
    "addEntryBatch": Row(
        places=('{"entries":[{"fields":{"a":"1"}},{"fields":{"a":@}}]}', '{"entries":[@]}'),
        batch='{"entries":@}',
    ),
    "addEntriesNdjson": Row(
        LINES, ('{"a":@}', '{"a":"1"}\n{"fields":{"a":@}}', '{"fields":@}', "@\n@"), batch="@"
    ),
    "addRawEntry": Row("application/octet-stream"),
    "closeStream": Row(
        places=('{"reason":"x","entries":[{"fields":{"a":@}}]}',), batch='{"reason":"x","entries":@}'
    ),
    "putSchedule": Row(places=('{"in_ms":@,"fields":{"a":"1"}}', '{"in_ms":1000,"fields":{"a":@}}')),
    "publish": Row(
        places=('{"streams":{"s":[{"fields":{"a":@}}],"r":[{"fields":{"a":"1"}}]}}',),
        batch='{"streams":{"s":@}}',
    ),
    "updateGroup": Row("application/merge-patch+json"),
    "createDurable": Row(places=("[@]", '[{"a":@},1]'), batch="@"),
    "appendDurable": Row(places=("[@]", '[{"a":@},1]'), batch="@"),
    "deleteDurable": PLAIN,
    "receiveHook": Row("application/octet-stream"),
}
PUBLISH_FRAME: Final = Row(batch='{"op":"publish","stream":"s","ref":1,"entries":@}')
OPERATIONS: Final = {
    one.operation_id: one
    for one in (*ROUTES, *door.OPERATIONS)
    if one.method not in {"GET", "HEAD", "OPTIONS"}
}
FRAMES: Final = [frame.__struct_config__.tag for frame in frames.ClientFrame.__subclasses__()]


# ---- where shapes stand


@cache
def document(path: str) -> Any:
    """One of the gateway's own documents."""

    async def ask() -> Any:
        transport = httpx.ASGITransport(create_app(SETTINGS, SystemClock()))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return (await client.get(path)).json()

    with asyncio.Runner() as runner:
        return runner.run(ask())


def places_of(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[str]:
    """Each place in what a schema describes, as JSON with `HERE` in it: from the outermost inwards."""
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    yield HERE
    for name, inner in schema.get("properties", {}).items():
        yield from (f'{{"{name}":{place}}}' for place in places_of(inner, schemas))
    if isinstance(schema.get("additionalProperties"), Mapping):
        yield from (f'{{"s":{place}}}' for place in places_of(schema["additionalProperties"], schemas))
    if schema.get("items"):
        yield from (f"[{place}]" for place in places_of(schema["items"], schemas))
    for inner in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        yield from places_of(inner, schemas)


def content_of(operation: str) -> Mapping[str, Any] | None:
    """What its document says of its body, by media type; None where that does not describe it."""
    paths = document("/openapi.json")["paths"].values()
    found = [one for path in paths for one in path.values() if one["operationId"] == operation]
    return found[0].get("requestBody", {}).get("content", {}) if found else None


def body_places(operation: str) -> Sequence[str]:
    """Where a shape stands in its body."""
    schemas = document("/openapi.json")["components"]["schemas"]
    content = content_of(operation) or {}
    described = [place for one in content.values() for place in places_of(one["schema"], schemas)]
    return list(dict.fromkeys([HERE, *ROWS.get(operation, PLAIN).places, *described]))


def frame_places(op: str) -> Sequence[str]:
    """Where a shape stands in a frame: as each of its members, with the others of its example."""
    described = document("/asyncapi.json")["components"]
    example = described["messages"][op]["examples"][0]["payload"]
    members = described["schemas"][described["messages"][op]["payload"]["$ref"].rpartition("/")[2]][
        "properties"
    ]
    places = [HERE]
    for name, inner in members.items():
        others = json.dumps({key: value for key, value in example.items() if key != name})[1:-1]
        before = f"{{{others}, " if others else "{"
        places += [f'{before}"{name}":{place}}}' for place in places_of(inner, described["schemas"])]
    return list(dict.fromkeys(places))


BUILT: Final[Mapping[str, Shape]] = {
    **SHAPES,
    **{name: partial(list_of, entry) for name, entry in ENTRIES.items()},
    **{f"lines: {name}": partial(lines_of, entry) for name, entry in ENTRIES.items()},
}


def filled(place: str, shape: str, size: int) -> bytes:
    """The body of this size at most."""
    around, count = place.replace(HERE, "").encode(), place.count(HERE)
    value = BUILT[shape]((size - len(around)) // count)
    return place.encode().replace(HERE.encode(), value)


def cases(door_name: str, places: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Shapes and their places: each shape once, at one place after the other; and so that each door begins
    elsewhere.
    """
    first = sum(door_name.encode())
    turned = {name: places[(first + at) % len(places)] for at, name in enumerate(SHAPES)}
    row = ROWS.get(door_name, PUBLISH_FRAME if door_name == "frame publish" else PLAIN)
    if row.batch is not None:
        turned |= {f"lines: {name}" if row.media == LINES else name: row.batch for name in ENTRIES}
    for name in turned if halves.are_whole() else OFTEN_SHAPES:
        yield name, turned[name]


# ---- weighing


Weigh = Callable[[str, str, str, Path], "Figures"]


class Figures(NamedTuple):
    """What a request took: until it was read, and until it was answered."""

    read_bytes: int
    held_to_read_bytes: int
    taken_bytes: int
    held_bytes: int
    turn_s: float
    status: int
    sent_bytes: int

    @property
    def is_within(self) -> bool:
        """Whether that is what it may take."""
        return (
            self.read_bytes <= self.held_to_read_bytes + SLACK_BYTES
            and self.taken_bytes <= self.held_bytes + SLACK_BYTES + STORED_COPIES * self.sent_bytes
            and self.turn_s <= LONGEST_S
        )

    def __str__(self) -> str:
        mib = 1 << 20
        return (
            f"{self.status}: {self.read_bytes / mib:.1f} MiB to read {self.sent_bytes / mib:.1f}, of which "
            f"{self.held_to_read_bytes / mib:.1f} are held; {self.taken_bytes / mib:.1f} in all; "
            f"{self.turn_s * 1_000:.0f} ms in one turn of reading"
        )


class Weighed:
    """A gateway that weighs what is asked of it (`tests.app.weighed`)."""

    def __init__(self, directory: Path) -> None:
        log = directory / "log"
        directory.mkdir()
        self._ours, theirs = socket.socketpair()
        self._ours.settimeout(LATE_S)
        self._said = self._ours.makefile("rb")
        with theirs, log.open("ab") as said:
            streams = [theirs.fileno(), said.fileno(), said.fileno()]
            self._process = Preloaded(
                [str(log.with_name("data"))], streams, {**os.environ}, "tests.app.weighed"
            )
        self.port: int = self._next()["port"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._said.close()
        self._ours.close()
        self._process.wait(LATE_S)

    def _next(self) -> dict[str, Any]:
        line = self._said.readline()
        assert line, "the gateway has ended"
        told: dict[str, Any] = json.loads(line)
        return told

    def begin(self) -> None:
        """Weigh from now on."""
        self._ours.sendall(b"begin")
        self._next()

    def end(self, status: int, sent_bytes: int) -> Figures:
        """What it took since then."""
        self._ours.sendall(b"end")
        return Figures(status=status, sent_bytes=sent_bytes, **self._next())

    def ask(self, head: str, body: bytes, *, sends: bool = True) -> tuple[int, str]:
        """Status and text of the answer, on a connection of its own; status 0 if it is cut. What expects an
        answer before it `sends` its body ends with that.
        """
        lines = [head, "Host: localhost", f"Content-Length: {len(body)}"]
        lines.append("Connection: close" if sends else "Expect: 100-continue")
        with (
            socket.create_connection(("127.0.0.1", self.port), LATE_S) as link,
            link.makefile("rb") as answer,
        ):
            with suppress(ConnectionError):
                link.sendall("\r\n".join([*lines, "", ""]).encode())
                if sends:
                    link.sendall(body)
            try:
                status = int(answer.readline().split()[1])
                length = 0
                while line := answer.readline().strip():
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split()[1])
                return status, answer.read(length).decode()
            except ConnectionError:
                return 0, ""


def head_of(operation: str, stream: str) -> str:
    """The first lines of a request."""
    found = OPERATIONS[operation]
    path = found.template.replace(":path", "").format(**NAMES, stream=stream)
    return f"{found.method} {path} HTTP/1.1\r\nContent-Type: {ROWS.get(operation, PLAIN).media}"


def prepare(gateway: Weighed) -> None:
    """Streams of both kinds with an entry and a group: one to weigh, one to warm up with."""
    for stream in "sw":
        made = [
            (f"POST /v1/streams/{stream}/entries HTTP/1.1", b'{"fields":{"a":"1"}}'),
            (f"POST /v1/streams/{stream}/groups HTTP/1.1", b'{"name":"g","start":"0"}'),
            (f"PUT /v1/stream/{stream}d HTTP/1.1", b"[1]"),
        ]
        for head, body in made:
            status, text = gateway.ask(f"{head}\r\nContent-Type: {JSON}", body)
            assert status == 201, text


def weigh_body(operation: str, shape: str, place: str, directory: Path) -> Figures:
    """A request with the longest body that the operation takes."""
    names = ("sd2", "wd2") if operation == "createDurable" else ("sd", "wd")
    names = names if operation in {"createDurable", "appendDurable", "deleteDurable"} else ("s", "w")
    with Weighed(directory) as gateway:
        prepare(gateway)
        head, size = head_of(operation, names[0]), SETTINGS.body_bytes_max
        gateway.ask(head_of(operation, names[1]), filled(place, shape, WARM_BYTES))
        status, refusal = gateway.ask(head, bytes(size), sends=False)
        if status == 413:
            most = re.search(r"at most (\d+) bytes", refusal)
            assert most is not None, refusal
            size = int(most[1])
        body = filled(place, shape, size)
        assert len(body) <= size
        gateway.begin()
        status, _ = gateway.ask(head, body)
        return gateway.end(status, len(body))


def weigh_frame(_: str, shape: str, place: str, directory: Path) -> Figures:
    """A frame of the largest size; its status is the opcode of the answer."""
    with Weighed(directory) as gateway, Raw(gateway.port) as raw:
        prepare(gateway)
        assert raw.handshake()[0] == 101
        size = json.loads(raw.read()[1])["limits"]["frame_bytes_max"]
        raw.write(0x1, filled(place, shape, WARM_BYTES))
        if raw.read()[0] == 0x8:
            raise AssertionError("the frame to warm up with has ended the connection")
        frame = masked(0x1, filled(place, shape, size))
        gateway.begin()
        raw.socket.sendall(frame)
        return gateway.end(raw.read()[0], len(frame))


def failures_of(door_name: str, places: Sequence[str], weigh: Weigh, directory: Path) -> list[str]:
    """What is wrong with the shapes at a door."""
    wrong, number = [], count()
    for shape, place in cases(door_name, places):
        figures, tries = weigh(door_name, shape, place, directory / f"{next(number)}"), 1
        # A busy machine may take as long once.
        while not figures.is_within and tries < TRIES:
            figures, tries = weigh(door_name, shape, place, directory / f"{next(number)}"), tries + 1
        if not figures.is_within:
            wrong.append(f"{shape} at {place}: {figures}")
    return wrong


# ---- the tests


@pytest.mark.early
def test_every_operation_is_reached() -> None:
    """By the members in its document, as each frame, or by its row."""
    assert ROWS.keys() <= OPERATIONS.keys()
    for operation in OPERATIONS.keys() - ROWS.keys():
        content = content_of(operation)
        is_described = content is not None and JSON in content and len(body_places(operation)) > 1
        assert is_described or content == {}, f"ROWS says what the body of {operation} is"
    assert len(SHAPES) >= 22


# What is tried where not everything is: it takes minutes.
OFTEN_SHAPES: Final = ("ones", "escaped backslashes", "lists of 30 levels")
OFTEN: Final = ("addEntries", "addEntryBatch", "appendDurable")


@pytest.mark.halved
@pytest.mark.parametrize("operation", OPERATIONS if halves.are_whole() else OFTEN)
def test_a_body_takes_what_is_held_for_it(operation: str, tmp_path: Path) -> None:
    """Each shape as the value of one member after the other."""
    assert not failures_of(operation, body_places(operation), weigh_body, tmp_path)


@pytest.mark.halved
@pytest.mark.skipif(not halves.are_whole(), reason="frames take minutes: make soak")
@pytest.mark.parametrize("op", FRAMES)
def test_a_frame_takes_what_is_held_for_it(op: str, tmp_path: Path) -> None:
    """The same of WebSocket frames."""
    assert not failures_of(f"frame {op}", frame_places(op), weigh_frame, tmp_path)
