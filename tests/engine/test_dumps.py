"""DUMP and RESTORE: what comes back, what is refused, and what a crafted payload can do."""

import random
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, Final
from zlib import crc32

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import entries
from engine.commands import AppendDurable, CreateDurable, ProducerBatch, UpdateStream, XAdd
from engine.commands.execution import execute
from engine.dump import DUMP_BYTES_MAX, DUMP_COST_MAX
from engine.keyspace import Caps, Keyspace
from engine.replies import DurableAppended
from tests import halves
from tests.engine.images import image
from tests.engine.real_redis import RealRedis
from tests.engine.steps import commands
from tests.engine.test_renaming import rich, shown
from tests.engine.world import World

BAD: Final = "-ERR Bad data format"
WRONG: Final = "-ERR DUMP payload version or checksum are wrong"
BUSY: Final = "-BUSYKEY Target key name already exists."


def dumped(world: World, name: str = "s") -> str:
    payload = world.call("DUMP", name)
    assert isinstance(payload, str)
    assert payload.startswith("WEIRDUMP1:"), payload
    return payload


def sealed(text: str | bytes) -> bytes:
    """The text with a checksum that is right."""
    raw = text.encode() if isinstance(text, str) else text
    return b"WEIRDUMP1:%08x:%b" % (crc32(raw), raw)


def text_of(payload: str) -> str:
    return payload.partition("{")[1] + payload.partition("{")[2]


def state(world: World, name: str) -> Any:
    """All that is kept of a stream, but which generation it is and what the archive has of it."""
    whole: Any = image(world.keyspace)
    return {key: value for key, value in whole["keys"][name].items() if key != "_generation"}


def test_a_missing_stream_has_no_dump() -> None:
    """Nor one that has expired."""
    world = World()
    assert world.call("DUMP", "s") is None
    world.add("s", "1-0")
    world.call("PEXPIRE", "s", 5)
    world.pass_ms(5)
    assert world.call("DUMP", "s") is None


def test_a_dump_restores_everything() -> None:
    """Into another keyspace, and beside the stream itself; the lifetime is given anew."""
    world = rich()
    world.execute(UpdateStream(stream="s", retention={"max_len": 50, "keep_unacknowledged": True}))
    payload = dumped(world)
    assert world.call("RESTORE", "t", 5000, payload) == "OK"
    assert world.signalled == ["t"]
    assert shown(world, "t") == shown(world, "s")
    assert state(world, "t") == state(world, "s")
    assert world.keyspace.keys["t"].generation != world.keyspace.keys["s"].generation
    other = World()
    other.call("RESTORE", "s", world.now_ms + 5000, payload, "ABSTTL")
    assert state(other, "s") == state(world, "s")
    assert dumped(other) == payload
    world.check()
    other.check()


def test_a_dump_has_the_metadata_of_entries() -> None:
    """In every form of an entry; metadata without a name are none."""
    world = World()
    bodies = [
        entries.with_meta(entries.body(pairs), {"traceparent": "t"})
        for pairs in ([("a", "1")], [("a", b"\xff")], [("a", "1"), ("a", "2")])
    ]
    world.execute(XAdd(stream="s", bodies=bodies))
    payload = dumped(world)
    assert world.call("RESTORE", "t", 0, payload) == "OK"
    assert state(world, "t") == state(world, "s")
    odd = text_of(payload).replace('{"traceparent":"t"}', "{}", 1)
    assert world.call("RESTORE", "u", 0, sealed(odd)) == BAD
    world.check()


def durable(media: str = "application/json") -> World:
    """A stream of Durable Streams: sealed nodes, producers, a sequence, a lifetime, an end."""
    world = World()
    world.call("CONFIG", "SET", "stream-node-max-entries", 3)
    world.execute(CreateDurable(stream="s", media=media, ttl_ms=60_000, config=b"c" * 16))
    for seq in range(8):
        world.execute(
            AppendDurable(
                stream="s",
                bodies=[entries.data_body(b'{"n":%d}' % seq)],
                kind=media,
                writer_seq=b"%d" % seq,
                batch=ProducerBatch("pq"[seq % 2], 1, seq // 2),
            )
        )
        world.pass_ms(1)
    world.call("WEIR.CLOSE", "s", "REASON", "done")
    return world


@pytest.mark.parametrize("media", ["application/json", "text/plain", "application/octet-stream"])
def test_a_dump_restores_a_stream_of_durable_streams(media: str) -> None:
    """With its media type, producers, sequence, end, and with a lifetime that goes on to slide."""
    world = durable(media)
    assert world.call("RESTORE", "t", 60_000, dumped(world)) == "OK"
    there, here = (world.keyspace.keys[name].durable for name in "st")
    assert there is not None
    assert here is not None
    assert [getattr(here, name) for name in here.__slots__] == [
        getattr(there, name) for name in there.__slots__
    ]
    assert state(world, "t") == state(world, "s") | {"expires_at_ms": world.now_ms + 60_000}
    repeated = AppendDurable(stream="t", bodies=[], kind=media, batch=ProducerBatch("q", 1, 3))
    reply = execute(world.keyspace, repeated, world.now_ms).reply
    assert isinstance(reply, DurableAppended)
    assert reply.duplicate
    world.check()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("application/json", "application/json\\r\\nx: y"),
        ("application/json", "text/\\n"),
        ("application/json", "json"),
        ('{\\"n\\":3}', '{\\"n\\":'),
        ('"data"', '"text"'),
        ('"producers":[["p"', '"producers":[["q"'),
        ('"producers":[["p"', '"producers":[[""'),
    ],
)
def test_what_no_stream_of_durable_streams_has_is_refused(old: str, new: str) -> None:
    """A media type that would end a header, entries that its readers cannot read, a producer twice."""
    world = durable()
    text = text_of(dumped(world))
    assert old in text
    assert world.call("RESTORE", "t", 0, sealed(text.replace(old, new, 1))) == BAD


@settings(max_examples=halves.some(40))
@given(steps=st.lists(commands(newest=True), max_size=25))
def test_a_dump_of_any_history_restores_it(steps: list[Any]) -> None:
    """And what both do from there on is the same."""
    world = World()
    world.call("CONFIG", "SET", "stream-node-max-entries", 3)
    for step in steps:
        made = step if hasattr(step, "words") else step.after((0, 0))
        world.call(*made.words)
    for name in world.keyspace.names():
        world.execute(UpdateStream(stream=name))
        world.call("PERSIST", name)
        assert world.call("RESTORE", f"{name}2", 0, dumped(world, name)) == "OK"
        assert state(world, f"{name}2") == state(world, name)
        for copy in (name, f"{name}2"):
            world.call("XTRIM", copy, "MAXLEN", "~", 2)
            world.call("XADD", copy, "9999999999999-0", "a", "1")
        assert state(world, f"{name}2") == state(world, name)
    world.check()


def test_restoring_replaces_only_when_asked_to() -> None:
    """BUSYKEY, REPLACE."""
    world = rich()
    payload = dumped(world)
    world.add("t", "5-0")
    assert world.call("RESTORE", "t", 0, payload) == BUSY
    assert world.call("XLEN", "t") == 1
    assert world.call("RESTORE", "t", 0, payload, "REPLACE") == "OK"
    assert world.call("XLEN", "t") == world.call("XLEN", "s")
    world.check()


def test_a_time_that_is_over_leaves_no_stream() -> None:
    """And with REPLACE takes away what was there, as in Redis."""
    world = rich()
    payload = dumped(world)
    assert world.call("RESTORE", "t", 1, payload, "ABSTTL") == "OK"
    assert world.call("EXISTS", "t") == 0
    assert world.call("RESTORE", "s", world.now_ms, payload, "ABSTTL", "REPLACE") == "OK"
    assert world.call("EXISTS", "s") == 0
    world.check()


def test_limits_hold_for_what_is_restored() -> None:
    """Streams, groups, consumers."""
    payload = dumped(rich())
    for caps in (Caps(streams_max=0), Caps(groups_max=0), Caps(consumers_max=1)):
        world = World()
        world.keyspace = Keyspace(caps=caps)
        assert str(world.call("RESTORE", "t", 0, payload)).startswith("-ERR no room for another"), caps
        assert not world.keyspace.keys


def test_more_than_one_turn_may_write_is_refused() -> None:
    """By entries and by bytes; the last that may."""
    world = World()
    world.call("CONFIG", "SET", "stream-node-max-entries", 0)
    world.call("CONFIG", "SET", "stream-node-max-bytes", 0)
    most = DUMP_COST_MAX - 2
    for number in range(1, most + 1):
        world.call("XADD", "s", f"{number}-0", "a", "1")
    payload = dumped(world)
    world.call("XADD", "s", f"{most + 1}-0", "a", "1")
    assert str(world.call("DUMP", "s")).startswith("-ERR the stream is too large to dump")
    description = msgspec.json.decode(text_of(payload))
    description["last_id"] = f"{most + 1}-0"
    description["entries_added"] += 1
    description["open"]["entries"].append({"id": f"{most + 1}-0", "fields": {"a": "1"}})
    longer = sealed(msgspec.json.encode(description))
    assert str(world.call("RESTORE", "t", 0, longer)).startswith("-ERR the payload is too large to restore")
    assert world.call("RESTORE", "t", 0, payload) == "OK"
    long = World()
    long.call("XADD", "s", "1-0", "a", "x" * DUMP_BYTES_MAX)
    assert str(long.call("DUMP", "s")).startswith("-ERR the stream is too large to dump")
    too_long = sealed(" " * (DUMP_BYTES_MAX - len(sealed("")) + 1))
    assert str(long.call("RESTORE", "t", 0, too_long)).startswith("-ERR the payload is too large to restore")
    assert long.call("RESTORE", "t", 0, too_long[:-1]) == WRONG


def test_what_is_too_large_is_refused_before_each_name_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be tens of thousands, a microsecond each."""
    payload = dumped(rich())
    description = msgspec.json.decode(text_of(payload))
    group = next(iter(description["groups"].values()))
    group["consumers"] |= {str(number): [0, 0] for number in range(DUMP_COST_MAX)}
    monkeypatch.setattr("app.names.check_text", None)
    text = sealed(msgspec.json.encode(description))
    assert str(World().call("RESTORE", "t", 0, text)).startswith("-ERR the payload is too large to restore")


@pytest.mark.parametrize(
    "payload",
    [
        "",
        "x",
        "WEIRDUMP1:",
        "WEIRDUMP1:00000000:",
        b"\x00\xc3\x0b\x00\x9c\xb6\xc1\xdd",
        sealed("{}").replace(b"P1", b"P2"),
    ],
)
def test_what_is_no_dump_is_refused(payload: str | bytes) -> None:
    """As Redis refuses it."""
    assert World().call("RESTORE", "t", 0, payload) in (WRONG, BAD)


def test_every_flipped_bit_is_found() -> None:
    """By the checksum."""
    payload = dumped(rich()).encode()
    world = World()
    for at in range(len(payload)):
        damaged = bytearray(payload)
        damaged[at] ^= 1 << at % 8
        assert world.call("RESTORE", "t", 0, bytes(damaged)) == WRONG, at
    for length in range(0, len(payload), 7):
        assert world.call("RESTORE", "t", 0, payload[:length]) == WRONG, length


# What stands in the place of values in a crafted payload.
ODD: Final[tuple[object, ...]] = (
    *(None, True, -1, 0, 1, 1 << 62, (1 << 63) - 1, 1 << 63, 1 << 128, 1e300, "", "0-0", "1-0", "5-0", "7-0"),
    *("18446744073709551615-18446744073709551615", "18446744073709551616-0", "01-0", "1", "a", "..", "a/b"),
    *("base64", "%%", [], {}, [[]], ["1-0"], {"a": "1"}, {"1-0": 1 << 62}, {"9-0": 25}),
)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each place in a JSON value: what holds it, and under which key."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from places(value[key])


def crafted(description: Any, chance: random.Random) -> bytes:
    """One to three changes anywhere."""
    for _ in range(chance.randint(1, 3)):
        holder, key = chance.choice(list(places(description)))
        how = chance.randrange(4)
        if how == 0:
            del holder[key]
        elif how == 1 and isinstance(holder, list):
            holder.insert(chance.randrange(len(holder) + 1), holder[key])
        elif how == 2 and isinstance(holder, dict):
            holder[str(chance.choice(ODD))] = holder.pop(key)
        else:
            holder[key] = chance.choice(ODD)
    return sealed(msgspec.json.encode(description))


@pytest.mark.no_cover
@pytest.mark.parametrize("make", [rich, durable])
def test_a_crafted_payload_is_refused_or_makes_a_sound_stream(make: Callable[[], World]) -> None:
    """With a sound checksum: what is restored can be read, written, snapshotted and removed."""
    text = text_of(dumped(make()))
    chance = random.Random(7)
    world = World()
    restored = 0
    for _ in range(1_000):
        payload = crafted(msgspec.json.decode(text), chance)
        reply = world.call("RESTORE", "t", 0, payload)
        if reply != "OK":
            assert str(reply) == BAD, payload
            assert not world.keyspace.keys
            continue
        restored += 1
        world.check()
        for words in ("XRANGE t - +", "XINFO STREAM t FULL COUNT 0", "XTRIM t MAXLEN 2", "XLEN t"):
            assert not str(world.call(*words.split())).startswith("-"), payload
        for group in list(world.keyspace.keys["t"].groups):
            world.call("XAUTOCLAIM", "t", group, "c", 0, "-")
            world.call("XREADGROUP", "GROUP", group, "c", "STREAMS", "t", ">")
        world.call("XADD", "t", "*", "a", "1")
        world.check()
        assert world.call("DEL", "t") == 1
    assert 20 < restored < 980


@pytest.mark.no_cover
@pytest.mark.parametrize("make", [rich, durable])
def test_flipped_bits_with_a_new_checksum(make: Callable[[], World]) -> None:
    """No text makes more than an error or a sound stream."""
    text = text_of(dumped(make())).encode()
    chance = random.Random(11)
    world = World()
    for _ in range(1_000):
        damaged = bytearray(text)
        for _flip in range(chance.randint(1, 3)):
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        reply = world.call("RESTORE", "t", 0, sealed(bytes(damaged[: chance.randint(1, 2 * len(damaged))])))
        assert reply in ("OK", BAD)
        world.check()
        world.call("DEL", "t")


def test_entries_are_stored_in_the_usual_form() -> None:
    """Blanks, escapes and other orders of members do not reach readers."""
    world = World()
    world.add("s", "1-0")
    text = text_of(dumped(world))
    odd = re.sub(
        r'\{"id":"1-0","fields":\{.*?\}\}', r'{ "fields" : {"\\u0061":"\\/\\n"},\n "id":"1-0" }', text
    )
    assert odd != text
    assert world.call("RESTORE", "t", 0, sealed(odd)) == "OK"
    assert world.keyspace.keys["t"].stream.get(1 << 64) == b'{"id":"1-0","fields":{"a":"/\\n"}}'
    both = text.replace(
        '}}],"deleted"', '},"encoding":"base64","pairs":[["a","/w=="],["a","YQ=="]]}],"deleted"'
    )
    assert both != text
    assert world.call("RESTORE", "u", 0, sealed(both)) == "OK"
    assert world.call("XRANGE", "u", "-", "+") == [["1-0", ["a", b"\xff", "a", "a"]]]
    world.check()


WORDS: Final = (
    *("DUMP", "DUMP s t", "DUMP missing", "RESTORE t 0", "RESTORE s 0 x", "RESTORE t x x", "RESTORE t -1 x"),
    *("RESTORE t 0 x", "RESTORE s x x", "RESTORE s x x REPLACE", "RESTORE t 0 x ZZ", "RESTORE t x x ZZ"),
    *(
        "RESTORE t 0 x IDLETIME",
        "RESTORE t 0 x IDLETIME x",
        "RESTORE t 0 x IDLETIME -1",
        "RESTORE t 0 x FREQ",
    ),
    *(
        "RESTORE t 0 x IDLETIME 0",
        "RESTORE t 0 x FREQ 255",
        "RESTORE t 0 x FREQ 256",
        "RESTORE t 0 x FREQ -1",
    ),
    *("RESTORE t 0 x FREQ 1 IDLETIME 1", "RESTORE t 0 x IDLETIME 1 FREQ 1", "RESTORE t 0 x FREQ x"),
    *("RESTORE t 0 x IDLETIME 1 IDLETIME 2", "RESTORE t 0 x absttl replace", "RESTORE s 0 x ABSTTL"),
    *("RESTORE t 0 x FREQ 1 FREQ 2", "RESTORE s 0 x FREQ 256", "RESTORE t 9223372036854775808 x"),
)


@pytest.mark.parametrize("words", WORDS)
def test_every_refusal_beside_redis(server: RealRedis, words: str) -> None:
    """Text and order."""
    server.empty()
    world = World(time.time_ns() // 1_000_000)
    for line in ("XADD s 5-0 a 1", words):
        reply, expected = world.call(*line.split()), server.call(*line.split())
        assert (reply.replace("-ERR ", "-") if isinstance(reply, str) else reply) == expected, line
