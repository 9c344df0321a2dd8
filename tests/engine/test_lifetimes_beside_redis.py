"""EXPIRE and its kind give what a real Redis gives: replies and error texts, form by form."""

import time
from itertools import product
from typing import Final

import pytest

from tests.engine.real_redis import RealRedis
from tests.engine.world import World

SETTING: Final = ("EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT")
TELLING: Final = ("TTL", "PTTL", "EXPIRETIME", "PEXPIRETIME", "PERSIST")
I64_MAX: Final = (1 << 63) - 1
# Of these the refusals and what removes at once are compared; and 2^62 has a lifetime in every unit.
TIMES: Final = (
    *("0", "-1", "1e3", "", "x", "+1", " 1", "01", "-0", "1 "),
    *(str(number) for number in (I64_MAX, I64_MAX + 1, -I64_MAX - 1, -I64_MAX - 2)),
    *(str(sign * (I64_MAX // 1000 + more)) for sign, more in product((1, -1), (-1, 0, 1, 2))),
)
OPTIONS: Final = (
    *(("NX",), ("XX",), ("GT",), ("LT",), ("nx",), ("Gt",), ("NX", "NX"), ("XX", "GT"), ("XX", "LT")),
    *(("NX", "XX"), ("NX", "GT"), ("NX", "LT"), ("GT", "LT"), ("XX", "GT", "LT"), ("ZZ",), ("NX", "ZZ")),
    *(("",), ("NX", "GT", "ZZ"), ("ZZ\r\ny",), ("GT", "GT")),
)


class Both:
    """A real Redis and a world, which are given the same words and have to say the same."""

    def __init__(self, server: RealRedis) -> None:
        self.server = server
        server.empty()
        self.world = World(time.time_ns() // 1_000_000)

    def call(self, *words: str) -> object:
        self.world.now_ms = time.time_ns() // 1_000_000
        expected, reply = self.server.call(*words), self.world.call(*words)
        if isinstance(reply, str):
            reply = reply.replace("-ERR ", "-")
        assert reply == expected, words
        return reply

    def begin(self, lifetime: str | None) -> None:
        self.call("DEL", "s")
        self.call("XADD", "s", "1-0", "a", "1")
        if lifetime is not None:
            self.call("PEXPIREAT", "s", lifetime)


@pytest.mark.parametrize("name", [*SETTING, *TELLING])
def test_a_wrong_number_of_words(server: RealRedis, name: str) -> None:
    """Before anything else."""
    both = Both(server)
    both.call(name)
    if name in SETTING:
        both.call(name, "s")
    else:
        both.call(name, "s", "1")


@pytest.mark.parametrize("name", SETTING)
def test_every_spelling_of_a_time(server: RealRedis, name: str) -> None:
    """Of a stream that is there, and of none."""
    both = Both(server)
    for written in TIMES:
        both.call(name, "missing", written)
        both.begin(None)
        both.call(name, "s", written)
        both.call("EXISTS", "s")
        if name.endswith("AT"):
            both.call("PEXPIRETIME", "s")
            both.call("EXPIRETIME", "s")


@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
def test_every_condition_at_its_edges(server: RealRedis, options: tuple[str, ...]) -> None:
    """Against no lifetime, the same, and one millisecond beside it; a time that is over; a wrong time."""
    both = Both(server)
    at = time.time_ns() // 1_000_000 + 1_000_000
    for before, wanted in product((None, str(at)), (str(at - 1), str(at), str(at + 1), "1", "x")):
        both.begin(before)
        both.call("PEXPIREAT", "s", wanted, *options)
        both.call("PEXPIRETIME", "s")
    both.call("PEXPIREAT", "missing", str(at), *options)


def test_times_in_every_unit(server: RealRedis) -> None:
    """Seconds are rounded, half a second up."""
    both = Both(server)
    for at in ("4102444800499", "4102444800500", "4102444800501", "4102444801000"):
        both.begin(at)
        both.call("EXPIRETIME", "s")
        both.call("PEXPIRETIME", "s")
    both.begin(None)
    for name, ticks in (("EXPIRE", "100"), ("PEXPIRE", "100000")):
        both.call(name, "s", ticks)
        both.call("TTL", "s")


@pytest.mark.parametrize("name", TELLING)
def test_what_is_told_of_a_lifetime(server: RealRedis, name: str) -> None:
    """No stream, no lifetime, and twice PERSIST."""
    both = Both(server)
    both.call(name, "missing")
    both.begin(None)
    both.call(name, "s")
    both.begin("4102444800000")
    if "PTTL" not in name:
        both.call(name, "s")
        both.call(name, "s")


def test_who_keeps_a_lifetime(server: RealRedis) -> None:
    """Everything but DEL and PERSIST."""
    both = Both(server)
    both.begin("4102444800000")
    for words in ("XADD s 2-0 a 1", "XTRIM s MAXLEN 1", "XDEL s 2-0", "XSETID s 9-0", "XGROUP CREATE s g 0"):
        both.call(*words.split())
        both.call("PEXPIRETIME", "s")
