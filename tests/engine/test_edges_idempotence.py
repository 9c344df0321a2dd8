"""What implementers get wrong about idempotent production, and what must survive: edge cases 76 to 90.

Edges 82 to 86 are what every test's world checks at its end: that log and snapshot give the same state. 87 to
90 concern the command API as well; here it is what the words of the engine can carry.
"""

from typing import Any

import pytest

from app.redis import to_json
from engine import entries
from engine.commands.execution import execute
from engine.commands.types import ProducerKey, XAdd
from engine.keyspace import Keyspace
from engine.parts.idempotence import idempotence_of
from engine.records.changes import Own, Settle
from engine.records.payload import decode
from tests.engine.world import NOW_MS, World


def test_a_repeat_is_answered_with_the_first_id(world: World) -> None:
    """Edge 76: even if that entry is gone; it trims nothing, wakes no reader, advances nothing."""
    first = world.call("XADD", "s", "IDMP", "p", "i", "*", "a", "1")
    world.call("XADD", "s", "*", "b", "2")
    world.call("XDEL", "s", str(first))
    last = world.info("s", "last-generated-id")
    assert world.call("XADD", "s", "IDMP", "p", "i", "MAXLEN", 0, "*", "other", "fields") == first
    assert world.signalled == []
    assert world.info("s", "length", "last-generated-id", "iids-duplicates", "iids-added") == [1, last, 1, 1]


def test_the_order_of_fields_does_not_matter(world: World) -> None:
    """Edge 77: but how often each pair stands there does; and each producer is for itself."""
    first = world.call("XADD", "s", "IDMPAUTO", "p", "*", "a", "1", "b", "2")
    assert world.call("XADD", "s", "IDMPAUTO", "p", "*", "b", "2", "a", "1") == first
    others = [
        ("p", "a", "1"),
        ("p", "a", "1", "b", "2", "a", "1"),
        ("q", "a", "1", "b", "2"),
        ("p", "a1", "b2"),
    ]
    ids = [world.call("XADD", "s", "IDMPAUTO", producer, "*", *fields) for producer, *fields in others]
    assert len({first, *map(str, ids)}) == 5
    assert world.info("s", "pids-tracked", "iids-tracked", "iids-duplicates") == [2, 5, 1]


def test_the_same_setting_again_keeps_the_history(world: World) -> None:
    """Edge 78: another one forgets it; counters stay."""
    first = world.call("XADD", "s", "IDMP", "p", "i", "*", "a", "1")
    world.call("XCFGSET", "s", "IDMP-DURATION", 100, "IDMP-MAXSIZE", 100)
    assert world.call("XADD", "s", "IDMP", "p", "i", "*", "a", "1") == first
    world.call("XCFGSET", "s", "IDMP-MAXSIZE", 99)
    assert world.info("s", "iids-tracked", "iids-added", "iids-duplicates") == [0, 1, 1]
    assert world.call("XADD", "s", "IDMP", "p", "i", "*", "a", "1") != first


def test_the_oldest_goes_when_there_are_too_many(world: World) -> None:
    """Beside edge 78: per producer."""
    world.add("s", "1-0")
    world.call("XCFGSET", "s", "IDMP-MAXSIZE", 2)
    ids = [world.call("XADD", "s", "IDMP", "p", i, "*", "a", "1") for i in "abc"]
    assert world.call("XADD", "s", "IDMP", "p", "c", "*", "a", "1") == ids[2]
    assert world.call("XADD", "s", "IDMP", "p", "a", "*", "a", "1") not in ids
    assert world.info("s", "iids-tracked") == 2


def test_expiry_goes_by_the_ids_time(world: World) -> None:
    """Edge 79: an ID that ran ahead of the clock is remembered for longer, in Redis and so here."""
    world.call("XADD", "s", "IDMP", "p", "old", "*", "a", "1")
    world.add("s", f"{NOW_MS + 5000}-0")
    ahead = world.call("XADD", "s", "IDMP", "p", "ahead", "*", "a", "1")
    idempotency_table = idempotence_of(world.keyspace.keys["s"])
    assert list(idempotency_table.find_expired(NOW_MS + 99_999)) == []
    assert list(idempotency_table.find_expired(NOW_MS + 100_000)) == [(b"p", 1)]
    assert world.call("XADD", "s", "IDMP", "p", "ahead", "*", "a", "1") == ahead


def test_an_add_that_fails_remembers_no_producer(world: World) -> None:
    """Edge 80: there is nothing to repeat."""
    world.add("s", "18446744073709551615-18446744073709551615")
    assert str(world.call("XADD", "s", "IDMP", "p", "i", "*", "a", "1")).startswith(
        "-ERR The stream has exhausted"
    )
    assert world.info("s", "pids-tracked", "iids-tracked", "iids-added") == [0, 0, 0]


def test_a_repeat_leaves_a_count_in_the_log_and_nothing_to_resolve(world: World) -> None:
    """Edge 81: Redis logs the command with its `*`, and may mint another ID when it reads it again."""
    for _ in range(3):
        world.call("XADD", "s", "IDMP", "p", "i", "*", "a", "1")
    assert [len(decode(payload)) for payload in world.payloads] == [3, 1, 1]
    assert world.info("s", "iids-duplicates") == 2


def test_a_pending_entry_of_a_deleted_entry_survives(world: World) -> None:
    """Edge 82: Redis's rewrite loses it, and the times consumers were seen (the fixture takes a snapshot)."""
    world.add("s", "1-0")
    world.call("XGROUP", "CREATE", "s", "g", "0")
    world.read("g", "a", "s")
    world.pass_ms(5)
    world.call("XDEL", "s", "1-0")
    world.check()
    assert world.pending("s", "g") == [["1-0", "a", 5, 1]]


def test_the_log_has_the_time_and_the_count_of_a_delivery(world: World) -> None:
    """Edge 83: of NOACK it has the group's move."""
    world.add("s", "1-0", "2-0")
    world.call("XGROUP", "CREATE", "s", "g", "0")
    world.read("g", "a", "s", ">", "COUNT", 1)
    assert Own("s", "g", "a", [1 << 64], NOW_MS, [1]) in decode(world.payloads[-1])
    world.read("g", "a", "s", ">", "NOACK")
    world.check()
    group = world.group("s", "g")
    assert (group["last-delivered-id"], group["entries-read"]) == ("2-0", 2)


@pytest.mark.parametrize(
    "words", ["XREADGROUP GROUP g a STREAMS s >", "XCLAIM s g a 0 9-9", "XAUTOCLAIM s g a 0 0"]
)
def test_a_consumer_that_got_nothing_survives(world: World, words: str) -> None:
    """Edge 84: the log has it although nothing was delivered."""
    world.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
    frames = len(world.payloads)
    world.call(*words.split())
    assert len(world.payloads) == frames + 1
    world.check()
    assert world.consumers("s", "g") == ["a"]


def test_a_claim_that_moves_the_group_is_one_frame(world: World) -> None:
    """Edge 85: what the group has read is in it, so that no other record has to put it right."""
    world.add("s", "1-0", "2-0")
    world.call("XGROUP", "CREATE", "s", "g", "0", "ENTRIESREAD", 0)
    frames = len(world.payloads)
    world.read("g", "a", "s")
    assert len(world.payloads) == frames + 1
    assert world.group("s", "g")["entries-read"] == 2


def test_references_to_what_is_gone_are_removed_in_the_log_too(world: World) -> None:
    """Edge 86: XDELEX DELREF answers -1, and has changed something all the same."""
    world.add("s", "1-0")
    world.call("XGROUP", "CREATE", "s", "g", "0")
    world.read("g", "a", "s")
    world.call("XDEL", "s", "1-0")
    assert world.call("XDELEX", "s", "DELREF", "IDS", 1, "1-0") == [-1]
    assert decode(world.payloads[-1]) == [Settle("s", "g", [1 << 64])]
    assert world.pending("s", "g") == []


def test_values_are_any_bytes(world: World) -> None:
    """Edge 87: fields and group names are text of any script, producers and their keys any bytes."""
    value = bytes(range(256))
    first = world.call("XADD", "s", "IDMP", b"\x00\xff", b"\xff", "*", "größe", value, "", "")
    assert world.call("XADD", "s", "IDMP", b"\x00\xff", b"\xff", "*", "a", "1") == first
    assert world.call("XRANGE", "s", "-", "+") == [[first, ["größe", value, "", ""]]]
    world.call("XGROUP", "CREATE", "s", "группа", "0")
    assert world.group("s", "группа")["pending"] == 0


def test_large_numbers_leave_as_text(world: World) -> None:
    """Edge 88: a delivery count after FATAL is beyond what JavaScript can hold."""
    world.add("s", "1-0")
    world.call("XGROUP", "CREATE", "s", "g", "0")
    world.read("g", "a", "s")
    world.call("XNACK", "s", "g", "FATAL", "IDS", 1, "1-0")
    rows: Any = world.call("XPENDING", "s", "g", "-", "+", 1)
    assert rows == [["1-0", "", -1, 2**63 - 1]]
    assert to_json(rows, base64=False) == [["1-0", "", -1, "9223372036854775807"]]


def test_null_and_empty_are_different_answers(world: World) -> None:
    """Edge 89: and each command has its own."""
    world.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
    assert world.call("XREAD", "STREAMS", "s", "0") is None
    assert world.call("XRANGE", "s", "-", "+") == []
    assert world.read("g", "a", "s", "0") == [["s", []]]
    assert world.call("XPENDING", "s", "g") == [0, None, None, None]
    assert world.call("XPENDING", "s", "g", "-", "+", 1) == []
    assert world.call("XADD", "no", "NOMKSTREAM", "*", "a", "1") is None


@pytest.mark.parametrize(
    ("words", "prefix"),
    [
        ("XREADGROUP GROUP no a STREAMS s >", "-NOGROUP "),
        ("XGROUP CREATE s g 0", "-BUSYGROUP "),
        ("XADD s 0-0 a 1", "-ERR "),
        ("XINFO STREAM no", "-ERR "),
    ],
)
def test_the_first_word_of_an_error_is_part_of_it(world: World, words: str, prefix: str) -> None:
    """Edge 90: clients look at it."""
    world.call("XGROUP", "CREATE", "s", "g", "0", "MKSTREAM")
    assert str(world.call(*words.split())).startswith(prefix)


def test_several_automatic_ids_in_one_turn_share_their_milliseconds(world: World) -> None:
    """Beside edge 2: one reading of the clock for a whole transaction."""
    replies = world.transaction(*[("XADD", "s", "*", "a", "1")] * 3)
    assert replies == [f"{NOW_MS}-0", f"{NOW_MS}-1", f"{NOW_MS}-2"]


def test_a_batch_is_added_whole_or_not_at_all() -> None:
    """Beside edge 80: of several entries the last may be one too many."""
    keyspace = Keyspace()
    bodies = [entries.body([("a", "1")])] * 2
    outcome = execute(keyspace, XAdd(stream="s", bodies=bodies, ids=[5 << 64, 5 << 64]), NOW_MS)
    assert getattr(outcome.reply, "code", None) == "id_not_increasing"
    assert (outcome.turn.records, keyspace.keys) == ([], {})
    producer_key = ProducerKey(b"p", b"i")
    outcome = execute(keyspace, XAdd(stream="s", bodies=bodies[:1], producer_key=producer_key), NOW_MS)
    assert getattr(outcome.reply, "duplicate", None) is False
