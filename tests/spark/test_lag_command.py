"""`weir pipeline lag` from the outside: what it prints, draws, keeps and refuses. No Java is needed."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner, Result

from pyspark_weir.cli.main import jobs
from tests.server import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A gateway with 7 entries in `orders`, which the group `billing` has not read."""
    with Server(tmp_path_factory.mktemp("gateway") / "weir-data") as server:
        with httpx.Client(base_url=server.url) as http:
            entries = [{"fields": {"n": str(n)}} for n in range(7)]
            http.post("/v1/streams/orders/entries", json={"entries": entries}).raise_for_status()
            http.put("/v1/streams/orders/groups/billing", json={"start": "0"}).raise_for_status()
        yield server


def _lag(*words: str) -> Result:
    return CliRunner().invoke(jobs, ["lag", *words])


def test_one_look_is_a_table(server: Server) -> None:
    """With a heading, and a dash for what is not known."""
    result = _lag("--gateway", server.url, "--over", "0")
    assert result.exit_code == 0, result.output
    heading, row = result.stdout.splitlines()[:2]
    assert heading.split()[:5] == ["stream", "group", "behind", "unread", "pending"]
    assert row.split()[:6] == ["orders", "billing", "7", "7", "0", "-"]
    assert "not known" in row


def test_two_looks_have_rates(server: Server) -> None:
    """As JSON, with every member."""
    result = _lag("--gateway", f"west={server.url}", "--over", "50ms", "--json", "--streams", "orders")
    (row,) = map(json.loads, result.stdout.splitlines())
    assert (row["gateway"], row["group"], row["behind"]) == ("west", "billing", 7)
    assert (row["published_per_s"], row["settled_per_s"], row["trend"]) == (0.0, 0.0, "steady")
    assert row["catch_up_ms"] is None


def test_findings_are_drawn_and_kept(server: Server, tmp_path: Path) -> None:
    """In a file, and as entries of a stream."""
    chart = tmp_path / "lag.svg"
    result = _lag("--gateway", server.url, "--over", "0", "--plot", str(chart), "--publish", "lags")
    assert result.exit_code == 0, result.output
    assert "orders / billing" in chart.read_text()
    (entry,) = httpx.get(f"{server.url}/v1/streams/lags/entries").json()["entries"]
    assert entry["fields"]["behind"] == "7"


def test_options_that_make_no_sense_are_said_in_one_line(tmp_path: Path) -> None:
    """With exit code 2, before anybody is asked."""
    for words in (["--once", "--every", "1s"], ["--streams", "a", "--pattern", "b"], ["--pattern", "("]):
        result = _lag(*words, "--gateway", "http://127.0.0.1:1")
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.count("\n") == 1
    assert _lag("--plot", str(tmp_path / "a.pdf")).exit_code == 2


def test_no_spark_is_loaded_for_it(server: Server) -> None:
    """Looking at groups takes a second, not ten, and no Java."""
    program = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from pyspark_weir.cli.main import jobs\n"
        f"CliRunner().invoke(jobs, ['lag', '--gateway', {server.url!r}, '--over', '0'])\n"
        "print([name for name in ('pyspark', 'pyarrow', 'matplotlib') if name in sys.modules])\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
