"""`weir lag`: what it prints, draws and refuses, and that it says what the gateway says of its groups."""

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.command import begun, environment, weir
from weir import Client
from weir.cli.group_lag import FALLING_BEHIND, GroupLag, GroupSelection, LagHistory, sample_groups
from weir.cli.lag import LagReport

AT_MS = 1_000_000


def _publish(url: str, stream: str, count: int) -> None:
    entries = [{"fields": {"n": str(n)}} for n in range(count)]
    httpx.post(f"{url}/v1/streams/{stream}/entries", json={"entries": entries}).raise_for_status()


def _group(url: str, stream: str, group: str, start: str = "0") -> None:
    httpx.put(f"{url}/v1/streams/{stream}/groups/{group}", json={"start": start}).raise_for_status()


def _work(url: str, stream: str, group: str, read: int, settled: int) -> None:
    path = f"{url}/v1/streams/{stream}/groups/{group}"
    found = httpx.post(f"{path}/consumers/a/read", json={"count": read}).json()["entries"]
    body = {"ids": [one["id"] for one in found[:settled]]}
    httpx.post(f"{path}/ack", json=body).raise_for_status()


@pytest.fixture
def orders(stream: str, url: str) -> str:
    """100 entries, of which `billing` has read 30 and settled 10, and `audit` none."""
    _publish(url, stream, 100)
    for group in ("billing", "audit"):
        _group(url, stream, group)
    _work(url, stream, "billing", 30, 10)
    return stream


def _lags(url: str, selection: GroupSelection) -> dict[str, GroupLag]:
    with Client(url) as client:
        return {one.group: one for one in LagHistory(0).add(sample_groups(client, selection, AT_MS))}


def test_one_sample_is_a_table(url: str, orders: str) -> None:
    """With a heading, and a dash for what is not known; those furthest behind first."""
    done = weir(url, "lag", orders, "--over", "0")
    assert done.code == 0, done.err
    heading, audit, billing = done.lines
    assert heading.split()[:6] == ["stream", "group", "state", "behind", "lag", "pending"]
    assert audit.removeprefix(orders).split()[:6] == ["audit", "no_consumers", "100", "100", "0", "-"]
    assert billing.removeprefix(orders).split()[:5] == ["billing", "running", "90", "70", "20"]
    assert audit.endswith("not known")


def test_two_samples_have_rates(url: str, orders: str) -> None:
    """As JSON, with every member in every case."""
    done = weir(url, "lag", orders, "--group", "audit", "--over", "50ms", "--json")
    (row,) = done.objects
    assert (row["stream"], row["group"], row["behind"]) == (orders, "audit", 100)
    assert (row["published_per_s"], row["settled_per_s"], row["trend"]) == (0.0, 0.0, "steady")
    assert row["catch_up_ms"] is None
    assert list(row) == list(GroupLag.__dataclass_fields__)


def test_a_chart_is_drawn(url: str, orders: str, tmp_path: Path) -> None:
    chart = tmp_path / "lag.svg"
    done = weir(url, "lag", orders, "--over", "0", "--plot", str(chart))
    assert done.code == 0, done.err
    assert f"{orders} / billing" in chart.read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a", "--pattern", "b"], "exclude each other"),
        (["--pattern", "("], "--pattern ("),
        (["--plot", "a.pdf"], "ends in .png or .svg"),
        (["--over", "5"], "no duration"),
    ],
)
def test_options_that_make_no_sense_are_refused(words: list[str], said: str) -> None:
    """With exit code 2, before the gateway is asked."""
    done = weir("http://127.0.0.1:1", "lag", *words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_a_gateway_that_is_away_ends_one_report() -> None:
    done = weir("http://127.0.0.1:1", "lag")
    assert (done.code, done.out) == (1, "")
    assert "Traceback" not in done.err


def test_an_empty_report_says_so(url: str, stream: str) -> None:
    """A misspelt stream is not taken for one without lag. Programs find no line."""
    httpx.put(f"{url}/v1/streams/{stream}", json={}).raise_for_status()
    done = weir(url, "lag", stream, "--over", "0")
    assert (done.code, done.err) == (0, "weir: no group was found\n")
    done = weir(url, "lag", "missing", "--over", "50ms")
    assert (done.code, done.err) == (0, "weir: there is no stream missing\n")
    assert weir(url, "lag", "missing", "--over", "0", "--json").out == ""


def test_nothing_heavy_is_loaded_for_it(url: str) -> None:
    """Neither Spark nor what draws."""
    program = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from weir.cli.main import cli\n"
        f"assert CliRunner().invoke(cli, ['lag', '--url', {url!r}, '--over', '0']).exit_code == 0\n"
        "print([name for name in ('pyspark', 'pyarrow', 'numpy', 'matplotlib') if name in sys.modules])\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment(url), capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "[]"


def test_it_reports_again_until_it_is_interrupted(url: str, orders: str) -> None:
    process = begun(url, "lag", orders, "--group", "audit", "--every", "200ms", "--json")
    late = threading.Timer(30, process.kill)
    late.start()
    try:
        assert process.stdout is not None
        assert [json.loads(process.stdout.readline())["behind"] for _ in range(3)] == [100] * 3
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
        assert (process.returncode, err) == (0, "")
    finally:
        late.cancel()
        process.kill()
        process.communicate()


def test_that_there_is_no_group_is_said_once(
    url: str, orders: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """However many rounds find none; after one that has found some it is news again."""
    selection = GroupSelection((orders,), groups=("audit",))
    with Client(url) as client:
        report = LagReport(client, selection, LagHistory(0), None, as_json=True)
        for lags in ([], [], report.sample(), []):
            report.show(lags)
    shown = capsys.readouterr()
    assert shown.err == "weir: no group was found\n" * 2
    assert len(shown.out.splitlines()) == 1


def test_a_missing_stream_is_named_beside_the_groups_of_others(
    url: str, orders: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once, however many rounds miss it."""
    with Client(url) as client:
        selection = GroupSelection((orders, "missing"), groups=("audit",))
        report = LagReport(client, selection, LagHistory(0), None, as_json=True)
        for _ in range(3):
            report.show(report.sample())
    shown = capsys.readouterr()
    assert shown.err == "weir: there is no stream missing\n"
    assert len(shown.out.splitlines()) == 3


def test_the_oldest_pending_entry_is_shown(url: str, orders: str) -> None:
    """With its age, its deliveries and its time since."""
    found = _lags(url, GroupSelection((orders,)))
    billing, audit = found["billing"], found["audit"]
    path = f"{url}/v1/streams/{orders}/groups/billing/pending?count=1"
    oldest: dict[str, Any] = httpx.get(path).json()["pending"][0]
    assert (billing.oldest_pending_id, billing.oldest_pending_deliveries) == (oldest["id"], 1)
    assert billing.oldest_pending_idle_ms is not None
    assert (audit.oldest_pending_id, audit.oldest_pending_age_ms) == (None, None)


def test_only_selected_groups_are_sampled(url: str, orders: str) -> None:
    """Streams by name or by a pattern for the whole name, groups by name; a missing stream is no error."""
    other = f"{orders} unread"
    _publish(url, other, 5)
    whole = orders.replace("(", "[(]")
    assert set(_lags(url, GroupSelection((orders, "missing"), groups=("audit",)))) == {"audit"}
    assert set(_lags(url, GroupSelection(pattern=whole))) == {"billing", "audit"}
    assert _lags(url, GroupSelection(pattern=whole[1:])) == {}
    assert _lags(url, GroupSelection((other,))) == {}


def test_rates_follow_what_happens_between_two_samples(url: str, orders: str) -> None:
    """In ten seconds 50 entries came, and 20 were settled."""
    selection, history = GroupSelection((orders,), groups=("audit",)), LagHistory(0)
    with Client(url) as client:
        history.add(sample_groups(client, selection, AT_MS))
        _publish(url, orders, 50)
        _work(url, orders, "audit", 40, 20)
        (found,) = history.add(sample_groups(client, selection, AT_MS + 10_000))
    assert (found.lag, found.pending) == (110, 20)
    assert (found.published_per_s, found.settled_per_s, found.trend) == (5.0, 2.0, FALLING_BEHIND)


def test_a_group_whose_lag_the_gateway_does_not_know_is_counted(url: str, stream: str) -> None:
    """Where entries were deleted in the middle, and the group starts behind them."""
    _publish(url, stream, 10)
    path = f"{url}/v1/streams/{stream}"
    ids = [one["id"] for one in httpx.get(f"{path}/entries").json()["entries"]]
    httpx.post(f"{path}/entries/delete", json={"ids": ids[4:6]}).raise_for_status()
    _group(url, stream, "g", ids[1])
    assert httpx.get(f"{path}/groups/g").json()["lag"] is None
    assert _lags(url, GroupSelection((stream,)))["g"].lag == 6
