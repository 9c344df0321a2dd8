"""What a benchmark may publish."""

import json
import socket
import threading
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace

from bench import histories, page, parts, push
from bench.__main__ import run
from bench.figure import FULL, QUICK, Figure, Method, alone, at_least, at_most, beside
from bench.page import BUSY_LOAD, Results, unpublishable
from bench.versus import RANGE_COUNT


def results(method: Method = FULL, load_before: float = 0.0) -> Results:
    return Results("2 cores", load_before, method, [])


def test_a_full_run_on_a_quiet_machine_is_published() -> None:
    assert unpublishable(results(load_before=BUSY_LOAD)) is None


@pytest.mark.parametrize(
    "shorter",
    [
        replace(FULL, rounds=FULL.rounds - 1),
        replace(FULL, seconds=FULL.seconds - 1),
        replace(FULL, standing_entries=FULL.standing_entries - 1),
        replace(FULL, tails=FULL.tails - 1),
        replace(FULL, entries=FULL.entries - 1),
        QUICK,
    ],
)
def test_a_shorter_run_is_never_published(shorter: Method) -> None:
    assert "a short run" in (unpublishable(results(shorter)) or "")


def test_a_run_on_a_busy_machine_is_never_published() -> None:
    assert "busy" in (unpublishable(results(load_before=BUSY_LOAD + 0.01)) or "")


def test_a_ratio_is_the_median_of_neighbouring_rounds() -> None:
    """And not the ratio of the medians, which compares rounds that were apart."""
    figure = beside("P1", "publish", "a second", [(1, 1), (8, 2), (9, 3)], "redis", at_least(3), "3 rounds")
    assert (figure.ours, figure.theirs, figure.ratio) == (8, 2, 3)
    assert "| met |" in figure.line()


def test_the_best_round_of_each_side_stands_in_brackets() -> None:
    """The highest rate, and the least that is taken; of one round nothing."""
    rates = beside("P1", "publish", "entries/s", [(1, 2), (8, 2), (9, 4)], "redis", at_least(3), "3 rounds")
    assert "| 8.00 entries/s (9.00) | redis 2.00 (4.00) | **2.25** (2.25) |" in rates.line()
    assert "| 6.00 µs (5.00) |" in alone("P17", "a request", "µs", [7, 5, 6], at_most(9), "3 rounds").line()
    assert "| 6.00 µs |" in alone("P17", "a request", "µs", [6], at_most(9), "one round").line()


def test_entries_are_counted_however_their_bytes_are_cut() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        answer = b'{"temperature":"19.8"},' * RANGE_COUNT

        def serve() -> None:
            with listener.accept()[0] as client:
                for piece in (answer[:3], answer[3:7_000], answer[7_000:], answer[:9], answer[9:]):
                    client.sendall(piece)
                client.recv(1 << 10)

        server = threading.Thread(target=serve)
        server.start()
        assert histories.entries_a_second(listener.getsockname()[1], [b"a", b"b"]) > 0
        server.join()


@pytest.mark.parametrize(("value", "is_met"), [(0.99, True), (1.0, True), (1.01, False)])
def test_a_goal_is_met_at_its_limit(value: float, *, is_met: bool) -> None:
    assert at_most(1.0).is_met(value) == is_met
    assert at_least(1.0).is_met(value) == (value >= 1.0)


def test_every_part_is_measured_once() -> None:
    """P1 to P18, none twice."""
    numbers = [number for part in parts.PARTS for number in part]
    assert sorted(numbers, key=lambda number: int(number[1:])) == [f"P{number}" for number in range(1, 19)]


def full() -> Results:
    figures: list[Figure] = [
        alone("P17", "a request", "µs", [100], at_most(120), "3 rounds"),
        beside("P1", "publish", "entries/s", [(3, 1)], "redis-server", at_least(2.5), "9 rounds"),
    ]
    return Results("2 cores", 0.1, FULL, ["redis-server 7.0"], 0.2, parts.order(figures), {"P14": "no Spark"})


PAGES: Final = ("docs/speed.md", "README.md")


def pushed() -> push.PushRound:
    """A round of a thousand entries, each received within a millisecond."""
    curve = [1.0] * len(push.QUANTILES)
    return push.PushRound(1_000, 1.0, 1.0, 1.0, [100.0, 0.0, 0.0, 0.0, 0.0], curve, 1.0, 1.0)


def prepare(repository: Path) -> None:
    """What is written into, with the figures of a former run."""
    (repository / "docs" / "images").mkdir(parents=True)
    (repository / "bench").mkdir()
    for name in PAGES:
        (repository / name).write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    (repository / page.HISTORY).write_text('{"release": "0.0.1"}\n')


def test_a_run_is_written_between_the_marks(tmp_path: Path) -> None:
    """The page has the table; README has ratios; the history has a line a release. All say what failed."""
    prepare(tmp_path)
    for _ in range(2):
        page.write(full(), tmp_path)
    speed, readme = ((tmp_path / name).read_text() for name in PAGES)
    assert speed.startswith(f"before\n{page.BEGIN}\n\nMeasured ")
    assert speed.endswith(f"{page.END}\nafter\n")
    assert speed.index("| P1 | publish") < speed.index("| P17 | a request")
    assert "Not measured: P14, no Spark" in speed
    assert "| publish | 3.00 | redis-server |\n" in readme
    assert "a request" not in readme
    assert "Not measured in this run: P14; [speed](docs/speed.md) says why." in readme
    history = [json.loads(line) for line in (tmp_path / page.HISTORY).read_text().splitlines()]
    assert [line["release"] for line in history] == ["0.0.1", version("weir-gateway")]
    assert history[1]["figures"] == {"P1 publish": 3, "P17 a request": 100}
    assert history[1]["not_measured"] == ["P14"]


def test_a_run_in_which_nothing_failed_names_no_missing_part(tmp_path: Path) -> None:
    prepare(tmp_path)
    page.write(replace(full(), failed={}), tmp_path)
    assert all("Not measured" not in (tmp_path / name).read_text() for name in PAGES)
    assert json.loads((tmp_path / page.HISTORY).read_text().splitlines()[1])["not_measured"] == []


def test_what_failed_once_is_measured_again_and_the_page_says_so(tmp_path: Path) -> None:
    """What fails twice has no figures; what never fails is not named."""
    left = {"P1": 0, "P2": 1, "P3": 2}

    def part(number: str) -> Callable[[Method, Results], Sequence[Figure]]:
        def measure(_: Method, __: Results) -> Sequence[Figure]:
            if left[number]:
                left[number] -= 1
                raise RuntimeError(f"{number} lost entries\nand so on")
            return [alone(number, "a request", "µs", [100], at_most(120), "3 rounds")]

        return measure

    found = results()
    run(found, set(), {(number,): part(number) for number in left})
    prepare(tmp_path)
    page.write(found, tmp_path)
    speed = (tmp_path / "docs/speed.md").read_text()
    assert [one.part for one in found.figures] == ["P1", "P2"]
    assert "Not measured: P3, RuntimeError: P3 lost entries\n" in speed
    assert "Measured again, since it failed the first time: P2, RuntimeError: P2 lost entries\n" in speed
    line = json.loads((tmp_path / page.HISTORY).read_text().splitlines()[1])
    assert (line["not_measured"], line["measured_again"]) == (["P3"], ["P2"])


@pytest.mark.parametrize("failed", [None, "P5", "P6"])
def test_a_picture_is_shown_where_this_run_drew_it(tmp_path: Path, failed: str | None) -> None:
    """It has the figures of two parts: without one of them it would be that of a former run."""
    prepare(tmp_path)
    beside = {} if failed == "P5" else {way: [pushed()] for way in push.WAYS}
    standing = {} if failed == "P6" else {way: [pushed()] for way in ("with", "without")}
    page.write(replace(full(), beside=beside, standing=standing), tmp_path)
    speed = (tmp_path / "docs" / "speed.md").read_text()
    assert (page.LATENCY in speed) == (failed is None)
    assert (tmp_path / "docs" / "images" / "speed-latency.png").exists() == (failed is None)
    assert ("(P5)" in speed, "(P6)" in speed) == (failed != "P5", failed != "P6")
