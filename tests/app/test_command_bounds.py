"""The command API's limits: what a command may carry, and how long an answer may be.

Each refusal names its limit and the way round it, and has changed nothing.
"""

from collections.abc import Sequence

import httpx
import pytest

from app.settings import Settings
from tests.bounds import bounded

ONE, PIPELINE, TRANSACTION = "/v1/commands", "/v1/commands/pipeline", "/v1/commands/multi-exec"
LARGE = "x" * 500


@pytest.fixture
def settings() -> Settings:
    """Eight entries of LARGE are more than one answer."""
    return bounded(
        log_requests="none",
        body_bytes_max=256 << 10,
        entry_bytes_max=1_024,
        entry_fields_max=16,
        ids_max=10,
        request_streams_max=3,
        count_default=5,
        count_max=5,
        answer_bytes_max=4_096,
        buffer_bytes_max=20_480,
        wait_ms_max=1_000,
    )


async def run(http: httpx.AsyncClient, *words: object) -> object:
    """The result, or the error's text."""
    found = (await http.post(ONE, json=list(words))).json()
    return found["result"] if "result" in found else found["error"]


async def pipeline(http: httpx.AsyncClient, *rows: Sequence[object], path: str = PIPELINE) -> list[object]:
    """The same of several."""
    outcomes = (await http.post(path, json=list(rows))).json()
    return [one["result"] if "result" in one else one["error"] for one in outcomes]


async def fill(http: httpx.AsyncClient, count: int, value: str = LARGE, stream: str = "s") -> None:
    await pipeline(http, *[["XADD", stream, f"{number}-0", "f", value] for number in range(1, count + 1)])


# ---- what is written


@pytest.mark.parametrize("options", [(), ("NOMKSTREAM",), ("IDMP", "p", "k"), ("IDMPAUTO", "p")])
async def test_an_entry_is_no_larger_than_through_rest(
    http: httpx.AsyncClient, options: tuple[str, ...]
) -> None:
    """413 with `error` beside, as REST says; the same as an error among others. Nothing is stored."""
    await run(http, "XADD", "s", "1-0", "f", "v")
    large: list[object] = ["XADD", "s", *options, "*", "f", "x" * 1_025]
    answer = await http.post(ONE, json=large)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (413, "entry_too_large")
    assert problem["error"].startswith("ERR entry too large: an entry has at most 1024 bytes")
    assert "entry_bytes_max" in problem["error"]
    for path in (PIPELINE, TRANSACTION):
        first, second = await pipeline(http, large, ["XLEN", "s"], path=path)
        assert (first, second) == (problem["error"], 1)
    rest = await http.post("/v1/streams/s/entries", json={"fields": {"f": "x" * 1_025}})
    assert (rest.status_code, rest.json()["code"]) == (413, "entry_too_large")


async def test_both_apis_draw_the_line_at_the_same_byte(http: httpx.AsyncClient) -> None:
    """What one takes the other takes too, to the last byte."""
    for value, fits in (("x" * 1_005, True), ("x" * 1_006, False)):
        rest = await http.post("/v1/streams/s/entries", json={"fields": {"f": value}})
        command = await http.post(ONE, json=["XADD", "s", "*", "f", value])
        assert (rest.status_code == 201, command.status_code == 200) == (fits, fits)


@pytest.mark.parametrize("repeated", [True, False])
async def test_an_entry_has_no_more_fields_than_through_rest(
    http: httpx.AsyncClient, *, repeated: bool
) -> None:
    """16 are fine, 17 are not, whether their names differ or not."""
    fields = [word for number in range(17) for word in ("f" if repeated else f"f{number}", "v")]
    assert await run(http, "XADD", "s", "1-0", *fields[:32]) == "1-0"
    refusal = await run(http, "XADD", "s", "2-0", *fields)
    assert str(refusal).startswith("ERR too many fields: an entry has at most 16 (entry_fields_max)")
    assert await pipeline(http, ["XADD", "s", "*", *fields], ["XLEN", "s"], path=TRANSACTION) == [refusal, 1]


# ---- what is named


async def test_a_command_may_name_as_many_as_its_limits_say(http: httpx.AsyncClient) -> None:
    """Ten IDs, three streams."""
    await fill(http, 3, "v")
    assert await run(http, "EXISTS", "s", "s", "s") == 3
    assert await run(http, "XDEL", "s", *[f"{number}-0" for number in range(1, 11)]) == 3


async def test_full_counts_what_each_consumer_shows(http: httpx.AsyncClient) -> None:
    """Two consumers, one row of the group, one of each consumer: the five that there may be."""
    await fill(http, 3, "v")
    await run(http, "XGROUP", "CREATE", "s", "g", "0")
    for consumer in "ab":
        await run(http, "XREADGROUP", "GROUP", "g", consumer, "COUNT", 1, "STREAMS", "s", ">")
    assert isinstance(await run(http, "XINFO", "STREAM", "s", "FULL", "COUNT", 1), list)
    await run(http, "XREADGROUP", "GROUP", "g", "c", "COUNT", 1, "STREAMS", "s", ">")
    refusal = await run(http, "XINFO", "STREAM", "s", "FULL", "COUNT", 1)
    assert str(refusal).startswith("ERR too many rows: XINFO STREAM FULL shows at most 5 consumers")


@pytest.mark.parametrize(
    "words",
    [
        ["XREAD", "STREAMS", *"abcd", *["0"] * 4],
        ["XREADGROUP", "GROUP", "g", "c", "STREAMS", *"abcd", *[">"] * 4],
        ["DEL", *"abcd"],
        ["UNLINK", *"abcd"],
        ["EXISTS", *"abcd"],
    ],
)
async def test_a_command_names_so_many_streams(http: httpx.AsyncClient, words: list[object]) -> None:
    """Three here; four are refused before anything is looked at."""
    await run(http, "XADD", "a", "1-0", "f", "v")
    refusal = await run(http, *words)
    assert str(refusal).startswith("ERR too many streams: one command names at most 3 (request_streams_max)")
    assert await run(http, "XLEN", "a") == 1


# ---- what is answered


@pytest.mark.parametrize(("command", "start", "end"), [("XRANGE", "-", "+"), ("XREVRANGE", "+", "-")])
async def test_a_range_is_whole_or_refused(
    http: httpx.AsyncClient, command: str, start: str, end: str
) -> None:
    """Redis cannot say that there is more, so a range that does not fit is no range; with COUNT it is."""
    await fill(http, 8)
    refusal = await run(http, command, "s", start, end)
    assert refusal == (
        "ERR the answer is too long: more than 4096 bytes (answer_bytes_max); "
        "use COUNT, and go on behind the last ID"
    )
    assert "use a smaller COUNT" in str(await run(http, command, "s", start, end, "COUNT", 8))
    for count in (1, 7):
        found = await run(http, command, "s", start, end, "COUNT", count)
        assert isinstance(found, list)
        assert len(found) == count
    assert await run(http, command, "s", start, end, "COUNT", 0) is None
    assert len(str(await run(http, command, "s", start, end, "COUNT", -1))) < 10


async def test_a_range_that_fits_is_answered_whatever_its_number(http: httpx.AsyncClient) -> None:
    """Its bytes are limited, not its entries."""
    await fill(http, 50, "v")
    found = await run(http, "XRANGE", "s", "-", "+")
    assert isinstance(found, list)
    assert len(found) == 50


async def test_xread_gives_less_and_the_next_one_the_rest(http: httpx.AsyncClient) -> None:
    """What did not fit is not lost: the last ID says where to go on."""
    await fill(http, 20)
    after, seen = "0", list[str]()
    while found := await run(http, "XREAD", "STREAMS", "s", after):
        assert isinstance(found, list)
        page = [entry[0] for entry in found[0][1]]
        assert len(page) <= 7
        seen, after = seen + page, page[-1]
    assert seen == [f"{number}-0" for number in range(1, 21)]


async def test_what_is_not_answered_is_not_delivered(http: httpx.AsyncClient) -> None:
    """A group read gives less; what it left is neither pending nor skipped."""
    await fill(http, 20)
    await run(http, "XGROUP", "CREATE", "s", "g", "0")
    seen = list[str]()
    while found := await run(http, "XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">"):
        assert isinstance(found, list)
        seen += [entry[0] for entry in found[0][1]]
        pending = await run(http, "XPENDING", "s", "g")
        assert isinstance(pending, list)
        assert pending[0] == len(seen)
    assert seen == [f"{number}-0" for number in range(1, 21)]
    history = await run(http, "XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", "0")
    assert isinstance(history, list)
    assert len(history[0][1]) <= 7


async def test_counts_are_maxima(http: httpx.AsyncClient) -> None:
    """Group reads and XAUTOCLAIM take a larger COUNT for the limit, and go on from where they stopped."""
    await fill(http, 12, "v")
    await run(http, "XGROUP", "CREATE", "s", "g", "0")
    sizes = []
    while found := await run(http, "XREADGROUP", "GROUP", "g", "c", "COUNT", 1 << 40, "STREAMS", "s", ">"):
        assert isinstance(found, list)
        sizes.append(len(found[0][1]))
    assert sizes == [5, 5, 2]
    cursor, sizes = "0-0", []
    while cursor != "0-0" or not sizes:
        found = await run(http, "XAUTOCLAIM", "s", "g", "d", 0, cursor, "COUNT", 1 << 40, "JUSTID")
        assert isinstance(found, list)
        cursor = found[0]
        sizes.append(len(found[1]))
    assert sizes == [5, 5, 2]


async def test_a_pending_list_is_whole_or_refused(http: httpx.AsyncClient) -> None:
    """A request for more rows than the limit is refused, unless there are no more."""
    await fill(http, 12, "v")
    await run(http, "XGROUP", "CREATE", "s", "g", "0")
    for _ in range(3):
        await run(http, "XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">")
    refusal = await run(http, "XPENDING", "s", "g", "-", "+", 100)
    assert str(refusal).startswith("ERR too many rows: XPENDING answers at most 5 (count_max)")
    for start, count, rows in (("-", 5, 5), ("(7-0", 100, 5), ("(10-0", 100, 2)):
        found = await run(http, "XPENDING", "s", "g", start, "+", count)
        assert isinstance(found, list)
        assert len(found) == rows


async def test_xinfo_full_is_whole_or_refused(http: httpx.AsyncClient) -> None:
    """By the bytes of its entries; by its rows above."""
    await fill(http, 8)
    for path in (PIPELINE, TRANSACTION):
        rows: list[list[object]] = [
            ["XINFO", "STREAM", "s", "FULL", "COUNT", 0],
            ["XINFO", "STREAM", "s", "FULL", "COUNT", 2],
            ["XINFO", "STREAM", "none", "FULL"],
        ]
        refused, found, missing = await pipeline(http, *rows, path=path)
        assert str(refused).startswith("ERR the answer is too long")
        assert "use a smaller COUNT" in str(refused)
        assert isinstance(found, list)
        assert len(found[found.index("entries") + 1]) == 2
        assert missing == "ERR no such key"


async def test_lists_of_names_are_whole_or_refused(http: httpx.AsyncClient) -> None:
    """KEYS, XINFO GROUPS and XINFO CONSUMERS; SCAN gives a page."""
    for number in range(10):
        name = f"{number}" * 500
        await run(http, "XADD", name, "1-0", "f", "v")
        await run(http, "XGROUP", "CREATE", "s", name, "$", "MKSTREAM")
        await run(http, "XGROUP", "CREATECONSUMER", "s", "0" * 500, name)
    for words, way in (
        (["KEYS", "*"], "use SCAN"),
        (["XINFO", "GROUPS", "s"], "/groups"),
        (["XINFO", "CONSUMERS", "s", "0" * 500], "/consumers"),
    ):
        refusal = str(await run(http, *words))
        assert refusal.startswith("ERR the answer is too long: more than 4096 bytes (answer_bytes_max)")
        assert way in refusal
    assert isinstance(await run(http, "KEYS", "1*"), list)
    found = await run(http, "SCAN", 0, "COUNT", 3)
    assert isinstance(found, list)
    assert len(found[1]) == 3


# ---- what several are answered together


async def test_a_pipeline_may_answer_any_number_of_long_replies(http: httpx.AsyncClient) -> None:
    """They leave one after the other, so they take no memory together."""
    await fill(http, 7)
    read: list[object] = ["XRANGE", "s", "-", "+"]
    outcomes = await pipeline(http, *[read] * 40, ["XADD", "s", "9-0", "f", "v"], ["XLEN", "s"])
    assert [type(outcome) for outcome in outcomes[:40]] == [list] * 40
    assert outcomes[40:] == ["9-0", 8]


async def test_a_pipeline_stays_in_order_while_it_makes_room(http: httpx.AsyncClient) -> None:
    """Each command sees what the ones before it did, however few fit at the same time."""
    rows = list[list[object]]()
    for number in range(1, 31):
        rows += [["XADD", "s", f"{number}-0", "f", "v"], ["XREVRANGE", "s", "+", "-", "COUNT", 1]]
    outcomes = await pipeline(http, *rows)
    assert outcomes[1::2] == [[[f"{number}-0", ["f", "v"]]] for number in range(1, 31)]


async def test_a_transaction_divides_its_room(http: httpx.AsyncClient) -> None:
    """Each of its reads has the same part of it; one that does not fit fails alone."""
    await fill(http, 7)
    read: list[object] = ["XRANGE", "s", "-", "+"]
    assert [type(one) for one in await pipeline(http, read, read, path=TRANSACTION)] == [list, list]
    small: list[object] = ["XRANGE", "s", "-", "+", "COUNT", 2]
    outcomes = await pipeline(http, *[read] * 3, small, ["XLEN", "s"], path=TRANSACTION)
    assert [type(one) for one in outcomes] == [str, str, str, list, int]
    assert "more than 2560 bytes (buffer_bytes_max)" in str(outcomes[0])


async def test_a_transaction_with_too_many_reads_is_not_run(http: httpx.AsyncClient) -> None:
    """400, and nothing has happened: its answers are all made before the first is looked at."""
    rows = [["XADD", "s", "1-0", "f", "v"], *[["XINFO", "STREAM", "s"]] * 11]
    answer = await http.post(TRANSACTION, json=rows)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("ERR too many reads: a transaction has at most 10 commands")
    assert await run(http, "EXISTS", "s") == 0
    assert (await http.post(TRANSACTION, json=rows[:-1])).status_code == 200
