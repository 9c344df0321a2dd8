"""Commands of Durable Streams as words for their server: create, append, describe.

Knows: the scripts' arguments and replies. Must never know: servers, connections, HTTP.
"""

from collections.abc import Sequence
from secrets import token_hex
from typing import Any

from engine import errors, ids
from engine.cluster import scripts
from engine.cluster.keys import auxiliary_key
from engine.cluster.replies import gap_at
from engine.cluster.routing import BackendRequest, Lane
from engine.cluster.scripts import ScriptCall, Word, WriteOrigin, checked, count_and_entries, stream_keys
from engine.cluster.wire import Words
from engine.cluster.words import by_script, numbered, sends
from engine.commands.durable_commands import AppendDurable, CreateDurable, DescribeDurable, ForkPoint
from engine.commands.weir_commands import DescribeEdges
from engine.parts.durable import kind_of
from engine.replies import DurableAppended, DurableCreated, DurableInfo, Edges, Gap

_parse = ids.parse_canonical
# What is kept of a stream beside its edges.
_KEPT = ("media", "ttl", "forks", "origins")


@sends(DescribeDurable)
def _describe(command: DescribeDurable, _: WriteOrigin) -> BackendRequest:
    stream = command.stream
    call = scripts.describe_edges(DescribeEdges(stream=stream), token_hex(8), is_use=False)
    look = by_script(stream, call, Lane.READ)
    commands: list[Words] = [
        *look.commands,
        ("PEXPIRETIME", stream),
        ("HMGET", auxiliary_key(stream, "m"), *_KEPT),
    ]

    def decode(results: Sequence[Any]) -> DurableInfo | None:
        reply, expires_at_ms, (media, ttl_ms, forks, origins) = results
        edges = call.decode(reply)
        if edges is None:
            if forks is not None:
                raise errors.stream_gone(stream)
            return None
        return DurableInfo(
            media=None if media is None else media.decode(),
            ttl_ms=None if ttl_ms is None else int(ttl_ms),
            expires_at_ms=expires_at_ms if expires_at_ms > 0 else None,
            last_id=edges.last_id,
            removed_upto=edges.removed_upto,
            generation=edges.generation,
            closed=bool(reply[scripts.EDGES_MARK]),
            gap=_gap(command, edges, origins),
        )

    return BackendRequest(
        stream=stream, commands=commands, decode=decode, lane=Lane.READ, scripts=look.scripts
    )


def _gap(command: DescribeDurable, edges: Edges, origins: bytes | None) -> Gap | None:
    """The gap of the command's position, unless a fork has it of another stream."""
    words = [] if origins is None else origins.split()
    if command.after is None or any(
        command.known.encode() == generation and command.after <= _parse(upto)
        for generation, upto in zip(words[::2], words[1::2], strict=True)
    ):
        return None
    return gap_at(command.after, command.known, edges)


@sends(CreateDurable)
def _create(command: CreateDurable, origin: WriteOrigin) -> BackendRequest:
    """A fork."""
    stream, fork = command.stream, command.fork
    assert fork is not None, "others run on a head"
    keys = [*stream_keys(stream), scripts.requests_key(stream, origin), *stream_keys(fork.source)[:2]]
    words: list[Word] = [
        *scripts.origin_words(origin),
        command.media,
        kind_of(command.media),
        command.config,
        _or_empty(command.ttl_ms),
        _or_empty(command.expires_at_ms),
        int(command.closes),
        *_place_words(fork),
        *count_and_entries(command.bodies),
    ]

    def decode(reply: Any) -> DurableCreated:  # noqa: ANN401 - as the server sent it
        word, last_id, removed_upto, generation, media, ttl_ms, closed = checked(reply)
        info = DurableInfo(
            media=media.decode(),
            ttl_ms=int(ttl_ms) if ttl_ms else None,
            expires_at_ms=None,
            last_id=_parse(last_id),
            removed_upto=_parse(removed_upto),
            generation=generation.decode(),
            closed=bool(closed),
        )
        return DurableCreated(info, created=word == b"created")

    script = scripts.adding("create_durable", "forking")
    return numbered(by_script(stream, ScriptCall(script, keys, words, decode)), origin)


def _place_words(fork: ForkPoint) -> list[Word]:
    return ["" if fork.upto is None else ids.format(fork.upto), fork.beyond, fork.generation]


def _or_empty(number: int | None) -> Word:
    return "" if number is None else number


@sends(AppendDurable)
def _append(command: AppendDurable, origin: WriteOrigin) -> BackendRequest:
    stream, batch, seq = command.stream, command.batch, command.writer_seq
    keys = [*stream_keys(stream), scripts.requests_key(stream, origin)]
    words: list[Word] = [
        *scripts.origin_words(origin),
        command.kind,
        b"" if seq is None else b"+%b" % seq,
        *(("", "", "") if batch is None else (batch.producer, batch.epoch, batch.seq)),
        int(command.closes),
        *count_and_entries(command.bodies),
    ]

    def decode(reply: Any) -> DurableAppended:  # noqa: ANN401 - as the server sent it
        word, text = checked(reply)
        last_id, generation, epoch, sequence, closed = text.split(b" ")
        return DurableAppended(
            _parse(last_id),
            generation.decode(),
            int(epoch) if epoch else None,
            int(sequence) if sequence else None,
            duplicate=word == b"duplicate",
            closed=closed == b"1",
        )

    script = scripts.adding("append_durable", "producers")
    return numbered(by_script(stream, ScriptCall(script, keys, words, decode)), origin)
