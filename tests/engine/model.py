"""A naive model of the command family: plain dicts and lists, made from docs/semantics.md alone.

Knows: what each command does and answers, in RESP2 shapes; who waits, and who is served first.
Must never know: the engine's code. Arguments are what words mean; malformed words are not its business.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Final

from tests.engine.model_state import (
    COUNT_MAX,
    ID_MAX,
    ZERO,
    Id,
    ModelConsumer,
    ModelEntry,
    ModelGroup,
    ModelPending,
    ModelStream,
    ModelTrim,
    Refusal,
    after,
    before,
    parse_id,
    show,
)
from tests.engine.model_turns import ModelTurns, Reply, WouldBlock

KEY_REQUIRED: Final = (
    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the "
    "MKSTREAM option to create an empty stream automatically."
)
EXHAUSTED: Final = "ERR The stream has exhausted the last possible ID, unable to add more items"
CLOSED: Final = "CLOSED stream is closed"
TOP_ITEM: Final = "ERR The ID specified in XADD is equal or smaller than the target stream top item"


class Model(ModelTurns):
    """All streams, and what may be asked of them."""

    def __init__(self, now: int = 1) -> None:
        super().__init__(now)
        self.node_max = 100
        self.streams: dict[str, ModelStream] = {}

    # --- entries --------------------------------------------------------------------------------------------

    def xadd(
        self,
        key: str,
        entry_id: str,
        fields: Sequence[str],
        *,
        mkstream: bool = True,
        trim: ModelTrim | None = None,
        refs: str = "KEEPREF",
        production: tuple[str, str | None] | None = None,
    ) -> Reply:
        if entry_id in {"0", "0-0"}:
            raise Refusal("ERR The ID specified in XADD must be greater than 0-0")
        stream = self.streams.get(key)
        if stream is None and not mkstream:
            return None
        stream = stream or ModelStream()
        producer, token = production or ("", None)
        # IDMPAUTO: the fields themselves, in any order, are the key.
        iid: object = token or tuple(sorted(zip(fields[::2], fields[1::2], strict=True)))
        if production and iid in stream.idempotency_table.get(producer, {}):
            stream.duplicates += 1
            return show(stream.idempotency_table[producer][iid])
        if stream.closed:
            raise Refusal(CLOSED)
        new_id = self._new_id(stream, entry_id)
        self.streams[key] = stream
        stream.append(new_id, list(fields), self.node_max)
        if production:
            self._produce(stream, producer, iid, new_id)
        if trim:
            stream.trim(trim, refs, self.node_max)
        self.signal(key)
        return show(new_id)

    def _new_id(self, stream: ModelStream, words: str) -> Id:
        if stream.last == ID_MAX:
            raise Refusal(EXHAUSTED)
        ms, _, sequence = words.partition("-")
        if words == "*":
            return (self.now, 0) if self.now > stream.last[0] else after(stream.last)
        if sequence == "*":
            wanted = after(stream.last) if int(ms) == stream.last[0] else (int(ms), 0)
        else:
            wanted = parse_id(words)
        if wanted <= stream.last:
            raise Refusal(TOP_ITEM)
        return wanted

    @staticmethod
    def _produce(stream: ModelStream, producer: str, iid: object, entry_id: Id) -> None:
        keys = stream.idempotency_table.setdefault(producer, {})
        keys[iid] = entry_id
        stream.keys_added += 1
        while len(keys) > stream.idmp_maxsize:
            del keys[next(iter(keys))]

    def xcfgset(self, key: str, *, duration: int | None = None, maxsize: int | None = None) -> Reply:
        stream = self._stream(key)
        before = stream.idmp_duration, stream.idmp_maxsize
        stream.idmp_duration = duration or stream.idmp_duration
        stream.idmp_maxsize = maxsize or stream.idmp_maxsize
        if before != (stream.idmp_duration, stream.idmp_maxsize):
            stream.idempotency_table = {}
        return "OK"

    def close(self, key: str, reason: str, fields: Sequence[str]) -> Reply:
        given = ["id", self.xadd(key, "*", fields)] if fields else []
        stream = self._stream(key)
        is_new = stream.closed is None
        if stream.closed is None:
            stream.closed = (self.now, reason)
            self.signal(key)
        at, why = stream.closed
        end = ["last-id", show(stream.last), "closed-at-ms", at, "close-reason", why]
        return [*given, *end, "duplicate", int(not is_new)]

    def config(self, node_max: int) -> Reply:
        self.node_max = node_max
        return "OK"

    def delete(self, *keys: str) -> Reply:
        found = [key for key in dict.fromkeys(keys) if key in self.streams]
        for key in found:
            del self.streams[key]
            self.signal(key)
        return len(found)

    def pexpire(self, key: str, ms: int, condition: str = "", *, at: bool = False) -> Reply:
        stream = self.streams.get(key)
        time = ms if at else self.now + ms
        if stream is None or not _allows(condition, stream.expires, time):
            return 0
        stream.expires = time
        self.end_lifetimes()
        return 1

    def persist(self, key: str) -> Reply:
        had = key in self.streams and self.streams[key].expires is not None
        if had:
            self.streams[key].expires = None
        return int(had)

    def pttl(self, key: str, *, absolute: bool = False) -> Reply:
        stream = self.streams.get(key)
        if stream is None:
            return -2
        return -1 if stream.expires is None else stream.expires - (0 if absolute else self.now)

    def rename(self, key: str, target: str, *, nx: bool = False) -> Reply:
        if key not in self.streams:
            raise Refusal("ERR no such key")
        if key == target or (nx and target in self.streams):
            return 0 if nx else "OK"
        self.streams[target] = self.streams.pop(key)
        self.signal(key)
        self.signal(target)
        return 1 if nx else "OK"

    def copy(self, key: str, target: str, *, replace: bool) -> Reply:
        if key == target:
            raise Refusal("ERR source and destination objects are the same")
        if key not in self.streams or (target in self.streams and not replace):
            return 0
        self.streams[target] = deepcopy(self.streams[key])
        self.streams[target].closed = None
        self.signal(target)
        return 1

    def release_deferred(self) -> None:
        for key, stream in sorted(self.streams.items()):
            for _, group in sorted(stream.groups.items()):
                for entry_id, one in group.deferred_until(self.now):
                    if stream.find(entry_id) is None:
                        del group.pending[entry_id]
                    else:
                        group.deliver(entry_id, None, 0, one.count)
                        self.signal(key)

    def end_lifetimes(self) -> None:
        times = {key: one.expires for key, one in self.streams.items()}
        self.delete(*(key for key, at in times.items() if at is not None and at <= self.now))

    def xlen(self, key: str) -> Reply:
        return self.streams[key].length if key in self.streams else 0

    def xrange(
        self, key: str, low: Id, high: Id, *, count: int | None = None, reverse: bool = False
    ) -> Reply:
        if key not in self.streams:
            return []
        if count is not None and count <= 0:
            return None
        found = [entry for entry in self.streams[key].entries() if low <= entry.id <= high]
        return [_entry(entry) for entry in (found[::-1] if reverse else found)[:count]]

    def xdel(self, key: str, *entry_ids: Id) -> Reply:
        if key not in self.streams:
            return 0
        return sum(self.streams[key].remove(entry_id, deleted=True) for entry_id in entry_ids)

    def xdelex(self, key: str, refs: str, *entry_ids: Id) -> Reply:
        if key not in self.streams:
            return [-1] * len(entry_ids)
        return [self._delete_one(self.streams[key], refs, entry_id) for entry_id in entry_ids]

    @staticmethod
    def _delete_one(stream: ModelStream, refs: str, entry_id: Id) -> int:
        if refs == "ACKED" and stream.is_referenced(entry_id):
            return 2
        if refs == "DELREF":
            stream.drop_references(entry_id)
        return 1 if stream.remove(entry_id, deleted=True) else -1

    def xtrim(self, key: str, trim: ModelTrim, refs: str = "KEEPREF") -> Reply:
        return self.streams[key].trim(trim, refs, self.node_max) if key in self.streams else 0

    def xsetid(self, key: str, last: Id, *, added: int | None = None, max_deleted: Id = ZERO) -> Reply:
        if last < max_deleted:
            raise Refusal("ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id")
        stream = self._stream(key)
        if stream.closed:
            raise Refusal(CLOSED)
        if last < stream.max_deleted:
            raise Refusal("ERR The ID specified in XSETID is smaller than current max_deleted_entry_id")
        if stream.length and last < stream.top:
            raise Refusal("ERR The ID specified in XSETID is smaller than the target stream top item")
        if stream.length and added is not None and added < stream.length:
            raise Refusal(
                "ERR The entries_added specified in XSETID is smaller than the target stream length"
            )
        stream.last = last
        stream.added = stream.added if added is None else added
        stream.max_deleted = max_deleted if max_deleted != ZERO else stream.max_deleted
        for group in stream.groups.values():
            group.read = None if group.read is None else min(group.read, stream.added)
        return "OK"

    # --- reads ----------------------------------------------------------------------------------------------

    def xread(
        self, streams: Sequence[tuple[str, str]], *, count: int | None = None, block: bool = False
    ) -> Reply:
        return self._xread([(key, self._cursor(key, words)) for key, words in streams], count, block=block)

    def _cursor(self, key: str, words: str) -> Id:
        if words not in {"$", "+"}:
            return parse_id(words)
        stream = self.streams.get(key, ModelStream())
        if words == "$":
            return stream.last
        return before(stream.top) if stream.top != ZERO else ZERO

    def _xread(self, cursors: list[tuple[str, Id]], count: int | None, *, block: bool) -> Reply:
        found: list[Reply] = []
        for key, cursor in cursors:
            entries = [entry for entry in self.streams.get(key, ModelStream()).entries() if entry.id > cursor]
            if entries:
                found.append([key, [_entry(entry) for entry in entries[: count or None]]])
        if not found and block:
            key, cursor = cursors[0]
            raise WouldBlock(
                key,
                lambda model: model._xread(cursors, count, block=True),  # noqa: SLF001 - itself
                lambda model: key in model.streams and model.streams[key].top > cursor,
                None,
                lambda _: None,
            )
        return found or None

    def xreadgroup(
        self,
        group: str,
        consumer: str,
        streams: Sequence[tuple[str, str]],
        *,
        count: int | None = None,
        block: bool = False,
        noack: bool = False,
        claim: int | None = None,
    ) -> Reply:
        for key, words in streams:
            if key not in self.streams or group not in self.streams[key].groups:
                raise Refusal(
                    f"NOGROUP No such key '{key}' or consumer group '{group}' in XREADGROUP with GROUP option"
                )
            assert words not in {"$", "+"}, "no cursor of a group read"
        found: list[Reply] = []
        claiming = claim
        for key, words in streams:
            self._see(key, group, consumer)
            if words != ">":
                found.append([key, self._history(key, group, consumer, parse_id(words), count or None)])
                claiming = None
            elif delivered := self._deliver(key, group, consumer, count or None, claiming, noack=noack):
                found.append([key, delivered])
        if not found and block:
            key = streams[0][0]
            raise WouldBlock(
                key,
                lambda model: model.xreadgroup(
                    group, consumer, streams, count=count, block=True, noack=noack, claim=claim
                ),
                lambda model: model._has_news(key, group, claim),  # noqa: SLF001 - itself
                (key, group, claim),
                lambda model: None if claim is None else model._next_claim(key, group, claim),  # noqa: SLF001
            )
        return found or None

    def positions(self, words: Sequence[str]) -> dict[str, Callable[[], bool]]:
        if words[0] != "XREADGROUP":
            return {}
        at = words.index("STREAMS") + 1
        named = words[at:]
        pairs = zip(named[: len(named) // 2], named[len(named) // 2 :], strict=True)
        new = [key for key, cursor in pairs if cursor == ">" and key in self.streams]
        groups = {key: group for key in new if (group := self.streams[key].groups.get(words[2]))}
        return {key: self._undoing(group) for key, group in reversed(groups.items())}

    @staticmethod
    def _undoing(group: ModelGroup) -> Callable[[], bool]:
        last, read = group.last, group.read
        deliveries = group.deliveries

        def undo() -> bool:
            if group.last == last:
                return False
            new = [
                one
                for one, how in group.pending.items()
                if last < one <= group.last and how.order > deliveries
            ]
            for entry_id in new:
                del group.pending[entry_id]
            group.last, group.read = last, read
            return True

        return undo

    def _has_news(self, key: str, group: str, claim: int | None) -> bool:
        stream = self.streams.get(key)
        if stream is None or group not in stream.groups:
            return True
        if stream.groups[group].paused:
            return False
        if stream.top > stream.groups[group].last:
            return True
        if claim is None:
            return False
        pending = stream.groups[group].in_order_of_delivery()
        left = [one for entry_id, one in pending if stream.find(entry_id)]
        return bool(left) and (left[0].owner is None or left[0].time + claim <= self.now)

    def _next_claim(self, key: str, group: str, claim: int) -> int:
        stream = self.streams.get(key)
        if stream is None or group not in stream.groups or stream.groups[group].paused:
            return self.now + max(claim, 100)
        pending = stream.groups[group].in_order_of_delivery()
        times = [one.time for entry_id, one in pending if stream.find(entry_id)]
        # Weir's own: without anything pending it looks again every 100 ms at most.
        return times[0] + claim if times else self.now + max(claim, 100)

    def _history(self, key: str, name: str, consumer: str, cursor: Id, count: int | None) -> Reply:
        stream, group = self.streams[key], self.streams[key].groups[name]
        mine = [item for item in group.by_id(consumer) if item[0] > cursor][:count]
        found: list[Reply] = []
        for entry_id, one in mine:
            entry = stream.find(entry_id)
            if entry is not None:
                group.deliver(entry_id, consumer, self.now, min(one.count + 1, COUNT_MAX))
            found.append([show(entry_id), entry.fields if entry else None])
        return found

    def _deliver(
        self, key: str, name: str, consumer: str, count: int | None, claim: int | None, *, noack: bool
    ) -> list[Reply]:
        stream, group = self.streams[key], self.streams[key].groups[name]
        found: list[Reply] = []
        if group.paused:
            return found
        if claim is not None:
            for entry_id, one in group.in_order_of_delivery():
                entry = stream.find(entry_id)
                idle = max(0, self.now - one.time)
                if (
                    entry is None
                    or (one.owner is not None and idle < claim)
                    or (count and len(found) == count)
                ):
                    continue
                found.append([show(entry_id), entry.fields, idle, one.count])
                group.deliver(entry_id, consumer, self.now, min(one.count + 1, COUNT_MAX))
                group.consumers[consumer].active = self.now
        for entry in [entry for entry in stream.entries() if entry.id > group.last]:
            if count and len(found) == count:
                break
            stream.read_on(group, entry.id)
            if not noack:
                group.deliver(entry.id, consumer, self.now, 1)
                group.consumers[consumer].active = self.now
            found.append(_entry(entry) if claim is None else [*_entry(entry), 0, 0])
        return found

    # --- pending entries ------------------------------------------------------------------------------------

    def xack(self, key: str, group: str, *entry_ids: Id) -> Reply:
        found = self._find_group(key, group)
        return 0 if found is None else sum(found.pending.pop(each, None) is not None for each in entry_ids)

    def xackdel(self, key: str, group: str, refs: str, *entry_ids: Id) -> Reply:
        found = self._find_group(key, group)
        if found is None:
            return [-1] * len(entry_ids)
        results: list[int] = []
        for entry_id in entry_ids:
            known = found.pending.pop(entry_id, None) is not None
            results.append(abs(self._delete_one(self.streams[key], refs, entry_id)) if known else -1)
        return results

    def xnack(
        self,
        key: str,
        group: str,
        mode: str,
        *entry_ids: Id,
        retry_count: int | None = None,
        force: bool = False,
        delay: int = 0,
        consumer: str | None = None,
    ) -> Reply:
        found = self._group(key, group)
        released = 0
        until = self.now + delay if delay else None
        others = {one for one, state in found.pending.items() if consumer not in (None, state.owner)}
        for entry_id in entry_ids:
            if entry_id in others:
                continue
            if entry_id in found.pending:
                before = found.pending[entry_id].count
            elif force and self.streams[key].find(entry_id):
                before = 0
            else:
                continue
            count = {"SILENT": max(0, before - 1), "FAIL": before, "FATAL": COUNT_MAX}[mode]
            found.deliver(entry_id, None, 0, count if retry_count is None else retry_count, until)
            released += 1
        if released and not delay:
            self.signal(key)
        return released

    def extend(self, key: str, group: str, consumer: str, *entry_ids: Id) -> Reply:
        found = self._group(key, group)
        pending = {one: found.pending[one] for one in sorted(set(entry_ids)) if one in found.pending}
        held = {
            entry_id: one
            for entry_id, one in pending.items()
            if one.owner == consumer or (one.owner is None and one.until is None)
        }
        if held or consumer in found.consumers:
            self._see(key, group, consumer)
        for entry_id, one in held.items():
            found.deliver(entry_id, consumer, self.now, one.count)
            found.consumers[consumer].active = self.now
        return list(map(show, held))

    def xpending(self, key: str, group: str) -> Reply:
        found = self._group(key, group)
        if not found.pending:
            return [0, None, None, None]
        owners = [one.owner for one in found.pending.values()]
        counts: list[Reply] = [
            [name, str(owners.count(name))] for name in sorted(found.consumers) if name in owners
        ]
        return [len(owners), show(min(found.pending)), show(max(found.pending)), counts]

    def xpending_range(
        self,
        key: str,
        group: str,
        low: Id,
        high: Id,
        count: int,
        *,
        consumer: str | None = None,
        idle: int = 0,
    ) -> Reply:
        found = self._group(key, group)
        rows: list[Reply] = []
        for entry_id, one in found.by_id(consumer):
            idle_ms = max(0, self.now - one.time)
            # A deferred one is not idle: it is on its way back.
            is_idle = idle_ms >= idle if one.owner else one.until is None or idle == 0
            if low <= entry_id <= high and is_idle:
                shown = [one.owner or "", idle_ms if one.owner else -1, one.count]
                rows.append([show(entry_id), *shown])
        return rows[: max(0, count)]

    def xclaim(
        self,
        key: str,
        group: str,
        consumer: str,
        min_idle: int,
        *entry_ids: Id,
        idle: int | None = None,
        time: int | None = None,
        retry_count: int | None = None,
        force: bool = False,
        just_id: bool = False,
        last: Id = ZERO,
    ) -> Reply:
        found = self._group(key, group)
        found.last = max(found.last, last)
        self._see(key, group, consumer)
        wanted = self.now - idle if idle is not None else self.now if time is None else time
        delivered = wanted if 0 <= wanted <= self.now else self.now
        claimed: list[Reply] = []
        for entry_id in entry_ids:
            entry, one = self.streams[key].find(entry_id), found.pending.get(entry_id)
            if entry is None:
                found.pending.pop(entry_id, None)
                continue
            if one is None and not force:
                continue
            if one and one.owner is not None and max(0, self.now - one.time) < min_idle:
                continue
            before = one.count if one else 1
            count = before if just_id else min(before + 1, COUNT_MAX)
            found.deliver(entry_id, consumer, delivered, count if retry_count is None else retry_count)
            found.consumers[consumer].active = self.now
            claimed.append(show(entry_id) if just_id else _entry(entry))
        return claimed

    def xautoclaim(
        self,
        key: str,
        group: str,
        consumer: str,
        min_idle: int,
        start: Id,
        *,
        count: int = 100,
        just_id: bool = False,
    ) -> Reply:
        found = self._group(key, group)
        self._see(key, group, consumer)
        claimed: list[Reply] = []
        gone: list[str] = []
        cursor = "0-0"
        rows = [] if found.paused else [item for item in found.by_id() if item[0] >= start]
        for place, (entry_id, one) in enumerate(rows):
            if len(claimed) + len(gone) == count or place == 10 * count:
                cursor = show(entry_id)
                break
            entry = self.streams[key].find(entry_id)
            if entry is None:
                del found.pending[entry_id]
                gone.append(show(entry_id))
            elif one.until is None and (one.owner is None or max(0, self.now - one.time) >= min_idle):
                found.deliver(entry_id, consumer, self.now, min(one.count + (not just_id), COUNT_MAX))
                found.consumers[consumer].active = self.now
                claimed.append(show(entry_id) if just_id else _entry(entry))
        return [cursor, claimed, gone]

    # --- groups ---------------------------------------------------------------------------------------------

    def xgroup_create(
        self, key: str, group: str, start: str, *, mkstream: bool = False, read: int | None = None
    ) -> Reply:
        if key not in self.streams and not mkstream:
            raise Refusal(KEY_REQUIRED)
        stream = self.streams.get(key) or ModelStream()
        if group in stream.groups:
            raise Refusal("BUSYGROUP Consumer Group name already exists")
        if key not in self.streams:
            self.streams[key] = stream
            self.signal(key)
        stream.groups[group] = ModelGroup(
            stream.last if start == "$" else parse_id(start),
            None if read is None else min(read, stream.added),
        )
        return "OK"

    def xgroup_setid(self, key: str, group: str, start: str, *, read: int | None = None) -> Reply:
        stream, found = self._named(key, group)
        found.last = stream.last if start == "$" else parse_id(start)
        found.read = None if read is None else min(read, stream.added)
        return "OK"

    def pause(self, key: str, group: str, *, paused: bool) -> Reply:
        _, found = self._named(key, group)
        if found.paused is not paused:
            found.paused = paused
            self.signal(key)
        return "OK"

    def xgroup_destroy(self, key: str, group: str) -> Reply:
        if key not in self.streams:
            raise Refusal(KEY_REQUIRED)
        if self.streams[key].groups.pop(group, None) is None:
            return 0
        self.signal(key)
        return 1

    def xgroup_createconsumer(self, key: str, group: str, consumer: str) -> Reply:
        _, found = self._named(key, group)
        if consumer in found.consumers:
            return 0
        found.consumers[consumer] = ModelConsumer(self.now)
        return 1

    def xgroup_delconsumer(self, key: str, group: str, consumer: str) -> Reply:
        _, found = self._named(key, group)
        mine = [entry_id for entry_id, _ in found.by_id(consumer)]
        for entry_id in mine:
            del found.pending[entry_id]
        found.consumers.pop(consumer, None)
        return len(mine)

    # --- finding --------------------------------------------------------------------------------------------

    def _see(self, key: str, group: str, consumer: str) -> None:
        self.streams[key].groups[group].consumers.setdefault(
            consumer, ModelConsumer(self.now)
        ).seen = self.now

    def _stream(self, key: str) -> ModelStream:
        if key not in self.streams:
            raise Refusal("ERR no such key")
        return self.streams[key]

    def _find_group(self, key: str, group: str) -> ModelGroup | None:
        return self.streams[key].groups.get(group) if key in self.streams else None

    def _group(self, key: str, group: str) -> ModelGroup:
        found = self._find_group(key, group)
        if found is None:
            raise Refusal(f"NOGROUP No such key '{key}' or consumer group '{group}'")
        return found

    def _named(self, key: str, group: str) -> tuple[ModelStream, ModelGroup]:
        if key not in self.streams:
            raise Refusal(KEY_REQUIRED)
        if group not in self.streams[key].groups:
            raise Refusal(f"NOGROUP No such consumer group '{group}' for key name '{key}'")
        return self.streams[key], self.streams[key].groups[group]


def _allows(condition: str, before: int | None, wanted: int) -> bool:
    """Whether EXPIRE's condition holds."""
    if condition == "NX":
        return before is None
    if condition == "LT":
        return before is None or wanted < before
    if condition == "GT":
        return before is not None and wanted > before
    return condition == "" or before is not None


def _entry(entry: ModelEntry) -> list[object]:
    return [show(entry.id), entry.fields]


def pending_rows(pending: Sequence[tuple[Id, ModelPending]], *, owners: bool) -> list[object]:
    """Pending entries as XINFO STREAM FULL shows them."""
    return [
        [show(entry_id), *([one.owner or ""] if owners else []), one.time, one.count]
        for entry_id, one in pending
    ]
