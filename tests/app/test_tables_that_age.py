"""Tables whose items count for a time: each item is asked for its age when it is looked at.

Not when others come, nor when the table is cleaned: the only item of a table is over as soon as any other. A
constant of an age that has neither a row nor a reason here fails.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from msgspec.structs import replace

from app.auth import ANONYMOUS, Grant, TokenPolicy, tokens
from app.auth.certificates import ClientCertificate
from app.auth.jwt import LEEWAY_S
from app.auth.principal import Principal
from app.auth.revocations import JwtIdentity, Revocation, Revocations
from app.auth.tickets import LIFETIME_S, TICKETS_OF_CALLER_MAX, Tickets
from app.errors import RefusalError
from engine import EngineError, entries
from engine.commands.base import Command
from engine.commands.durable_commands import AppendBatches, AppendDurable, CreateDurable, ProducerBatch
from engine.commands.types import IdempotencyKey, ProducerKey, XAdd, XIdmpRecord
from engine.commands.weir_commands import Chunk, Close, Publish, Redrive
from engine.dedup import ANSWER_AGE_MS_MAX
from engine.parts.durable import PRODUCER_AGE_MS_MAX
from engine.replies import BatchesAppended, Republished
from tests.engine.house import House, id_of
from tests.engine.test_redriving import with_letters

ROOT: Final = Path(__file__).parents[2]
_AGE: Final = re.compile(
    r"^(?:local )?_?((?:[A-Z]+_)*(?:AGE|LIFETIME|LEEWAY)_M?S(?:_MAX)?)(?:: Final)? =", re.MULTILINE
)
# Constants of an age whose table is walked over elsewhere, or that are of none.
OTHERS: Final = {
    "ANSWER_AGE_MS": "a server's, see tests/cluster/test_tables_that_age.py",
    "PRODUCER_AGE_MS": "the same",
    "REQUEST_AGE_MS": "what a gateway may send again it settles, or gives up long before",
    "FLOOR_AGE_MS": "nothing is looked up in a floor of IDs",
}
BODY: Final = entries.body([("data", "x")])
KEY: Final = IdempotencyKey("k", b"digest")


class Age(NamedTuple):
    """For how many milliseconds an item counts, more than `last_ms`; the constant that says so."""

    last_ms: int
    constant: str = ""


ANSWERS: Final = Age(ANSWER_AGE_MS_MAX, "ANSWER_AGE_MS_MAX")
PRODUCERS: Final = Age(PRODUCER_AGE_MS_MAX, "PRODUCER_AGE_MS_MAX")
# As in Redis, an entry of this age counts no more.
IDMP: Final = Age(100_000 - 1)
FOR_EVER: Final = Age(100 * 366 * 24 * 3600 * 1000)


class Row(NamedTuple):
    """A table of the engine: how an item of it comes to be, and whether it counts."""

    age: Age
    keep: Callable[[House], object]
    counts: Callable[[House], bool]


def once(
    age: Age,
    command: Command,
    *,
    before: Callable[[House], object] = lambda _: None,
    again: Command | None = None,
    refused: str = "",
) -> Row:
    """Of a command that is answered as the first time as long as its item counts; `again` is asked then."""

    def keep(house: House) -> None:
        before(house)
        house.run(command)

    def counts(house: House) -> bool:
        if refused and is_refused(house, again or command, refused):
            return False
        reply = house.run(again or command)
        return isinstance(reply, Republished) or bool(getattr(reply, "duplicate", False))

    return Row(age, keep, counts)


def is_refused(house: House, command: Command, code: str) -> bool:
    try:
        house.run(command)
    except EngineError as refusal:
        return refusal.code == code
    return False


def keyed(key: IdempotencyKey | None = KEY, **more: Any) -> XAdd:
    return XAdd(stream="s", bodies=[BODY], idempotency=key, **more)


def durable(house: House) -> None:
    house.run(CreateDurable(stream="s", media="text/plain"))


def redrive(letter: str) -> Redrive:
    return Redrive(stream="s", group="g", letters="dead", ids=[id_of(letter)], idempotency=KEY)


def record(house: House, place: int) -> XIdmpRecord:
    """Of the entry at this place of the two that there are."""
    return XIdmpRecord(stream="s", producer_key=PRODUCER, id=house.key("s").stream.last_id - 1 + place)


def keep_record(house: House) -> None:
    house.run(XAdd(stream="s", bodies=[BODY] * 2))
    house.run(record(house, 0))


def first_of_batches(house: House) -> bool:
    first, _ = house.of(BatchesAppended, TOGETHER).replies
    return first is not None and first.duplicate


PRODUCER: Final = ProducerKey(b"p", b"k")
BATCH: Final = ProducerBatch("p", 3, 0)
APPEND: Final = AppendDurable(stream="s", bodies=[BODY], kind="text/plain", batch=BATCH)
TOGETHER: Final = AppendBatches(
    stream="s", bodies=[BODY] * 2, kind="text/plain", batches=[BATCH, BATCH], counts=[1, 1]
)
ROWS: Final = {
    "an entry under a key": once(ANSWERS, keyed()),
    "an end under a key": once(ANSWERS, Close(stream="s", add=keyed()), refused="stream_closed"),
    "a publication under a key": once(ANSWERS, Publish(parts=[keyed(None)], idempotency=KEY)),
    "a redrive under a key": once(
        ANSWERS,
        redrive("5-0"),
        before=lambda house: with_letters(house, ["5-0", "5-1"]),
        again=redrive("5-1"),
    ),
    "an entry of an idempotent producer": once(IDMP, keyed(None, producer_key=PRODUCER)),
    # Another ID under its key is refused as long as it counts.
    "a record of an idempotent producer": Row(
        IDMP, keep_record, lambda house: is_refused(house, record(house, 1), "invalid")
    ),
    "a batch of Durable Streams": once(PRODUCERS, APPEND, before=durable),
    "batches of Durable Streams": Row(
        PRODUCERS, once(PRODUCERS, APPEND, before=durable).keep, first_of_batches
    ),
    "an end of Durable Streams": once(
        PRODUCERS, replace(APPEND, closes=True), before=durable, refused="stream_closed"
    ),
    "a chunk": once(FOR_EVER, Publish(parts=[keyed(None)], chunk=Chunk("p", 1, 1))),
}


@pytest.mark.parametrize("again", [None, House.restart, House.rewrite], ids=["", "restart", "rewrite"])
@pytest.mark.parametrize("what", ROWS)
def test_an_item_of_the_engine_counts_up_to_its_age(what: str, again: Callable[[House], None] | None) -> None:
    """And no millisecond longer, although nothing else came; also over a restart, and a rewrite."""
    row = ROWS[what]
    for beside_ms in (-1, 0, 1):
        house = House()
        row.keep(house)
        if again is not None:
            again(house)
        house.pass_ms(row.age.last_ms + beside_ms)
        assert row.counts(house) == (beside_ms <= 0 or row.age is FOR_EVER), beside_ms
        house.check()


# --- of the gateway -----------------------------------------------------------------------------------------


class Moment:
    """A clock in seconds."""

    now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


Counts = Callable[[], object]


def a_ticket(clock: Moment) -> Counts:
    tickets = Tickets(clock)
    text = tickets.issue(ANONYMOUS, "")
    return lambda: tickets.redeem(text, "")


def the_last_ticket(clock: Moment) -> Counts:
    """Another one is refused as long as these count."""
    tickets = Tickets(clock)
    for _ in range(TICKETS_OF_CALLER_MAX):
        tickets.issue(ANONYMOUS, "")

    def counts() -> bool:
        try:
            tickets.issue(ANONYMOUS, "")
        except RefusalError:
            return True
        return False

    return counts


END_S: Final = 3_600


def at(clock: Moment, more_s: float) -> datetime:
    return datetime.fromtimestamp(clock.now_s + more_s, UTC)


def a_token(clock: Moment) -> Counts:
    """One that is remembered, too."""
    made = tokens.create((Grant.parse("read:s"),), expires_at=at(clock, END_S))
    policy = TokenPolicy([made.token], clock)
    principal = Principal("x", [], expires_s=clock.now_s + END_S, token=made.token)
    headers = {b"authorization": f"Bearer {made.text}".encode()}
    policy._remember((headers[b"authorization"], b"", None), principal)  # noqa: SLF001 - as `authenticate` does
    return lambda: policy.recognise(headers)


def a_certificate(clock: Moment) -> Counts:
    made = tokens.create((Grant.parse("read:s"),))
    known = made.token.model_copy(update={"hash": tokens.certificate_hash("dns:a")})
    policy = TokenPolicy([known], clock)
    certificate = ClientCertificate(("dns:a",), clock.now_s + END_S)

    def counts() -> bool:
        try:
            policy.of_certificate(certificate)
        except RefusalError:
            return False
        return True

    return counts


def a_revocation(clock: Moment) -> Counts:
    """Of a JWT that ends then, and is accepted a little longer."""
    revocations = Revocations(clock)
    revocation = Revocation(kind="jti", value="j", revoked_at=at(clock, 0), expires_at=at(clock, END_S))
    revocations.add([revocation])
    return lambda: revocations.has_jwt(JwtIdentity("j", None, None))


def a_listed_revocation(clock: Moment) -> Counts:
    """Nor does one that is over take the place of another."""
    revocations = Revocations(clock)
    now, end = at(clock, 0), at(clock, END_S)
    revocations.add(
        [Revocation(kind="subject", value="s", revoked_at=now, issued_before=now, expires_at=end)]
    )
    return lambda: len(revocations)


OF_GATEWAY: Final[dict[Callable[[Moment], Counts], tuple[float, str]]] = {
    a_ticket: (LIFETIME_S, "LIFETIME_S"),
    the_last_ticket: (LIFETIME_S, "LIFETIME_S"),
    a_token: (END_S, ""),
    a_certificate: (END_S, ""),
    a_revocation: (END_S + LEEWAY_S, "LEEWAY_S"),
    a_listed_revocation: (END_S + LEEWAY_S, "LEEWAY_S"),
}


@pytest.mark.parametrize("keep", OF_GATEWAY, ids=lambda keep: keep.__name__)
def test_an_item_of_the_gateway_counts_up_to_its_age(keep: Callable[[Moment], Counts]) -> None:
    """Not at it, and no millisecond longer."""
    for beside_s in (-0.001, 0.0, 0.001):
        clock = Moment()
        counts = keep(clock)
        clock.now_s += OF_GATEWAY[keep][0] + beside_s
        assert bool(counts()) == (beside_s < 0), beside_s


# --- none stays outside -------------------------------------------------------------------------------------


def test_every_age_has_a_row_or_a_reason() -> None:
    """By the names of constants in the code, and in the scripts of a backend."""
    files = [*ROOT.glob("engine/**/*.py"), *ROOT.glob("app/**/*.py"), *ROOT.glob("engine/cluster/lua/*.lua")]
    named = {name for file in files for name in _AGE.findall(file.read_text(encoding="utf-8"))}
    rows = {row.age.constant for row in ROWS.values()} | {name for _, name in OF_GATEWAY.values()}
    assert named == (rows - {""}) | OTHERS.keys()
