"""Weir's own commands over Redis or Valkey: each is a script that checks all, then writes all.

Knows: the scripts, their keys and arguments, and how their replies become those of `engine.replies`.
Must never know: connections, which server runs a script, entries' fields (`stored`).

A script's text is `lua/prelude.lua`, the parts that it stands on, and the file of its name. Its reply is a
list that begins with a word: `no` and a code for a refusal, else what was done.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Any, Final, TypeVar

import msgspec

from engine import errors, ids
from engine.cluster.keys import auxiliary_key, slot_key, slot_of
from engine.cluster.stored import META_FIELD, words_of
from engine.commands.types import AutoSequence, IdempotencyKey, NewId, Refs, Trim, XAdd, XDel, XTrim
from engine.commands.weir_commands import AddEach, DescribeEdges, Publish
from engine.dedup import EPOCH_BYTES_MAX, EPOCH_CHUNKS_MAX
from engine.entries import is_json
from engine.errors import EngineError
from engine.parts import PARTS
from engine.replies import (
    Added,
    Closed,
    Deletions,
    Dropped,
    Edges,
    Published,
    Republished,
    StoredRun,
    Trimmed,
)

Word = bytes | str | int
Decode = Callable[[Any], Any]
E = TypeVar("E", bound=Closed | bool | int)

# Lua's stack holds no more words of one entry than that, two for each field.
FIELDS_MAX: Final = 3_900


class Script(msgspec.Struct, frozen=True):
    """A script's text, and the digest by which a server that has loaded it knows it."""

    text: str
    digest: str

    def words(self, keys: Sequence[bytes], arguments: Sequence[Word]) -> list[Word]:
        """The command that runs it."""
        return ["EVALSHA", self.digest, len(keys), *keys, *arguments]

    def words_with_text(self, words: Sequence[Word]) -> list[Word]:
        """The same command for a server that has not loaded it."""
        return ["EVAL", self.text, *words[2:]]


class WriteOrigin(msgspec.Struct, frozen=True):
    """What the gateway says of itself with a write.

    `primary` identifies the server that will run it, empty where that is not known. `front` is this process,
    `number` counts its requests, of which all up to `settled` have their reply: one sent again is done once.
    `now_ms` is the time here.
    """

    generation: str
    primary: Word = ""
    front: str = ""
    number: int = 0
    settled: int = 0
    now_ms: int = 0


class ScriptCall(msgspec.Struct, frozen=True):
    """A script with its keys and arguments. `decode` takes its reply; it raises EngineError for a refusal."""

    script: Script
    keys: Sequence[bytes]
    arguments: Sequence[Word]
    decode: Decode

    @property
    def words(self) -> list[Word]:
        """The command."""
        return self.script.words(self.keys, self.arguments)


# Read when the module is: the event loop reads no files.
_TEXTS: Final = {
    file.name.removesuffix(".lua"): file.read_text("utf-8")
    for file in (files("engine") / "cluster" / "lua").iterdir()
}

# Of what `lua/edges.lua` replies: the mark of the end, the last entry, what follows a cursor that was lost.
EDGES_MARK: Final = 4
EDGES_LAST_LIVE: Final = 5
EDGES_LOST: Final = 6

# Redis's bound for the entries that one approximate trim without LIMIT may remove.
_LIMIT_DEFAULT: Final = 10_000

_GROWING: Final = {
    *("add", "append_durable", "commit", "create_durable", "fire_schedules", "publish"),
}


@cache
def script(name: str, *parts: str, makes_room: bool = False) -> Script:
    """The script of that name; `parts` are the files that it stands on, beside the prelude. One that
    `makes_room` runs at a server without memory left, too.
    """
    # Without memory left, a server refuses such a script before it runs. Without this line it refuses
    # single commands, and none behind the first change.
    head = "#!lua\n" if name in _GROWING else ""
    if makes_room:
        head = "#!lua flags=allow-oom\n"
    text = head + "\n".join([_TEXTS[one] for one in ("prelude", *parts, name)])
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


def stream_keys(stream: str) -> list[bytes]:
    """The stream, its metadata, and its answers by idempotency key and by time."""
    return [stream.encode(), *(auxiliary_key(stream, kind) for kind in "miq")]


_TOO_LARGE_TO_FORK: Final = (
    "over this backend a fork has up to 10,000 entries of its source, or all of them, up to 150,000: "
    "fork it at the end"
)

# The refusals that scripts reply, by their code; each is given the words behind it. Parts have their own.
_REFUSALS: Final[Mapping[str, Callable[..., EngineError]]] = {
    "id_not_increasing": errors.id_not_increasing,
    "epoch_begins_at_zero": errors.epoch_begins_at_zero,
    "fork_beyond_end": errors.fork_beyond_end,
    "fork_of_another_stream": errors.fork_of_another_stream,
    "idempotency_mismatch": errors.idempotency_mismatch,
    "last_id_mismatch": errors.last_id_mismatch,
    "media_type_differs": errors.media_type_differs,
    "no_stream": errors.no_such_key,
    "not_durable": errors.not_durable,
    "producer_fenced": lambda producer, epoch: errors.producer_fenced(producer, int(epoch)),
    "producer_gap": lambda producer, *seqs: errors.producer_gap(producer, *map(int, seqs)),
    "sequence_too_small": errors.writer_seq_too_small,
    "stream_changed": errors.stream_changed,
    "stream_exists": errors.stream_exists,
    "stream_exhausted": lambda _: errors.stream_exhausted(),
    "stream_gone": errors.stream_gone,
    "too_large_to_fork": lambda: errors.invalid(f"ERR {_TOO_LARGE_TO_FORK}"),
    "too_long_to_count": lambda entries_max: too_long_to_count(int(entries_max)),
    "too_many_chunks": lambda: errors.too_many_chunks(EPOCH_CHUNKS_MAX, EPOCH_BYTES_MAX),
    "trim_guarded": errors.trim_guarded,
    **{code: refuse for part in PARTS for code, refuse in part.refusals.items()},
}


def checked(reply: Any) -> list[Any]:  # noqa: ANN401 - as the server sent it
    """The reply of a script without its first word's refusal. Raises EngineError."""
    first, *others = reply
    if first == b"no":
        code, *detail = [
            one.decode(errors="replace") if isinstance(one, bytes) else str(one) for one in others
        ]
        raise _REFUSALS[code](*detail)
    return [first, *others]


def too_long_to_count(entries_max: int) -> EngineError:
    """The server has no entry by its number, and counting holds it up."""
    sentence = (
        f"this backend would have to walk over more than {entries_max} entries to say what such a trim "
        "removes: trim in smaller steps, or without dry run, guard and the count of pending entries"
    )
    return EngineError("not_supported_by_backend", f"ERR {sentence}")


def too_many_fields() -> EngineError:
    """An entry beyond what a script can hand to the server."""
    return errors.invalid(f"ERR over this backend an entry has at most {FIELDS_MAX} fields")


# --- adding


def add_each(command: AddEach, origin: WriteOrigin) -> ScriptCall:
    """AddEach. Raises EngineError."""
    return add(XAdd(stream=command.stream, bodies=command.bodies), origin, whole=False)


def add(command: XAdd, origin: WriteOrigin, *, whole: bool = True) -> ScriptCall:
    """XADD without a producer key. Unless `whole`, the first ones are stored where the IDs do not suffice for
    all. Raises EngineError.
    """
    words = [*origin_words(origin), int(command.mkstream), int(whole), *add_words(command)]
    keys = stream_keys(command.stream)[: 2 if command.idempotency is None else 4]
    keys += [requests_key(command.stream, origin)] if origin.front else []
    return ScriptCall(adding("add"), keys, words, _decode_added(command.stream))


def add_words(command: XAdd) -> list[Word]:
    """Its entries, and what goes with them. Raises EngineError."""
    if 0 in command.ids:
        raise errors.id_is_zero()
    key = command.idempotency
    return [
        "" if command.expected_last_id is None else ids.format(command.expected_last_id),
        *("" if key is None else key.key, b"" if key is None else key.digest),
        _trim_words(command.trim),
        *_form_and_entries(command.bodies, command.ids),
    ]


def adding(name: str, *parts: str, makes_room: bool = False) -> Script:
    """A script that adds entries, or as it is called now `makes_room`."""
    return script(name, "trimming", "retention", "answers", "adding", *parts, makes_room=makes_room)


def origin_words(origin: WriteOrigin) -> list[Word]:
    """What every script that adds entries begins with."""
    numbered: list[Word] = [origin.number, origin.settled] if origin.front else ["", ""]
    return [origin.generation, origin.primary, *numbered]


def requests_key(stream: str, origin: WriteOrigin) -> bytes:
    """The key of what this gateway's requests in the stream's slot were answered."""
    return slot_key(slot_of(stream.encode()), "h", origin.front)


def _form_and_entries(bodies: Sequence[bytes], new_ids: Sequence[NewId]) -> list[Word]:
    """What all entries are, for streams that take no others; how many, and the entries."""
    entries = [words_of(body) for body in bodies]
    return [form_of(entries), *_count_and_entries(entries, new_ids)]


def form_of(all_words: Sequence[Sequence[bytes]]) -> str:
    """What all of these entries are, as `lua/adding.lua` has it."""
    form = "json"
    for words in all_words:
        if words[0] != b"data" or (words[2:] and words[2] != META_FIELD):
            return ""
        if form and not is_json(words[1]):
            form = "data"
    return form


def count_and_entries(bodies: Sequence[bytes]) -> list[Word]:
    """How many, and the entries."""
    return _count_and_entries([words_of(body) for body in bodies], ())


def _count_and_entries(all_words: Sequence[Sequence[bytes]], new_ids: Sequence[NewId]) -> list[Word]:
    """The entries as `lua/adding.lua` reads them."""
    words: list[Word] = [len(all_words)]
    for place, entry in enumerate(all_words):
        if len(entry) > 2 * FIELDS_MAX:
            raise too_many_fields()
        words += [_id_word(new_ids[place]) if new_ids else "*", len(entry)]
        words += entry
    return words


def _id_word(wanted: NewId) -> str:
    if wanted is None:
        return "*"
    return f"{wanted.ms}-*" if isinstance(wanted, AutoSequence) else ids.format(wanted)


def _trim_words(trim: Trim | None) -> bytes:
    """A trim as `lua/trimming.lua` reads it; empty for none."""
    if trim is None:
        return b""
    if trim.refs is not Refs.KEEP:
        raise AssertionError("only a server that knows references trims by them, without a script")
    asked = {
        "maxlen": trim.maxlen,
        "minid": None if trim.minid is None else ids.format(trim.minid),
        "age_ms": trim.older_than_ms,
        "approx": trim.approx,
        "limit": _LIMIT_DEFAULT if trim.approx and trim.limit is None else trim.limit,
        "count_pending": trim.count_pending,
    }
    return msgspec.json.encode({name: value for name, value in asked.items() if value is not None})


def _decode_added(stream: str) -> Decode:
    def decode(reply: Any) -> Added | None:  # noqa: ANN401 - as the server sent it
        if reply is None:
            return None
        word, given, removed, affected = checked(reply)
        return Added(ids_of(given), word == b"duplicate", removed, affected)

    return decode


def ids_of(text: bytes) -> Sequence[int]:
    """The IDs of `first..last`, or joined by commas."""
    first, dots, last = text.partition(b"..")
    if dots:
        return range(ids.parse_canonical(first), ids.parse_canonical(last) + 1)
    return [ids.parse_canonical(one) for one in text.split(b",")]


# --- removing


def trim(command: XTrim) -> ScriptCall:
    """XTRIM that keeps references."""
    asked = msgspec.json.decode(_trim_words(command.trim))
    asked |= {"dry_run": command.dry_run, "guard": command.guard}
    keys = stream_keys(command.stream)[:2]

    def decode(reply: Any) -> Trimmed:  # noqa: ANN401 - as the server sent it
        _, removed, first, affected = checked(reply)
        return Trimmed(removed, ids.parse_canonical(first), affected)

    return ScriptCall(script("trim", "trimming"), keys, [msgspec.json.encode(asked)], decode)


def delete_entries(command: XDel) -> ScriptCall:
    """XDEL."""
    words = [ids.format(entry_id) for entry_id in command.ids]
    return ScriptCall(script("delete_entries", "deleting"), stream_keys(command.stream)[:2], words, as_it_is)


def delete_each(
    stream: str, refs: Refs, entry_ids: Sequence[int], group: str = "", consumer: str = ""
) -> ScriptCall:
    """XDELEX, or with a group XACKDEL, by this consumer or by any."""
    words: list[Word] = [refs.value, group, consumer, *map(ids.format, entry_ids)]
    keys = stream_keys(stream)[:2]
    return ScriptCall(script("delete_each", "trimming", "deleting", "deferring"), keys, words, Deletions)


def delete_stream(stream: str, expected: str = "", *, drops_schedules: bool = True) -> ScriptCall:
    """DEL of one stream that is as `expected` (kept.py); the reply is 1, or 0 where there was none."""

    def decode(reply: Any) -> int | Dropped:  # noqa: ANN401 - as the server sent it
        _, count, dropped = checked(reply)
        return with_dropped(int(count), dropped)

    keys, script_of = stream_keys(stream), script("delete_streams", "trimming", "retention")
    return ScriptCall(script_of, keys, [expected, int(drops_schedules)], decode)


def maintain(stream: str, watched_ms: int, grace_ms: int) -> ScriptCall:
    """What time brings to a stream, whose primary has been the same for `watched_ms`; consumers may be silent
    for `grace_ms` longer than their group says. The reply: 1 where there is more to do, after how many ms the
    first schedule is due (less than 0 where it is late, None for none), how many schedules there are, and how
    many have gone with a stream of this name.
    """
    keys, words = stream_keys(stream), [watched_ms, grace_ms]
    return ScriptCall(
        script("maintain", "trimming", "retention", "deferring", "scheduling"), keys, words, as_it_is
    )


def release_due(stream: str) -> ScriptCall:
    """Release what was given back for later, and is due. The reply: after how many ms the next one is, -1 for
    none.
    """
    return ScriptCall(script("release_due", "deferring"), stream_keys(stream)[:2], (), as_it_is)


def touch(stream: str, readers: Collection[tuple[str, str]]) -> ScriptCall:
    """Say that these are there: pairs of a group and a consumer."""
    words = [word for pair in readers for word in pair]
    return ScriptCall(script("touch", "policies"), stream_keys(stream)[:2], words, as_it_is)


def remember(stream: str, key: IdempotencyKey, text: str, *, replace: bool) -> ScriptCall:
    """Keep the answer to a call of several requests; the reply is what was kept before, empty for nothing."""

    def decode(reply: Any) -> str:  # noqa: ANN401 - as the server sent it
        _, before = checked(reply)
        return str(before.decode())

    name, answers, order = (stream_keys(stream)[place] for place in (0, 2, 3))
    words: list[Word] = [key.key, key.digest, text, int(replace)]
    return ScriptCall(script("remember", "answers"), [name, answers, order], words, decode)


def rename(stream: str, target: str, words: Sequence[Word]) -> ScriptCall:
    """RENAME, RENAMENX or COPY: `words` are a generation, the command, and options. Reply: whether it is."""
    return ScriptCall(script("rename"), [*stream_keys(stream), *stream_keys(target)], words, _whether)


def change_lifetime(stream: str, words: Sequence[Word]) -> ScriptCall:
    """PEXPIRE, PEXPIREAT or PERSIST, with its options. Reply: whether the lifetime was changed."""
    return ScriptCall(script("lifetime"), stream_keys(stream)[:2], words, _whether)


def with_dropped(reply: E, dropped: int) -> E | Dropped:
    """The reply of what ends streams, with how many schedules have gone, if any have."""
    return Dropped(reply, dropped) if dropped else reply


def _whether(reply: Any) -> bool | Dropped:  # noqa: ANN401 - as the server sent it
    """Whether it is done, and how many schedules have gone."""
    done, dropped = reply
    return with_dropped(bool(done), dropped)


def describe_edges(
    command: DescribeEdges,
    generation: str,
    cursor: int | None = None,
    count: int = 0,
    *,
    is_use: bool = True,
) -> ScriptCall:
    """Where the stream begins and ends; `generation` is for a stream that another program made. Unless
    `is_use`, a lifetime that counts from the last use does not begin anew.

    The server's reply has a fifth member where the entry at the cursor was lost with a primary: up to `count`
    entries behind the last one that was not.
    """

    def decode(reply: Any) -> Edges | None:  # noqa: ANN401 - as the server sent it
        if reply is None:
            return None
        first, last, removed_upto, found, *_ = reply
        parse = ids.parse_canonical
        return Edges(parse(first), parse(last), parse(removed_upto), found.decode())

    words: list[Word] = [generation, int(is_use), "" if cursor is None else ids.format(cursor), count]
    return ScriptCall(script("edges"), stream_keys(command.stream)[:2], words, decode)


def look(stream: str) -> ScriptCall:
    """What the reader of a range has to know: the last entry of a closed stream, None of an open one."""

    def decode(reply: Any) -> int | None:  # noqa: ANN401 - as the server sent it
        return ids.parse_canonical(reply[1]) if reply else None

    return ScriptCall(script("look"), stream_keys(stream)[:2], (), decode)


def as_it_is(reply: Any) -> Any:  # noqa: ANN401 - as the server sent it
    """The reply of a script that never refuses, and answers with a number."""
    return reply


# --- publishing into several streams


def publish(command: Publish, origin: WriteOrigin, *, has_slots: bool = True) -> ScriptCall:
    """Publish. Where slots are of several servers, all streams have one. Raises EngineError."""
    # What belongs to no stream, as a producer, is in the one slot of all where the server has all slots.
    slots = {slot_of(part.stream.encode()) for part in command.parts} if has_slots else {0}
    if len(slots) > 1:
        raise cross_slot()
    if len({part.stream for part in command.parts}) < len(command.parts):
        raise errors.invalid("ERR a stream occurs twice", "each stream occurs once, with all its entries")
    if any(0 in part.ids for part in command.parts):
        raise errors.id_is_zero()
    key, chunk, slot = command.idempotency, command.chunk, slots.pop()
    arguments: list[Word] = [
        *origin_words(origin),
        *("" if key is None else key.key, b"" if key is None else key.digest),
        *("" if chunk is None else chunk.epoch, "" if chunk is None else chunk.number),
        len(command.parts),
    ]
    keys: list[bytes] = []
    for part in command.parts:
        keys += stream_keys(part.stream)[:2]
        arguments += [
            int(part.mkstream),
            "" if part.expected_last_id is None else ids.format(part.expected_last_id),
            _trim_words(part.trim),
            *_form_and_entries(part.bodies, part.ids),
        ]
    keys += [] if key is None else [slot_key(slot, kind, "") for kind in "iq"]
    keys += [] if chunk is None else [slot_key(slot, "p", chunk.producer)]
    keys += [slot_key(slot, "h", origin.front)] if origin.front else []
    return ScriptCall(adding("publish"), keys, arguments, _decode_published(command))


def _decode_published(command: Publish) -> Decode:
    def decode(reply: Any) -> Published | Republished:  # noqa: ANN401 - as the server sent it
        chunk = command.chunk
        if chunk is not None and reply[:2] == [b"no", b"stale_epoch"]:
            raise errors.stale_epoch(chunk.producer, int(reply[2]))
        word, texts, trims = checked(reply)
        names_and_ids = texts.split(b"/")
        rows = [
            (name.decode().replace("\n", "/"), ids_of(given))
            for name, given in zip(names_and_ids[::2], names_and_ids[1::2], strict=True)
        ]
        if word == b"repeated":
            assert chunk is not None, "only a chunk is repeated"
            stored = sorted((name, len(given)) for name, given in rows)
            if stored != sorted((part.stream, len(part.bodies)) for part in command.parts):
                raise errors.chunk_mismatch(chunk.producer, chunk.epoch, chunk.number)
            return Republished([StoredRun(name, given[0], given[-1], len(given)) for name, given in rows])
        counts = trims or [0, 0] * len(rows)
        added = [
            (name, Added(given, trimmed=counts[2 * place], pending_affected=counts[2 * place + 1]))
            for place, (name, given) in enumerate(rows)
        ]
        return Published(added, duplicate=word == b"duplicate")

    return decode


def cross_slot() -> EngineError:
    """What one server must do at once concerns streams of several slots, which may be on several servers."""
    sentence = (
        "the streams are in different hash slots of the cluster: give their names a part in braces that is "
        "the same, as in {orders}:1 and {orders}:2"
    )
    return EngineError("cross_slot", f"CROSSSLOT {sentence}", sentence)
