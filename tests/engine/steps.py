"""Commands of a small world: their words, and their calls of the naive model.

Knows: two streams, two groups, three consumers, IDs 1 to 12; every command of the family, and what came after
Redis 7.0 (`newest`). The first of each kind comes most often, so that histories meet.
Must never know: what any of them answers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from hypothesis import strategies as st

from tests.engine import model_info
from tests.engine.model import Model
from tests.engine.model_state import ID_MAX, Id, ModelTrim, after, before, parse_id, show
from tests.engine.model_turns import Play

KEYS: Final = ("s", "t")
GROUPS: Final = ("g", "h")
CONSUMERS: Final = ("a", "b", "c")
BLOCK: Final = ("BLOCK", "60000")
# Beside a server whose clock is its own: a time that is over, and some that come long after the test.
PAST_MS: Final = 1
FAR_MS: Final = (4_102_444_800_000, 4_102_444_800_001, 4_102_444_800_002)
EDGES: Final = {"-": (0, 0), "+": ID_MAX}


@dataclass(frozen=True)
class ModelStep:
    """A command. `blocking` is the same with BLOCK, where there is such a form."""

    words: tuple[str, ...]
    play: Play = field(repr=False)
    blocking: Play | None = field(default=None, repr=False)

    def blocking_words(self) -> tuple[str, ...]:
        at = self.words.index("STREAMS")
        return (*self.words[:at], *BLOCK, *self.words[at:])


def _step(words: str, *more: object, play: Play, blocking: Play | None = None) -> ModelStep:
    return ModelStep((*words.split(), *map(str, more)), play, blocking)


def _model(name: str, /, *arguments: object, **options: object) -> Play:
    def play(model: Model) -> object:
        return getattr(model, name)(*arguments, **options)

    return play


def _options(**words: object) -> list[str]:
    """Options with a value, those that are None left out."""
    shown = {name: show(value) if isinstance(value, tuple) else value for name, value in words.items()}
    return [str(part) for name, value in shown.items() if value is not None for part in (name.upper(), value)]


def _flags(**flags: bool) -> list[str]:
    return [name.upper() for name, is_set in flags.items() if is_set]


keys = st.sampled_from([*KEYS[:1] * 4, *KEYS[1:]])
groups = st.sampled_from([*GROUPS[:1] * 3, *GROUPS[1:]])
consumers = st.sampled_from([*CONSUMERS[:1] * 2, *CONSUMERS[1:]])
refs = st.sampled_from(["KEEPREF", "DELREF", "ACKED"])
# Neighbours, so that a bound that is off by one meets another entry; seldom an ID at the edge of all.
near: Final = [(ms, sequence) for ms in range(1, 6) for sequence in range(3)]
EDGE_IDS: Final = [(0, 1), (ID_MAX[0], ID_MAX[1] - 1), ID_MAX]
neighbours: st.SearchStrategy[Id] = st.sampled_from(near)
numbers: st.SearchStrategy[Id] = st.sampled_from([*near * 3, *EDGE_IDS])
id_lists = st.lists(numbers, min_size=1, max_size=4)
few = st.none() | st.integers(0, 3)
small = st.integers(0, 5)
# Of milliseconds until a released entry comes back: most do at once.
delays = st.sampled_from([0, 0, 0, 1, 5])
bounds = st.sampled_from(["-", "+"]) | numbers.map(show) | neighbours.map(lambda one: f"({show(one)}")


def _low(words: str) -> Id:
    """The first ID of a range that begins so."""
    return after(parse_id(words[1:])) if words[0] == "(" else EDGES.get(words) or parse_id(words)


def _high(words: str) -> Id:
    """The last ID of a range that ends so."""
    return before(parse_id(words[1:])) if words[0] == "(" else EDGES.get(words) or parse_id(words)


@st.composite
def trims(draw: st.DrawFn) -> ModelTrim:
    """MAXLEN and MINID, exact and not."""
    kind = draw(st.sampled_from(["MAXLEN", "MINID"]))
    threshold = str(draw(st.integers(0, 6))) if kind == "MAXLEN" else show(draw(numbers))
    approx = draw(st.booleans())
    return ModelTrim(kind, threshold, approx, draw(few) if approx else None)


fields = st.lists(st.sampled_from(["x", "y"]), min_size=2, max_size=4).map(
    lambda some: some[: len(some) // 2 * 2]
)


@dataclass(frozen=True)
class Adding:
    """XADD, mostly with an ID after the last one, a neighbour or not: what that is comes out when the step is
    taken.
    """

    key: str
    entry_id: str | None
    neighbour: bool
    values: tuple[str, ...]
    words: tuple[str, ...]
    options: Mapping[str, Any] = field(repr=False)

    def after(self, last: Id) -> ModelStep:
        entry_id = self.entry_id or show(next_id(last, neighbour=self.neighbour))
        play = _model("xadd", self.key, entry_id, self.values, **self.options)
        return _step("XADD", self.key, *self.words, entry_id, *self.values, play=play)


@st.composite
def xadd(draw: st.DrawFn, *, newest: bool) -> Adding:
    key, values, trim = draw(keys), draw(fields), draw(st.none() | st.none() | trims())
    mkstream = draw(st.integers(0, 4)) > 0
    ms = st.integers(0, 12)
    odd = [numbers.map(show), ms.map(lambda ms: f"{ms}-*"), ms.map(str), *([st.just("*")] if newest else [])]
    entry_id = draw(st.one_of(odd)) if draw(st.integers(0, 3)) == 3 else None
    ref, production = "KEEPREF", None
    if newest:
        ref = draw(refs) if trim else ref
        # The clock of the small world runs among its IDs.
        if entry_id == "*":
            production = draw(st.none() | st.tuples(st.sampled_from("pq"), st.none() | st.sampled_from("12")))
    words = [*_flags(nomkstream=not mkstream), *(trim.words() if trim else [])]
    words += [ref] if ref != "KEEPREF" else []
    if production:
        words += (
            ["IDMPAUTO", production[0]] if production[1] is None else ["IDMP", production[0], production[1]]
        )
    options = {"mkstream": mkstream, "trim": trim, "refs": ref, "production": production}
    return Adding(key, entry_id, draw(st.integers(0, 3)) > 0, tuple(values), tuple(words), options)


def next_id(last: Id, *, neighbour: bool) -> Id:
    """An ID above the last one: the one beside it, for three times, or one of the next millisecond."""
    if last >= EDGE_IDS[1]:
        return ID_MAX
    return after(last) if neighbour and last[1] < 2 else (last[0] + 1, 0)


@st.composite
def xrange(draw: st.DrawFn) -> ModelStep:
    key, low, high, count, reverse = draw(keys), draw(bounds), draw(bounds), draw(few), draw(st.booleans())
    play = _model("xrange", key, _low(low), _high(high), count=count, reverse=reverse)
    ends = (high, low) if reverse else (low, high)
    return _step("XREVRANGE" if reverse else "XRANGE", key, *ends, *_options(count=count), play=play)


@st.composite
def deleting(draw: st.DrawFn, *, newest: bool) -> ModelStep:
    """XDEL, XTRIM, and with references XDELEX."""
    key, some, ref, trim = draw(keys), draw(id_lists), draw(refs), draw(trims())
    kind = draw(st.sampled_from(["XDEL", "XTRIM", "XDELEX"] if newest else ["XDEL", "XTRIM"]))
    if kind == "XDEL":
        return _step("XDEL", key, *map(show, some), play=_model("xdel", key, *some))
    if kind == "XDELEX":
        words = [key, ref, "IDS", len(some), *map(show, some)]
        return _step("XDELEX", *words, play=_model("xdelex", key, ref, *some))
    more = [ref] if newest else []
    play = _model("xtrim", key, trim, *more)
    return _step("XTRIM", key, *trim.words(), *more, play=play)


@st.composite
def expiring(draw: st.DrawFn, *, newest: bool) -> ModelStep:
    """PEXPIRE while the clock passes, PEXPIREAT beside a server with its own clock; PERSIST; the times."""
    key, kind = draw(keys), draw(st.sampled_from(["PEXPIRE", "PEXPIRE", "PERSIST", "PTTL"]))
    condition = draw(st.sampled_from(["", "", "NX", "XX", "GT", "LT"]))
    if kind == "PERSIST":
        return _step("PERSIST", key, play=_model("persist", key))
    if kind == "PTTL":
        name = "PTTL" if newest else "PEXPIRETIME"
        return _step(name, key, play=_model("pttl", key, absolute=not newest))
    ms = draw(st.integers(-1, 12) if newest else st.sampled_from([PAST_MS, *FAR_MS]))
    play = _model("pexpire", key, ms, condition, at=not newest)
    return _step("PEXPIRE" if newest else "PEXPIREAT", key, ms, *condition.split(), play=play)


@st.composite
def renaming(draw: st.DrawFn) -> ModelStep:
    """RENAME, RENAMENX, COPY."""
    key, target, replace = draw(keys), draw(keys), draw(st.booleans())
    kind = draw(st.sampled_from(["RENAME", "RENAMENX", "COPY"]))
    if kind == "COPY":
        return _step(
            "COPY", key, target, *_flags(replace=replace), play=_model("copy", key, target, replace=replace)
        )
    return _step(kind, key, target, play=_model("rename", key, target, nx=kind == "RENAMENX"))


@st.composite
def xsetid(draw: st.DrawFn) -> ModelStep:
    key, last = draw(keys), draw(numbers)
    added, gone = draw(st.none() | st.integers(0, 12)), draw(st.none() | numbers)
    words = [key, show(last), *_options(entriesadded=added, maxdeletedid=gone)]
    return _step("XSETID", *words, play=_model("xsetid", key, last, added=added, max_deleted=gone or (0, 0)))


@st.composite
def configuring(draw: st.DrawFn, *, newest: bool) -> ModelStep:
    """CONFIG SET, XCFGSET, DEL, WEIR.CLOSE, WEIR.PAUSE: what comes seldom."""
    own = ["CLOSE", "PAUSE", "RESUME"] if newest else []
    key, kind = draw(keys), draw(st.sampled_from(["node", "DEL", "XCFGSET", *own]))
    if kind == "CLOSE":
        reason, last = draw(st.sampled_from(["", "done"])), draw(st.sampled_from([(), ("x", "y")]))
        why, added = ["REASON", reason] if reason else [], ["XADD", "*", *last] if last else []
        words = [key, *why, *added]
        return _step("WEIR.CLOSE", *words, play=_model("close", key, reason, last))
    if kind in {"PAUSE", "RESUME"}:
        group = draw(groups)
        return _step(f"WEIR.{kind}", key, group, play=_model("pause", key, group, paused=kind == "PAUSE"))
    if kind == "DEL":
        return _step("DEL", key, play=_model("delete", key))
    if kind == "node" or not newest:
        node_max = draw(st.sampled_from([1, 2, 3, 100]))
        return _step("CONFIG SET stream-node-max-entries", node_max, play=_model("config", node_max))
    duration, maxsize = draw(st.none() | st.just(99)), draw(st.integers(1, 2))
    settings = [key, "IDMP-MAXSIZE", maxsize, *(["IDMP-DURATION", duration] if duration else [])]
    return _step("XCFGSET", *settings, play=_model("xcfgset", key, duration=duration, maxsize=maxsize))


@st.composite
def xread(draw: st.DrawFn, *, newest: bool, streams_max: int = 2) -> ModelStep:
    some = draw(st.lists(keys, min_size=1, max_size=streams_max))
    special = st.sampled_from(["$", "+", "0"] if newest else ["$", "0"])
    streams = [(key, draw(numbers.map(show) | special)) for key in some]
    count = draw(few)
    words = [*_options(count=count), "STREAMS", *some, *(cursor for _, cursor in streams)]
    play = partial(_model, "xread", streams, count=count)
    return _step("XREAD", *words, play=play(), blocking=play(block=True) if len(some) == 1 else None)


@st.composite
def xreadgroup(draw: st.DrawFn, *, newest: bool, streams_max: int = 2) -> ModelStep:
    group, consumer, noack = draw(groups), draw(consumers), draw(st.integers(0, 4)) == 0
    some = draw(st.lists(keys, min_size=1, max_size=streams_max, unique=True))
    cursors = st.sampled_from([">"] * 15 + ["0"] * 5 + list(map(show, near)))
    streams = [(key, draw(cursors)) for key in some]
    count, claim = draw(few), draw(st.none() | small) if newest else None
    words = [group, consumer, *_options(count=count, claim=claim), *_flags(noack=noack)]
    words += ["STREAMS", *some, *(cursor for _, cursor in streams)]
    play = partial(_model, "xreadgroup", group, consumer, streams, count=count, noack=noack, claim=claim)
    return _step(
        "XREADGROUP GROUP", *words, play=play(), blocking=play(block=True) if len(some) == 1 else None
    )


@st.composite
def settling(draw: st.DrawFn, *, newest: bool) -> ModelStep:
    """XACK, XACKDEL, XNACK, WEIR.NACK, WEIR.EXTEND."""
    key, group, some = draw(keys), draw(groups), draw(id_lists)
    kind = draw(st.sampled_from(["XACK", "XACKDEL", "XNACK", "WEIR.EXTEND"] if newest else ["XACK"]))
    shown = list(map(show, some))
    if kind == "WEIR.EXTEND":
        consumer = draw(consumers)
        return _step(kind, key, group, consumer, *shown, play=_model("extend", key, group, consumer, *some))
    if kind == "XACK":
        return _step("XACK", key, group, *shown, play=_model("xack", key, group, *some))
    if kind == "XACKDEL":
        ref = draw(refs)
        words = [key, group, ref, "IDS", len(some), *shown]
        return _step("XACKDEL", *words, play=_model("xackdel", key, group, ref, *some))
    mode, retry, force = draw(st.sampled_from(["SILENT", "FAIL", "FATAL"])), draw(few), draw(st.booleans())
    words = [key, group, mode, "IDS", len(some), *shown, *_options(retrycount=retry), *_flags(force=force)]
    more: dict[str, Any] = {"retry_count": retry, "force": force}
    delay, holder = draw(delays), None if force else draw(st.none() | consumers)
    own = _options(delay=delay or None, consumer=holder)
    more |= {"delay": delay, "consumer": holder}
    name = "WEIR.NACK" if own else "XNACK"
    return _step(name, *words, *own, play=_model("xnack", key, group, mode, *some, **more))


def deferring(key: str, group: str, entry_id: Id, delay: int) -> ModelStep:
    """An entry given back for later."""
    words = [key, group, "FAIL", "IDS", 1, show(entry_id), "DELAY", delay]
    return _step("WEIR.NACK", *words, play=_model("xnack", key, group, "FAIL", entry_id, delay=delay))


def _idles(*, newest: bool) -> st.SearchStrategy[int]:
    """Times that a real clock can't blur where a real server stands beside."""
    return small if newest else st.sampled_from([0, 50_000])


@st.composite
def xpending(draw: st.DrawFn, *, newest: bool) -> ModelStep:
    key, group = draw(keys), draw(groups)
    if draw(st.booleans()):
        return _step("XPENDING", key, group, play=_model("xpending", key, group))
    low, high, count = draw(bounds), draw(bounds), draw(st.integers(0, 6))
    idle, consumer = draw(st.none() | _idles(newest=newest)), draw(st.none() | consumers)
    words = [key, group, *_options(idle=idle), low, high, count, *([consumer] if consumer else [])]
    play = _model(
        "xpending_range", key, group, _low(low), _high(high), count, consumer=consumer, idle=idle or 0
    )
    return _step("XPENDING", *words, play=play)


@st.composite
def xclaim(draw: st.DrawFn, *, newest: bool) -> ModelStep:
    key, group, consumer, some = draw(keys), draw(groups), draw(consumers), draw(id_lists)
    min_idle = draw(_idles(newest=newest))
    idle, time = draw(st.none() | (small if newest else st.sampled_from([0, 100_000]))), None
    if idle is None:
        time = draw(st.none() | st.integers(0, 9))
    retry, last = draw(few), draw(st.none() | st.none() | numbers)
    force, just_id = draw(st.booleans()), draw(st.booleans())
    words = [key, group, consumer, min_idle, *map(show, some), *_options(idle=idle, time=time)]
    words += [*_options(retrycount=retry, lastid=last), *_flags(force=force, justid=just_id)]
    play = partial(_model, "xclaim", key, group, consumer, min_idle, *some, idle=idle, time=time)
    play = partial(play, retry_count=retry, last=last or (0, 0), force=force, just_id=just_id)
    return _step("XCLAIM", *words, play=play())


@st.composite
def xautoclaim(draw: st.DrawFn, *, newest: bool) -> ModelStep:
    key, group, consumer, min_idle = draw(keys), draw(groups), draw(consumers), draw(_idles(newest=newest))
    start, count, just_id = draw(st.just((0, 0)) | numbers), draw(st.integers(1, 3)), draw(st.booleans())
    words = [key, group, consumer, min_idle, show(start), *_options(count=count), *_flags(justid=just_id)]
    play = _model("xautoclaim", key, group, consumer, min_idle, start, count=count, just_id=just_id)
    return _step("XAUTOCLAIM", *words, play=play)


@st.composite
def xgroup(draw: st.DrawFn, *, newest: bool) -> ModelStep:
    key, group = draw(keys), draw(groups)
    kind = draw(st.sampled_from(["CREATE", "CREATE", "SETID", "DESTROY"]))
    start, read = draw(st.sampled_from(["0", "$"]) | numbers.map(show)), draw(st.none() | st.integers(0, 6))
    mkstream = draw(st.booleans())
    if kind == "DESTROY":
        return _step("XGROUP DESTROY", key, group, play=_model("xgroup_destroy", key, group))
    more = _options(entriesread=read)
    if kind == "SETID":
        return _step(
            "XGROUP SETID",
            key,
            group,
            start,
            *more,
            play=_model("xgroup_setid", key, group, start, read=read),
        )
    more += _flags(mkstream=mkstream)
    play = _model("xgroup_create", key, group, start, mkstream=mkstream, read=read)
    return _step("XGROUP CREATE", key, group, start, *more, play=play)


@st.composite
def consuming(draw: st.DrawFn) -> ModelStep:
    """Consumers made and removed."""
    key, group, consumer = draw(keys), draw(groups), draw(consumers)
    name = draw(st.sampled_from(["createconsumer", "delconsumer"]))
    return _step(
        f"XGROUP {name.upper()}", key, group, consumer, play=_model(f"xgroup_{name}", key, group, consumer)
    )


@st.composite
def xinfo(draw: st.DrawFn) -> ModelStep:
    """What is shown of a stream, and XLEN."""
    key, group, count = draw(keys), draw(groups), draw(st.integers(0, 3))
    return draw(
        st.sampled_from(
            [
                _step("XLEN", key, play=_model("xlen", key)),
                _step("XINFO STREAM", key, play=lambda model: model_info.xinfo_stream(model, key)),
                full(key),
                _step("XINFO STREAM", key, "FULL", "COUNT", count, play=_full(key, count or None)),
                _step("XINFO GROUPS", key, play=lambda model: model_info.xinfo_groups(model, key)),
                _step("XINFO CONSUMERS", key, group, play=_consumers(key, group)),
            ]
        )
    )


def full(key: str) -> ModelStep:
    """Everything about a stream."""
    return _step("XINFO STREAM", key, "FULL", "COUNT", 0, play=_full(key, None))


def _full(key: str, count: int | None) -> Play:
    return lambda model: model_info.xinfo_full(model, key, count)


def _consumers(key: str, group: str) -> Play:
    return lambda model: model_info.xinfo_consumers(model, key, group)


def adding(key: str, entry_id: str) -> ModelStep:
    """An entry."""
    return _step("XADD", key, entry_id, "x", "y", play=_model("xadd", key, entry_id, ["x", "y"]))


def grouping(key: str, group: str, start: str) -> ModelStep:
    """A group, and its stream if there is none."""
    play = _model("xgroup_create", key, group, start, mkstream=True)
    return _step("XGROUP CREATE", key, group, start, "MKSTREAM", play=play)


def consumer_made(step: ModelStep) -> list[ModelStep]:
    """The consumer of a read or a claim, made before it."""
    words = step.words
    if words[0] == "XREADGROUP":
        streams = words[words.index("STREAMS") + 1 :]
        return [_making(key, words[2], words[3]) for key in streams[: len(streams) // 2]]
    return [_making(words[1], words[2], words[3])] if words[0] in {"XCLAIM", "XAUTOCLAIM"} else []


def _making(key: str, group: str, consumer: str) -> ModelStep:
    play = _model("xgroup_createconsumer", key, group, consumer)
    return _step("XGROUP CREATECONSUMER", key, group, consumer, play=play)


def blocking(*, newest: bool) -> st.SearchStrategy[ModelStep]:
    """Reads that may wait."""
    return xread(newest=newest, streams_max=1) | xreadgroup(newest=newest, streams_max=1)


def commands(*, newest: bool) -> st.SearchStrategy[ModelStep | Adding]:
    """Any command; those that make histories more often than those that look at them or end them."""
    often: Mapping[str, tuple[int, st.SearchStrategy[ModelStep | Adding]]] = {
        "adding": (5, xadd(newest=newest)),
        "reading as a group": (6, xreadgroup(newest=newest)),
        "reading": (1, xread(newest=newest)),
        "deleting": (2, deleting(newest=newest)),
        "settling": (3, settling(newest=newest)),
        "claiming": (3, xclaim(newest=newest) | xautoclaim(newest=newest)),
        "grouping": (1, xgroup(newest=newest) | consuming()),
        "looking": (2, xrange() | xpending(newest=newest) | xinfo()),
        "renaming": (1, renaming()),
        "expiring": (1, expiring(newest=newest)),
        "rare": (1, xsetid() | configuring(newest=newest)),
    }
    names = [name for name, (times, _) in often.items() for _ in range(times)]
    return st.sampled_from(names).flatmap(lambda name: often[name][1])
