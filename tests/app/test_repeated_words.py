"""Client libraries of Redis repeat by themselves what is refused with certain words: so no refusal of what
may have been done begins with one.

`REPEATED` has these words, or beginnings of sentences, as the libraries' sources have them.
"""

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest
from redis import __version__ as redis_version
from redis.backoff import NoBackoff
from redis.cluster import RedisCluster
from redis.connection import DefaultParser
from redis.exceptions import AskError, MovedError, TryAgainError
from redis.retry import Retry

from app.errors import CODES, RefusalError
from app.redis import wire
from app.redis.queue import in_words_of_redis, sent_together
from engine import EngineError, entries, errors
from engine.cluster.refusals import KNOWN, in_part, refusal_of, unavailable
from engine.cluster.replication import BackendDurability, not_replicated
from engine.cluster.wire import ConnectionLostError, ServerError
from engine.commands.base import Command
from engine.commands.types import XAdd, XLen
from engine.replies import Added, Reply

ROOT: Final = Path(__file__).parent.parent.parent
_MAX_CLIENTS: Final = "ERR max number of clients reached"
REPEATED: Final[Mapping[str, Sequence[str]]] = {
    # redis/_parsers/base.py with redis/exceptions.py and redis/cluster.py; a test compares these.
    "redis-py 8.1.0": [
        *("ASK", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MOVED", "NOAUTH", "TRYAGAIN", "WRONGPASS"),
        *(_MAX_CLIENTS, "ERR invalid password", "ERR problem with LDAP service"),
        "ERR Client sent AUTH, but no password is set",
        "ERR AUTH <password> called without any password configured for the default user",
    ],
    # error.go, shouldRetry; osscluster.go follows the redirections.
    "go-redis 9.22.0": [
        *("ASK", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MOVED", "NOREPLICAS", "READONLY", "TRYAGAIN"),
        _MAX_CLIENTS,
    ],
    # lib/cluster/index.ts, handleError; a client of one server repeats by an option, `reconnectOnError`.
    "ioredis 6.0.0": ["ASK", "CLUSTERDOWN", "MOVED", "TRYAGAIN"],
    # cluster/ClusterCommand.java. LOADING, BUSY and READONLY have classes of their own, and are not repeated.
    "lettuce 7.8.0-SNAPSHOT": ["ASK", "MOVED"],
    # client/handler/CommandDecoder.java with RedisRetryException and command/RedisExecutor.java.
    "redisson 4.7.1-SNAPSHOT": [
        *("ASK", "BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MOVED", "NOREPLICAS", "READONLY"),
        *("REDIRECT", "TRYAGAIN", "WAIT", "ERR WAIT", "WRONGPASS"),
    ],
    # glide-core/redis-rs/redis/src/types.rs, retry_method.
    "valkey-glide 2.5.2-rc1": [
        *("ASK", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MOVED", "READONLY", "TRYAGAIN"),
    ],
    # lib/redis_client.rb: these are ConnectionErrors.
    "redis-client 0.30.0": ["MASTERDOWN", "READONLY"],
}
BEGINNINGS: Final = sorted({one for some in REPEATED.values() for one in some})
# Sentences of the tree that begin so, and why nothing was done then.
SAID: Final[Mapping[tuple[str, str], str]] = {
    ("app/redis/queue.py", "LOADING"): "the gateway has no engine yet",
    ("app/archived/client.py", "BUSY"): "a read of history",
    ("app/archived/client.py", "TRYAGAIN"): "a read of history",
    ("app/doors/resp/session.py", "NOAUTH"): "before AUTH nothing is run",
    ("app/doors/resp/connection.py", "NOAUTH"): "before AUTH nothing is run",
    ("app/doors/resp/commands/session_commands.py", "NOAUTH"): "HELLO itself",
    ("app/doors/resp/commands/session_commands.py", "WRONGPASS"): "AUTH itself",
    ("app/doors/resp/port.py", "ERR"): "a connection that is not taken",
    ("app/redis/parsers/parse_server.py", "WAIT"): "a line of help",
    ("engine/errors.py", "LOADING"): "`restarting` of what has not run",
    ("engine/cluster/refusals.py", "LOADING"): "`unavailable` of what has not run",
}
NOTHING_DONE: Final = {"starting", "restarting", "too_many_sockets", "unauthenticated"}
BODY: Final = entries.body([("a", "1")])


def is_repeated(redis: str) -> bool:
    return any(redis == one or redis.startswith(f"{one} ") for one in BEGINNINGS)


def words_of(beginnings: Sequence[str]) -> set[str]:
    return {one for one in beginnings if " " not in one}


def test_the_engine_knows_the_words() -> None:
    """All but those of AUTH, which are said before anything runs."""
    assert words_of(BEGINNINGS) - {"NOAUTH", "WRONGPASS"} == errors.REPEATED_WORDS


def test_redis_py_repeats_what_the_list_says() -> None:
    """A client of one server repeats after fewer of them than one of a cluster."""
    one_server = Retry(NoBackoff(), 1)._supported_errors  # noqa: SLF001 - it has no other name
    repeated = (*one_server, *RedisCluster.ERRORS_ALLOW_RETRY, AskError, MovedError, TryAgainError)
    found = set()
    classes: dict[str, Any] = DefaultParser.EXCEPTION_CLASSES
    for word, known in classes.items():
        sentences = known if isinstance(known, dict) else {"": known}
        for sentence, kind in sentences.items():
            if issubclass(kind, repeated):
                found.add(f"{word} {sentence}".strip())
    listed = REPEATED[f"redis-py {redis_version}"]
    assert {one for one in found if not one.startswith(tuple(listed))} == set()
    assert {one for one in listed if not any(said.startswith(one) for said in found)} == set()


# --- every refusal

# Of arguments of functions that make one.
SAMPLES: Final[Mapping[Any, Sequence[Any]]] = {
    bool: [False, True],
    int: [1],
    str: ["x"],
    str | None: ["x"],
}


def of_the_engine() -> Iterator[EngineError]:
    """What each function of engine/errors.py makes, with each value of what is true or false, and what those
    that turn a refusal into another one make of it.
    """
    functions = [
        (one, [parameter.annotation for parameter in inspect.signature(one).parameters.values()])
        for one in vars(errors).values()
        if inspect.isfunction(one)
        and one.__module__ == errors.__name__
        and inspect.signature(one).return_annotation is EngineError
    ]
    turning = [one for one, kinds in functions if kinds == [EngineError]]
    for make, kinds in functions:
        if EngineError in kinds:
            continue
        names = inspect.signature(make).parameters
        for values in product(*(SAMPLES[kind] for kind in kinds)):
            bound = inspect.signature(make).bind_partial()
            bound.arguments.update(zip(names, values, strict=True))
            refusal = make(*bound.args, **bound.kwargs)
            yield from (refusal, *(turn(refusal) for turn in turning))


def of_a_backend() -> Iterator[EngineError]:
    """What a server says, to a read, to a write, and to one of several; what never came back."""
    for beginning, writes, is_part in product((*KNOWN, "ODD", "ERR odd"), (False, True), (False, True)):
        yield refusal_of(ServerError(f"{beginning} a sentence"), writes=writes, in_part=is_part)
    for may_have_run, writes in product((False, True), (False, True)):
        yield refusal_of(ConnectionLostError("lost", may_have_run=may_have_run), writes=writes)
    yield not_replicated(BackendDurability(replicas=1), "the server says 0")
    for is_unknown in (False, True):
        yield unavailable("away", is_unknown=is_unknown)
        yield in_part(unavailable("away", is_unknown=is_unknown))


def of_the_gateway() -> Iterator[EngineError]:
    """Each code of the table, as Redis clients get it."""
    for code in CODES:
        yield in_words_of_redis(RefusalError(code, "a sentence"))


@pytest.mark.parametrize("every", [of_the_engine, of_a_backend, of_the_gateway])
def test_what_clients_repeat_was_not_done(every: Any) -> None:
    """Every refusal there is, against the lists of every library. What was not done keeps the words at which
    clients wait and repeat.
    """
    refusals = list(every())
    repeated = [one for one in refusals if is_repeated(one.redis)]
    wrong = [
        one.redis
        for one in repeated
        if one.members.get("outcome") != "not done" and one.code not in NOTHING_DONE
    ]
    assert wrong == []
    assert {one.redis.partition(" ")[0] for one in repeated} >= {"LOADING"}


def test_no_refusal_of_what_may_have_been_done_can_be_made_so() -> None:
    for word in errors.REPEATED_WORDS:
        with pytest.raises(AssertionError):
            EngineError("backend_unavailable", f"{word} a sentence", outcome="unknown")
        assert EngineError("backend_unavailable", f"{word} a sentence", outcome="not done").code


def test_each_sentence_with_such_a_word_is_for_what_was_not_done() -> None:
    """Wherever it stands in the tree: a new one comes into the table, with the reason."""
    beginning = re.compile(rf"""["']-?({"|".join(words_of(BEGINNINGS))}) |["'](ERR) {_MAX_CLIENTS[4:]}""")
    found = set()
    for path in (one for folder in ("app", "engine") for one in (ROOT / folder).rglob("*.py")):
        for word, other in beginning.findall(path.read_text(encoding="utf-8")):
            found.add((str(path.relative_to(ROOT)), word or other))
    assert found == set(SAID)


# --- what is sent together


LOADING: Final = unavailable("away")
MAYBE: Final = unavailable("away", is_unknown=True)
ADD: Final = XAdd(stream="s", bodies=[BODY])
READ: Final = XLen(stream="s")
ADDED: Final = Added([1])


@pytest.mark.parametrize(
    ("commands", "replies", "is_part", "repeats"),
    [
        ([ADD, ADD], [LOADING, LOADING], False, True),
        ([READ, ADD], [5, LOADING], False, True),
        ([ADD, ADD], [ADDED, LOADING], False, False),
        ([ADD, ADD], [LOADING, ADDED], False, False),
        ([ADD, ADD], [LOADING, MAYBE], False, False),
        ([ADD], [LOADING], False, True),
        ([ADD], [LOADING], True, False),
    ],
)
def test_what_is_sent_together_is_repeated_together(
    commands: list[Command], replies: list[Reply | EngineError], *, is_part: bool, repeats: bool
) -> None:
    """redis-py repeats all of a pipeline where one is LOADING, go-redis where the first one is."""
    told = sent_together(commands, replies, is_part=is_part)
    words = {wire.refusal(one).split(b" ")[0] for one in told if isinstance(one, EngineError)}
    assert (b"-LOADING" in words) == repeats
    assert [type(one) for one in told] == [type(one) for one in replies]
    assert all(
        one.code == other.code and one.detail == other.detail
        for one, other in zip(told, replies, strict=True)
        if isinstance(one, EngineError) and isinstance(other, EngineError)
    )
