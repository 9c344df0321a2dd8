"""A group that is ordered by key loses no entry, and no key waits for ever, although entries are claimed by
force before it has read them, and its position is set back while some are pending.

Knows: random histories, and what is left once all is acknowledged.
Must never know: in which order entries come: those that are forced, or read again, have none.
"""

import random

import pytest

from engine import ids
from engine.commands import types, weir_commands
from tests.engine.house import House
from tests.engine.test_ordering import add

HISTORIES = 40
READS_MAX = 400


@pytest.mark.parametrize("goes_back", [False, True])
def test_nothing_is_lost_and_no_key_waits_for_ever(goes_back: bool) -> None:  # noqa: FBT001 - a parameter
    for seed in range(HISTORIES):
        live(random.Random(seed), goes_back=goes_back)


def live(choose: random.Random, *, goes_back: bool) -> None:
    """A history, then reads and acknowledgements until nothing is pending or waits."""
    house, count, done = House(), 0, set[int]()
    policy = {"ordered_by": "user", "in_flight_per_key": choose.choice([1, 1, 2, 3])}
    house.run(weir_commands.EnsureGroup(stream="s", group="g", start=0, mkstream=True, policy=policy))
    group = house.key("s").groups["g"]

    def read(most: int) -> None:
        new = [("s", types.Cursor.NEW)]
        house.run(types.XReadGroup(group="g", consumer=choose.choice("cd"), count=most, streams=new))

    def settle(entry_id: int) -> None:
        house.run(types.XAck(stream="s", group="g", ids=[entry_id]))
        done.add(entry_id)

    for _ in range(choose.randint(5, 60)):
        what, number = choose.random(), choose.randint(1, count or 1)
        pending = [entry_id for entry_id, _ in group.pending.items(0)]
        if not count or what < 0.35:
            count += 1
            add(house, [choose.choice(["a", "a", "b", None])], first=count)
        elif what < 0.6:
            read(choose.randint(1, 4))
        elif what < 0.75 and ids.make(number, 0) not in done:
            claim = types.Claim(ids=[ids.make(number, 0)], min_idle_ms=0, force=True, just_ids=True)
            house.run(types.XClaim(stream="s", group="g", consumer="d", claim=claim))
        elif what < 0.95 and pending:
            settle(choose.choice(pending))
        elif goes_back:
            house.run(types.XGroupSetId(stream="s", group="g", start=ids.make(number - 1, 0)))
            done.clear()
        house.check()
    pending = [0]
    for _ in range(READS_MAX):
        read(5)
        pending = [entry_id for entry_id, _ in group.pending.items(0)]
        if not pending and not group.passed_over:
            break
        for entry_id in pending:
            settle(entry_id)
    assert not pending and not group.passed_over, "a key waits"  # noqa: PT018 - either is wrong
    assert group.last_delivered_id >= house.key("s").stream.last_live_id
    assert goes_back or len(done) == count, "an entry was given to no one"
