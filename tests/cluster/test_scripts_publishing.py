"""Publish as a script: several streams of one slot at once, each request and each chunk once."""

from engine import entries, ids
from engine.cluster import scripts
from engine.cluster.keys import slot_key, slot_of
from engine.cluster.scripts import WriteOrigin
from engine.commands.types import AutoSequence, IdempotencyKey, Trim, XAdd
from engine.commands.weir_commands import Chunk, Publish
from tests.cluster.beside import GENERATION, Beside

BODY = entries.body([("n", "1")])
NAMES = ("{t}: 1", "{t}/2/%2F", "t")


def part(name: str, *given: object, **options: object) -> XAdd:
    return XAdd(stream=name, bodies=[BODY] * (len(given) or 2), ids=given, **options)  # type: ignore[arg-type]


def publish(beside: Beside, *parts: XAdd, **options: object) -> object:
    reply = beside.both(scripts.publish, Publish(parts=parts, **options))  # type: ignore[arg-type]
    for name in NAMES:
        beside.same_entries(name)
    return reply


def test_all_streams_get_their_entries_or_none_does(beside: Beside) -> None:
    """Whichever part is refused."""
    publish(beside, *map(part, NAMES))
    for refused in (
        part(NAMES[2], 1),
        part(NAMES[2], expected_last_id=5),
        part("t missing {t}", mkstream=False),
        part(NAMES[2], 0),
    ):
        publish(beside, part(NAMES[0]), part(NAMES[1], trim=Trim(maxlen=0)), refused)
    publish(beside, part(NAMES[0], trim=Trim(maxlen=1, count_pending=True)), part(NAMES[1]))


def test_a_stream_stands_once(beside: Beside) -> None:
    """Its checks would not see one another."""
    publish(beside, part("t"), part("t"))


def test_streams_of_several_slots_are_refused(beside: Beside) -> None:
    """They may be on several servers."""
    refusal = beside.there(scripts.publish, Publish(parts=[part("t"), part("u")]))
    assert refusal.code == "cross_slot"
    assert beside.server.call("DBSIZE") == 0


def test_an_idempotency_key_is_for_the_whole(beside: Beside) -> None:
    """IDs and streams are those of the first time."""
    key = IdempotencyKey("k", b"d")
    given = [part(NAMES[0], ids.make(5, 0), AutoSequence(5)), part(NAMES[1])]
    publish(beside, *given, idempotency=key)
    publish(beside, *given, idempotency=key)
    publish(beside, part("t"), idempotency=IdempotencyKey("k", b"other"))
    publish(beside, part("t"), idempotency=IdempotencyKey("l", b"other"))


def test_a_chunk_is_stored_once_in_the_last_two_epochs(beside: Beside) -> None:
    """An older epoch is stale; other entries under the number are refused."""
    for epoch, number in (
        (1, 1),
        (1, 2),
        (1, 1),
        (3, 1),
        (1, 2),
        (1, 3),
        (2, 1),
        (3, 1),
        (4, 1),
        (1, 1),
        (3, 1),
    ):
        publish(beside, part(NAMES[0]), part("t"), chunk=Chunk("p", epoch, number))
    publish(beside, part("t"), chunk=Chunk("p", 4, 1))
    publish(beside, part(NAMES[0]), part("t", 9 << 80), chunk=Chunk("p", 4, 1))
    publish(beside, part("t"), chunk=Chunk("q", 1, 1))


def test_a_chunk_that_an_older_version_stored_is_known(beside: Beside) -> None:
    """Names had no slashes then; what is kept of the names of today is the same for those."""
    publish(beside, part("t"), chunk=Chunk("p", 1, 1))
    kept = beside.server.call("HVALS", slot_key(slot_of(b"t"), "p", "p"))
    assert any(b"t/" in value for value in kept), kept


def test_a_request_that_is_sent_again_is_done_once(beside: Beside) -> None:
    """As with a single stream."""
    beside.origin = WriteOrigin(GENERATION, front="f", number=3, settled=2)
    request = Publish(parts=[part("t"), part(NAMES[0], trim=Trim(maxlen=9))])
    assert beside.there(scripts.publish, request) == beside.there(scripts.publish, request)
    assert beside.server.call("XLEN", "t") == 2
