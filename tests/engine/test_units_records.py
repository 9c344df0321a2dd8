"""The log's vocabulary: every record comes back as it was, in bytes that version 1 will always read.

`golden/records-v1.json` has the payload of one record of each kind, in hexadecimal. A new kind gets a line
more; a line that is there never changes.
"""

import json
from pathlib import Path
from typing import Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import entries
from engine.keyspace import Keyspace
from engine.nodes import Text
from engine.parts import (
    ages,
    closing,
    deferrals,
    durable,
    idempotence,
    keeping,
    ordering,
    pauses,
    redelivery,
    schedules,
)
from engine.record import Record
from engine.records import changes, restored
from engine.records.durable import ForkStored, ForkStream, NoteFork, RestoreHidden
from engine.records.payload import KINDS, NewerRecordError, decode, encode, replay
from engine.records.snapshot import snapshot
from tests.engine.images import image
from tests.engine.test_renaming import rich
from tests.engine.world import World

GOLDEN: Final = Path(__file__).parents[1] / "golden" / "records-v1.json"
FIRST, SECOND = (1_526_919_030_474 << 64) + 55, (1_526_919_030_474 << 64) + 56
TEXTS: Final = [
    b'{"id":"1526919030474-55","fields":{"a":"1"}}',
    b'{"id":"1526919030474-56","fields":{"a":"/w=="},"encoding":"base64"}',
]
# The texts under zstd, as one version of it packed them: others may pack otherwise, and must read this.
PACKED: Final = bytes.fromhex(
    "28b52ffd207075020092c4101880b51a03f3986fbb7960fd0633128a0436018d6eaa31c2463b524fb6631d10a11320f1"
    "5d76c606832abb9ff5f6d4a50b3c985c4e4940063285596729229d75079f0102006016858a2a03"
)
SAMPLES: Final[list[Record]] = [
    changes.CreateStream("orders", "0123456789abcdef", 100, 101),
    changes.RemoveStream("orders"),
    changes.RemoveAll(),
    changes.Regenerate(b"sixteen bytes of"),
    changes.SetMetadata("token:a", b'{"id":"a"}'),
    changes.Append("orders", TEXTS, [FIRST, SECOND]),
    changes.Cut("orders", SECOND),
    changes.Remove("orders", [FIRST, SECOND], tombstone=True),
    changes.SetCounters("orders", SECOND, 7, FIRST),
    keeping.Describe("orders", 10, None, 1 << 40, True, False, FIRST),  # noqa: FBT003 - a record's fields
    changes.SetLifetime("orders", 1_700_000_000_000),
    changes.RenameStream("orders", "bills", "0123456789abcdef"),
    closing.CloseStream("orders", 1_700_000_000_000, "done"),
    schedules.PutSchedule(
        "orders", "größe", b',"fields":{"a":"1"}}', '{"every_ms":1000}', 1_700_000_000_000, 3
    ),
    schedules.DropSchedule("orders", "größe"),
    changes.CopyStream("bills", "orders", "0123456789abcdef"),
    changes.CreateGroup("orders", "größe", FIRST, None),
    changes.MoveGroup("orders", "g", SECOND, 2),
    changes.RemoveGroup("orders", "g"),
    changes.CreateConsumer("orders", "g", "a", 1_700_000_000_000),
    changes.RemoveConsumer("orders", "g", "a"),
    changes.SeeConsumer("orders", "g", "a", 1_700_000_000_000, -1),
    changes.Own("orders", "g", "a", [FIRST, SECOND], 1_700_000_000_000, [1, (1 << 63) - 1]),
    changes.Release("orders", "g", [FIRST], [0]),
    deferrals.Defer("orders", "g", [FIRST, SECOND], 1_700_000_000_000, [0, 3]),
    changes.Settle("orders", "g", [FIRST, SECOND]),
    idempotence.RememberProducerKey("orders", b"\x00\xff", b"key", FIRST),
    idempotence.RepeatProducerKey("orders"),
    idempotence.ConfigureProducerKeys("orders", 86_400, 10_000),
    idempotence.ForgetProducerKeys("orders", b"\x00\xff", 3),
    idempotence.ForgetAnswers("orders", 3),
    idempotence.RememberAnswer("orders", "key", b"digest", [FIRST, SECOND], 1_700_000_000_000),
    changes.PublishChunk("job", 2, 3, b'{"answer":1}'),
    changes.Configure("stream-node-max-entries", 50),
    redelivery.SetPolicy("orders", "g", "dead", 5, None, 60_000),
    ages.LimitAge("orders", "g", 60_000),
    pauses.PauseGroup("orders", "g", True),  # noqa: FBT003 - a record's field
    ordering.OrderByKey("orders", "g", "größe", 3),
    ordering.NoteKeys("orders", "g", [FIRST, SECOND], [b"\x00\xff", None]),
    changes.RememberPublish(
        "key", b"digest", ["orders", "other"], [1, 1], [FIRST, SECOND], 1_700_000_000_000
    ),
    durable.SetMedia("orders", "text/plain", 60_000, b"config"),
    durable.SetWriterSeq("orders", b"0042"),
    durable.SetOrigins("orders", ["0123456789abcdef", "fedcba9876543210"], [SECOND, FIRST]),
    ForkStream("orders", "bills", SECOND, "0123456789abcdef"),
    ForkStored("orders", "bills", SECOND, "0123456789abcdef", [b'{"id":"1-0","fields":{}}']),
    NoteFork("orders", "bills"),
    RestoreHidden("bills"),
    durable.AdvanceProducer("orders", "größe", 2, 3, 1_700_000_000_000),
    durable.AdvanceProducers("orders", ["größe", "b"], [2, 0], [3, 1], 1_700_000_000_000),
    restored.RestoreStream(
        "orders", "0123456789abcdef", FIRST, SECOND, SECOND, 1, FIRST, 9, (100, 101, 2, 1)
    ),
    restored.RestoreForgotten("orders", SECOND),
    restored.RestorePrevious("orders", "0123456789abcdef", SECOND),
    keeping.RestoreDeleted("orders", [FIRST, SECOND]),
    restored.RestoreNode("orders", FIRST, SECOND, 3, 2, b"\x01", PACKED),
    restored.RestoreOpenNode("orders", TEXTS, [FIRST, SECOND], b""),
    restored.RestoreConsumer("orders", "g", "a", 1_700_000_000_000, 1_700_000_000_001),
    restored.RestorePending("orders", "g", [SECOND, FIRST], [None, "a"], [0, 1_700_000_000_000], [0, 1]),
    deferrals.RestoreDeferred("orders", "g", [SECOND, FIRST], [1, 1_700_000_000_000], [0, 3]),
    idempotence.RestoreProducerKey("orders", b"p", b"\xff", SECOND),
    changes.CutStored("orders", SECOND, b"left"),
    changes.RemoveStored("orders", [FIRST, SECOND], tombstone=False, left=b"left"),
    changes.Stored("orders", FIRST, SECOND, 3, 1 << 20, 4096, 0xFFFFFFFF, 2, 1, 89, 88, FIRST, SECOND),
    restored.RestoreRun(
        "orders", FIRST, SECOND + 2, 3, 0, 4096, 1, 4, 2, 1, 89, 88, FIRST, SECOND + 1, FIRST, [SECOND]
    ),
]


@pytest.mark.early
def test_every_kind_of_record_has_its_sample() -> None:
    """Every one that the decoder knows."""
    assert {type(sample) for sample in SAMPLES} == set(KINDS.values()), "each has a row in SAMPLES"


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: type(sample).__name__)
def test_a_record_is_read_from_its_golden_bytes(sample: Record) -> None:
    """And written as they are: a change of the format by accident fails here."""
    known = json.loads(GOLDEN.read_text(encoding="utf-8")).get(type(sample).__name__)
    assert known, f"a new kind gets a line in {GOLDEN.name}: {encode([sample]).hex()}"
    golden = bytes.fromhex(known)
    assert encode([sample]) == golden
    assert [comparable(record) for record in decode(golden)] == [comparable(sample)]


def test_a_packed_node_is_read_from_its_golden_bytes() -> None:
    """By the version of zstd of today."""
    assert Text(None, PACKED).plain() == b",".join(TEXTS)
    assert Text(None, PACKED).size == len(b",".join(TEXTS))


def comparable(record: Record) -> list[object]:
    """Fields as lists, from any kind of sequence."""
    values = [type(record).__name__, *msgspec.structs.astuple(record)]
    return [list(value) if isinstance(value, range | tuple) else value for value in values]


def test_a_payload_keeps_the_order_of_its_records() -> None:
    """A turn is one payload, however many records."""
    assert [type(record) for record in decode(encode(SAMPLES))] == [type(sample) for sample in SAMPLES]
    assert decode(encode([])) == []


@pytest.mark.parametrize("payload", [b"", b"\x91", b"\x91\x91\xa1x", b"not msgpack", b"\x91\xa1x"])
def test_what_is_no_payload_of_this_version_is_told(payload: bytes) -> None:
    with pytest.raises(ValueError, match="not a payload of this version"):
        decode(payload)


def test_a_record_of_a_later_version_is_refused_and_named() -> None:
    """It is not skipped: the state would be another."""
    with pytest.raises(NewerRecordError, match=r"^record 999$"):
        decode(b"\x91\x92\xcd\x03\xe7\x01")


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.booleans())
def test_ids_of_entries_are_not_written_twice(steps: list[int], tombstone: bool) -> None:  # noqa: FBT001
    """They come out of the texts again."""
    last, ids_given = 0, []
    for step in steps:
        last += 1 + step
        ids_given.append(last)
    texts = [entries.encode(each, entries.body([("a", "1")])) for each in ids_given]
    (append,) = decode(encode([changes.Append("s", texts, ids_given)]))
    assert isinstance(append, changes.Append)
    assert (list(append.ids), list(append.texts)) == (ids_given, texts)
    (removal,) = decode(encode([changes.Remove("s", ids_given, tombstone)]))
    assert removal == changes.Remove("s", ids_given, tombstone)


def rich_world() -> World:
    """Something of everything that Redis's commands can make."""
    world = rich()
    world.call("XDEL", "s", "7-0")
    world.call("XGROUP", "CREATE", "empty", "g", "$", "MKSTREAM")
    world.add("t", "5-0")
    world.call("XTRIM", "t", "MAXLEN", 0)
    world.call("XSETID", "t", "1-0")
    return world


def test_a_snapshot_leaves_nothing_out() -> None:
    """Log, snapshot, and the snapshot of the snapshot give one state and one answer."""
    world = rich_world()
    world.check()
    again = Keyspace()
    replay(again, encode(list(snapshot(world.keyspace))))
    assert image(again) == image(world.keyspace)
    stream = again.keys["s"].stream
    assert (stream.removed_upto, stream.max_deleted_id) == (3 << 64, 8 << 64)


def test_a_snapshot_is_in_bounded_records() -> None:
    """However long a pending list: none of them may be too long for a frame."""
    world = World()
    world.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
    for number in range(1, 1101):
        world.call("XADD", "s", f"{number}-0", "a", "1")
    world.read("g", "a", "s")
    lengths = [len(one.ids) for one in snapshot(world.keyspace) if isinstance(one, restored.RestorePending)]
    assert lengths == [512, 512, 76]
    world.check()
