"""`weir pipeline windows` and `latency` from the outside: what they print and draw."""

import json
from pathlib import Path

import httpx
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from pyspark_weir.cli.main import jobs
from tests.server import Server

NOW_MS = 1_700_000_040_000


@pytest.fixture
def looked_at(spark: SparkSession, shared_server: Server) -> str:
    """The URL of a gateway whose stream `looked` has four entries of two minutes, one without a time."""
    entries = [
        {"id": f"{NOW_MS + n * 30_000}-1", "fields": {"t": str(n), "at": str(NOW_MS + n * 30_000 - 5)}}
        for n in range(3)
    ]
    entries.append({"id": f"{NOW_MS + 100_000}-1", "fields": {"t": "9"}})
    with httpx.Client(base_url=shared_server.url) as http:
        if not http.get("/v1/streams/looked/entries").json()["entries"]:
            http.post("/v1/streams/looked/entries", json={"entries": entries}).raise_for_status()
    return shared_server.url


def test_windows_are_told_as_json_and_drawn(looked_at: str, checkpoint: str, tmp_path: Path) -> None:
    """Each batch, its windows, and the end; the chart has the first number."""
    chart = tmp_path / "windows.svg"
    words = ["--gateway", looked_at, "--streams", "looked", "--window", "1m", "--time", "at"]
    words += ["--compute", "max:t,count", "--checkpoint", checkpoint, "--plot", str(chart), "--json"]
    result = CliRunner().invoke(jobs, ["windows", *words])
    assert result.exit_code == 0, result.output
    told = [json.loads(line) for line in result.stdout.splitlines()]
    assert [one for one in told if "window_start" in one] == [
        {
            "window_start": f"2023-11-14T22:1{minute}:00.000Z",
            "window_end": f"2023-11-14T22:1{minute + 1}:00.000Z",
            "stream": "looked",
            "max_t": most,
            "count": count,
        }
        for minute, most, count in [(3, 0.0, 1), (4, 2.0, 2)]
    ]
    first = next(one for one in told if one.get("rows"))
    assert (first["rows"], first["left"], first["observed"]) == (4, 0, {"windows": {"untimed": 1}})
    assert (told[-1]["done"], told[-1]["rows"]) == (True, 4)
    assert "max_t per window" in chart.read_text()


def test_delays_of_all_there_is_are_a_table(looked_at: str, tmp_path: Path) -> None:
    """Without a checkpoint; with counts of what has no time, and a chart."""
    chart = tmp_path / "latency.html"
    words = ["--gateway", looked_at, "--streams", "looked", "--produced-at", "at", "--plot", str(chart)]
    result = CliRunner().invoke(jobs, ["latency", *words])
    assert result.exit_code == 0, result.output
    heading, row = result.stdout.splitlines()[:2]
    assert heading.split()[:6] == ["stream", "what", "count", "negative", "unknown", "mean"]
    assert row.startswith("looked")
    assert row.split()[-8:] == ["5", "ms", "5", "ms", "5", "ms", "5", "ms"]
    assert "looked, from produced to stored" in chart.read_text()
