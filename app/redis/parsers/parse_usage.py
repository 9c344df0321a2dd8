"""Parses OBJECT and MEMORY: what a stream costs, and when it was last used.

Knows: their words and error texts. Must never know: how memory is counted, what counts as use.
"""

from collections.abc import Callable
from typing import Final

from app.redis.parsers.words import Words, integer, stream_name
from app.redis.request import CommandRequest, for_engine
from app.redis.resp import Resp
from engine import errors
from engine.commands import DescribeUse
from engine.replies import Reply, StreamUse

_NO_LFU: Final = (
    "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when "
    "switching between policies at runtime LRU and LFU data will take some time to adjust."
)


def _described(key: bytes, shape: Callable[[StreamUse], Resp]) -> CommandRequest:
    """A request that answers null for a missing stream."""

    def shape_found(reply: Reply) -> Resp:
        return shape(reply) if isinstance(reply, StreamUse) else None

    return for_engine(DescribeUse(stream=stream_name(key)), shape_found)


def object_encoding(words: Words) -> CommandRequest:
    """OBJECT ENCODING key."""
    _, key = words.rest()
    return _described(key, lambda _: b"stream")


def object_idletime(words: Words) -> CommandRequest:
    """OBJECT IDLETIME key: whole seconds."""
    _, key = words.rest()
    return _described(key, lambda use: use.idle_ms // 1000)


def object_refcount(words: Words) -> CommandRequest:
    """OBJECT REFCOUNT key: nothing is shared."""
    _, key = words.rest()
    return _described(key, lambda _: 1)


def object_freq(words: Words) -> CommandRequest:
    """OBJECT FREQ key: refused, as by a Redis that counts no accesses."""
    _, key = words.rest()

    def refuse(_: StreamUse) -> Resp:
        raise errors.invalid(_NO_LFU)

    return _described(key, refuse)


def memory_usage(words: Words) -> CommandRequest:
    """MEMORY USAGE key [SAMPLES count]: everything is counted, so there is nothing to sample."""
    words.take()
    key = words.take()
    while words.left:
        if not words.took(b"SAMPLES", values=1) or integer(words.take()) < 0:
            raise errors.syntax_error()
    return _described(key, lambda use: use.memory_bytes)
