"""The keyspace's names: in order after any changes, and cheap to take out by the thousand.

Knows: names and their order. Must never know: what a stream holds.
"""

from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.keyspace import Key, Keyspace


def put(keyspace: Keyspace, name: str) -> None:
    keyspace.create(name, Key("0"))


@given(st.lists(st.tuples(st.sampled_from(["put", "take", "look"]), st.integers(0, 80)), max_size=200))
def test_names_stand_in_order_whatever_came_and_went(steps: list[tuple[str, int]]) -> None:
    """Looked at now and then, with few gone since and with many; by prefix and behind a name too."""
    keyspace, there = Keyspace(), set[str]()
    for number in range(60):
        put(keyspace, f"{number:02}")
        there.add(f"{number:02}")
    for step, number in steps:
        name = f"{number:02}"
        if step == "put" and name not in there:
            put(keyspace, name)
            there.add(name)
        elif step == "take" and name in there:
            keyspace.remove(name)
            there.remove(name)
        elif step == "look":
            assert keyspace.names(after=name) == sorted(one for one in there if one > name)
            assert keyspace.names(prefix=name[0]) == sorted(one for one in there if one[0] == name[0])
    keyspace.check()


@pytest.mark.no_cover
def test_taking_out_every_name_costs_each_about_the_same_however_many_there_are() -> None:
    """The best of three rounds each. Taken out of a list one by one, each of 50 000 took six times as
    long as each of 2 000.
    """

    def each_s(count: int) -> float:
        names = [f"{number:06}" for number in range(count)]
        keyspace = Keyspace()
        for name in names:
            put(keyspace, name)
        began_s = process_time()
        for name in names:
            keyspace.remove(name)
        assert keyspace.names() == []
        return (process_time() - began_s) / count

    few, many = min(each_s(2_000) for _ in range(3)), min(each_s(50_000) for _ in range(3))
    assert many <= few * 3, (few, many)
