"""Random histories of a small world give what Redis 7.0 and 8.2 give, as far as these and 8.8 are the same.

Left out by name, because Redis changed it since (docs/semantics.md has what 8.8 does):
* `entries-read` and `lag`, whose rules are 8.8's here; the naive model has them.
* Fields of XINFO that 7.0 has not: idempotence, `nacked-count`, `active-time`, `inactive`.
* Whether a read or a claim that finds nothing makes its consumer: consumers are made beforehand.
* What blocked readers get when something is removed: nothing is, while readers wait.
* XSETID below the highest deleted ID, which 7.0 allows on an empty stream, and its order of errors.
* Trims with `~` by references: 8.2 removes nothing of a node that is not whole.
Left out because Weir differs on purpose (docs/semantics.md):
* A node limit that is raised while there are streams: Redis goes on filling an older node once the one behind
  it is gone, Weir never opens a sealed node again.
* A node whose live entries an exact MINID trims all, while the last one in it was deleted before and has a
  higher ID: Redis keeps the empty node, Weir removes it.
Times and idle times are not compared: two clocks.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests import halves
from tests.engine.model_state import ID_MAX, Id, parse_id, show
from tests.engine.real_redis import RealRedis
from tests.engine.running import Running, same
from tests.engine.steps import (
    GROUPS,
    KEYS,
    PAST_MS,
    Adding,
    ModelStep,
    adding,
    blocking,
    commands,
    consumer_made,
    deleting,
    full,
    grouping,
    near,
    settling,
)
from tests.engine.world import NOW_MS, World, as_list, pairs_of

any_command = commands(newest=False)
READERS_MAX: Final = 3
SHARED: Final = {
    "STREAM": {
        *("length", "radix-tree-keys", "last-generated-id", "max-deleted-entry-id", "entries-added"),
        *("recorded-first-entry-id", "groups", "first-entry", "last-entry", "entries"),
    },
    "GROUPS": {"name", "consumers", "pending", "last-delivered-id", "pel-count"},
    "CONSUMERS": {"name", "pending", "pel-count"},
}
NO_BOUND: Final = (ID_MAX[0] + 1, 0)
# What 7.0 answers otherwise to those that wait.
REMOVING: Final = {"XDEL", "XDELEX", "XACKDEL", "XTRIM", "DEL", "XSETID", "RENAME", "RENAMENX", "COPY"}
# By references, which 7.0 does not know.
referring = (deleting(newest=True) | settling(newest=True)).filter(
    lambda step: step.words[0] in {"XTRIM", "XDELEX", "XACKDEL"} and "~" not in step.words
)
# Valkey makes the consumer of a waiting reader anew when the stream grows, Weir when it has an entry for it.
FORGETTING: Final = {("XGROUP", "DESTROY"), ("XGROUP", "DELCONSUMER")}


def below(words: tuple[str, ...]) -> Id:
    """The ID below which the command trims exactly, above all IDs where it does not."""
    minid = words[words.index("MINID") + 1] if "MINID" in words else "~"
    return NO_BOUND if minid == "~" else parse_id(minid)


def sinks(commands: Sequence[tuple[str, ...]]) -> bool:
    """Whether an XSETID names an ID below the highest deleted one that an XSETID before it has set: Redis 7.0
    lets it, later ones and Weir do not.
    """
    deleted_max: Id = (0, 0)
    for words in commands:
        if words[0] == "XSETID":
            if parse_id(words[2]) < deleted_max:
                return True
            if "MAXDELETEDID" in words:
                deleted_max = parse_id(words[words.index("MAXDELETEDID") + 1])
    return False


def comparable(words: tuple[str, ...], reply: object) -> object:
    """The reply without what the two may answer differently."""
    if isinstance(reply, str) and reply.startswith("-"):
        if words[0] == "XSETID":
            return "-"
        return reply.replace("-ERR ", "-")
    if words[0] == "XPENDING" and len(words) > 3:
        return [[*as_list(row)[:2], as_list(row)[3]] for row in as_list(reply)]
    if words[0] == "XINFO":
        return _of_maps(words[1], reply)
    return reply


def _of_maps(what: str, reply: object) -> object:
    """A map of XINFO, or a list of them, with the names that both have."""
    if what != "STREAM":
        return [_shared(what, element) for element in as_list(reply)]
    found = _shared(what, reply)
    if isinstance(found["groups"], list):
        found["groups"] = [_full_group(group) for group in found["groups"]]
    return found


def _shared(what: str, flat: object) -> dict[object, object]:
    return {name: value for name, value in pairs_of(flat).items() if name in SHARED[what]}


def _full_group(flat: object) -> object:
    values = pairs_of(flat)
    consumers = [_full_consumer(consumer) for consumer in as_list(values["consumers"])]
    pending = [
        [*as_list(row)[:2], as_list(row)[3]] for row in as_list(values.get("pending", values.get("pel")))
    ]
    return [values["name"], values["last-delivered-id"], values["pel-count"], pending, consumers]


def _full_consumer(flat: object) -> object:
    values = pairs_of(flat)
    pending = [
        [*as_list(row)[:1], as_list(row)[2]] for row in as_list(values.get("pending", values.get("pel")))
    ]
    return [values["name"], values["pel-count"], pending]


class BesideRedis(RuleBasedStateMachine):
    """The engine and the server, command by command."""

    def __init__(self, server: RealRedis) -> None:
        super().__init__()
        self.server = server
        self.server.empty()
        self.running: Any = self.begin_ours()
        self.serial = 0
        # Deleted entries are not above it. XSETID may lower what XINFO shows.
        self.deleted_max = (0, 0)

    def begin_ours(self) -> Any:
        """What is compared with the server: empty, with the methods of Running."""
        return Running(NOW_MS)

    def teardown(self) -> None:
        self.running.end()
        self.server.empty()

    @initialize(
        entries=st.integers(0, 5), groups=st.integers(0, 3), start=st.sampled_from(["0", "0", "$", "1-1"])
    )
    def begin(self, entries: int, groups: int, start: str) -> None:
        """Most histories begin with a stream and groups."""
        for entry_id in near[:entries]:
            self._run(adding("s", show(entry_id)))
        for group in GROUPS[:groups]:
            self._run(grouping("s", group, start))

    def _taken(self, step: ModelStep | Adding) -> ModelStep:
        if isinstance(step, ModelStep):
            return step
        info = self.server.call("XINFO", "STREAM", step.key)
        last = str(pairs_of(info)["last-generated-id"]) if not isinstance(info, str) else "0-0"
        return step.after(parse_id(last))

    def _left_out(self, step: ModelStep) -> bool:
        if step.words[0] == "XSETID" and parse_id(step.words[2]) < self._deleted_max_now(step.words[1]):
            return True
        if step.words[0] == "CONFIG" and self._raises_node_max(int(step.words[-1])):
            return True
        if below(step.words) <= self.deleted_max:
            return True
        if not self.server.waiting:
            return False
        expires = step.words[0] == "PEXPIREAT" and int(step.words[2]) == PAST_MS
        removes = expires or step.words[0] in REMOVING or step.words[:2] in FORGETTING
        return removes or (step.words[0] == "XADD" and bool({"MAXLEN", "MINID"} & set(step.words)))

    def _deleted_max_now(self, key: str) -> Id:
        """Commands before this one may have raised it since all was compared."""
        info = self.server.call("XINFO", "STREAM", key)
        shown = "0-0" if isinstance(info, str) else str(pairs_of(info)["max-deleted-entry-id"])
        return max(self.deleted_max, parse_id(shown))

    def _raises_node_max(self, node_max: int) -> bool:
        limit = pairs_of(self.server.call("CONFIG", "GET", "stream-node-max-entries"))[
            "stream-node-max-entries"
        ]
        return node_max > int(str(limit)) and self.server.call("EXISTS", *KEYS) != 0

    def _run(self, *steps: ModelStep) -> None:
        made = [made for step in steps for made in (*consumer_made(step), step)]
        kinds = {step.words[0] for step in made}
        deletes = not kinds.isdisjoint({"XDEL", "XDELEX", "XACKDEL"})
        if deletes and ("XSETID" in kinds or any(below(step.words) < NO_BOUND for step in made)):
            return
        if any(self._left_out(step) for step in made) or sinks([step.words for step in made]):
            return
        if len(made) > 1 and len(steps) > 1:
            expected = self.server.transaction(*(step.words for step in made))
            replies = self.running.run(*made)
        else:
            expected = [self.server.call(*step.words) for step in made]
            replies = [self.running.run(step)[0] for step in made]
        for step, theirs, ours in zip(made, expected, replies, strict=True):
            assert same(comparable(step.words, theirs), comparable(step.words, ours)), (
                f"{step.words}: Redis says {theirs}, the engine {ours}"
            )
        self._compare_served()

    def _compare_served(self) -> None:
        theirs, ours = self.server.served(), self.running.served()
        assert same(sorted(theirs.items()), sorted(ours.items())), f"Redis serves {theirs}, the engine {ours}"
        assert self.running.readers_waiting == len(self.server.waiting)

    @rule(step=any_command)
    def command(self, step: ModelStep | Adding) -> None:
        self._run(self._taken(step))

    @rule(steps=st.lists(any_command, min_size=2, max_size=5))
    def commands(self, steps: list[ModelStep | Adding]) -> None:
        """Some, one after the other."""
        for step in steps:
            self._run(self._taken(step))

    @rule(steps=st.lists(any_command, min_size=2, max_size=4))
    def transact(self, steps: list[ModelStep | Adding]) -> None:
        """Several commands as one turn."""
        self._run(*map(self._taken, steps))

    @precondition(lambda self: len(self.server.waiting) < READERS_MAX)
    @rule(step=blocking(newest=False))
    def block(self, step: ModelStep) -> None:
        """A read that waits if it finds nothing."""
        for made in consumer_made(step):
            self._run(made)
        self.serial += 1
        name = f"reader {self.serial}"
        self.server.block(name, *step.blocking_words())
        self.running.block(name, step)
        theirs, ours = self.server.served(), self.running.served()
        theirs = {name: comparable(step.words, reply) for name, reply in theirs.items()}
        ours = {name: comparable(step.words, reply) for name, reply in ours.items()}
        assert same(sorted(theirs.items()), sorted(ours.items())), f"Redis serves {theirs}, the engine {ours}"

    @precondition(lambda self: self.server.waiting)
    @rule(which=st.integers(0, READERS_MAX))
    def give_up(self, which: int) -> None:
        """A reader goes away."""
        name = self.server.waiting[which % len(self.server.waiting)]
        self.running.cancel(name)
        self.server.cancel(name)

    @precondition(lambda self: not self.server.waiting)
    @rule()
    def crash(self) -> None:
        """On our side alone: the server beside goes on."""
        self.running.crash()

    @precondition(lambda self: not self.server.waiting)
    @rule()
    def rewrite(self) -> None:
        """On our side alone as well."""
        self.running.rewrite()

    @invariant()
    def everything_agrees(self) -> None:
        """Integrity in the engine, and all that XINFO STREAM FULL shows is what the server has."""
        self.running.check()
        for key in KEYS:
            step = full(key)
            theirs = comparable(step.words, self.server.call(*step.words))
            ours = comparable(step.words, self.running.look(step))
            assert same(theirs, ours), f"{key}: Redis has {theirs}, the engine {ours}"
            if isinstance(theirs, dict):
                self.deleted_max = max(self.deleted_max, parse_id(theirs["max-deleted-entry-id"]))


class BesideRedis8(BesideRedis):
    """The same with what Redis 8.2 has."""

    @rule(step=referring)
    def refer(self, step: ModelStep) -> None:
        self._run(step)


def test_an_exact_minid_leaves_no_empty_node(server: RealRedis) -> None:
    """The other one: Redis keeps a node whose last entry was deleted and is not below the bound."""
    server.empty()
    world = World()
    for words in ("XADD s 1-0 a 1", "XADD s 2-0 a 1", "XDEL s 2-0", "XTRIM s MINID 2-0"):
        assert server.call(*words.split()) == world.call(*words.split())
    theirs = pairs_of(server.call("XINFO", "STREAM", "s"))
    assert [theirs["radix-tree-keys"], theirs["length"]] == [1, 0]
    assert world.info("s", "radix-tree-keys", "length") == [0, 0]


def test_a_raised_limit_opens_no_sealed_node(server: RealRedis) -> None:
    """The difference that random histories leave out: Redis fills the older node again."""
    server.empty()
    world = World()
    for words in (
        "CONFIG SET stream-node-max-entries 1",
        "XADD s 1-0 a 1",
        "XADD s 2-0 a 1",
        "CONFIG SET stream-node-max-entries 2",
        "XDEL s 2-0",
        "XADD s 3-0 a 1",
    ):
        assert server.call(*words.split()) == world.call(*words.split())
    theirs = pairs_of(server.call("XINFO", "STREAM", "s"))
    assert theirs["radix-tree-keys"] == 1
    assert world.info("s", "radix-tree-keys", "length") == [2, theirs["length"]]


def test_the_engine_beside_a_real_server(server: RealRedis) -> None:
    """Reply for reply, blocked readers included; with crashes and rewrites of ours between."""
    begin: Any = partial(BesideRedis if server.kind == "redis" else BesideRedis8, server)
    run_state_machine_as_test(begin, settings=settings(max_examples=halves.some(80), stateful_step_count=30))


def test_the_servers_are_those_that_the_documents_name(server: RealRedis) -> None:
    version = str(server.call("INFO", "server")).partition("redis_version:")[2].split()[0]
    assert version.startswith({"redis": "7.0.", "redis8": "8.2."}[server.kind])
