"""The command line of the jobs: one under two names, light until a job runs, clear about what is wrong."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from pyspark_weir.cli import options, output
from pyspark_weir.errors import OptionError
from pyspark_weir.progress import Progress
from pyspark_weir.running import Summary
from tests.server import Server

ROOT = Path(__file__).parents[2]
_ended_s_max = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("gateway") / "weir-data") as server:
        yield server


def _run(*command: str, **more: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}
    environment = kept | {"PYTHONPATH": str(ROOT), "COLUMNS": "120", "TERM": "dumb"} | more
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=_ended_s_max, check=False
    )


def _pipeline(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return _run(sys.executable, "-m", "pyspark_weir", *words, **more)


def _findings(ran: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    return {one["check"]: one for one in map(orjson.loads, ran.stdout.splitlines())}


def test_one_command_line_has_two_names() -> None:
    """`weir pipeline` where there is a gateway, `python -m pyspark_weir` where there is none."""
    one = _pipeline("--help")
    other = _run(sys.executable, "-m", "weir", "pipeline", "--help")
    assert one.returncode == other.returncode == 0
    assert "doctor" in one.stdout
    assert one.stdout.splitlines()[3:] == other.stdout.splitlines()[3:]


def test_help_waits_for_nothing_heavy() -> None:
    """Spark takes half a second to import, Arrow another; completion asks at each key."""
    program = """
import sys
sys.argv = ["weir", "pipeline", "--help"]
import weir.cli.main
try:
    weir.cli.main.main()
finally:
    print("loaded", sorted({"pyspark", "pyarrow", "numpy", "matplotlib", "httpx"} & sys.modules.keys()))
"""
    assert _run(sys.executable, "-c", program).stdout.endswith("loaded []\n")


def test_a_missing_extra_is_named() -> None:
    """Whoever has the gateway alone is told what to install."""
    program = """
import importlib.abc
import sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ("pyspark", "pyarrow", "stamina", "numpy"):
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Missing())
sys.argv = ["weir", "pipeline", "doctor"]
import weir.cli.main
weir.cli.main.main()
"""
    ran = _run(sys.executable, "-c", program)
    assert ran.returncode == 1
    assert ran.stderr.endswith(
        "is not installed: make spark, or pip install ./sdk/python './spark[spark]', in a checkout of Weir\n"
    )
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--conf", "driver.memory=1g"), "driver.memory: Spark's settings are named spark"),
        (("--conf", "spark.driver.memory"), "write it as --conf name=value"),
        (("--gateway", "http://a", "--gateway", "http://b"), "several gateways need names"),
        (("--gateway", "ftp://a"), "is not like http://127.0.0.1:8080"),
    ],
)
def test_wrong_usage_ends_with_two(words: tuple[str, ...], said: str) -> None:
    """As everywhere in Weir; the line says what to write instead."""
    ran = _pipeline("doctor", "--no-spark", *words)
    assert ran.returncode == 2
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr


def test_doctor_finds_a_gateway_and_what_it_holds(server: Server) -> None:
    """All is well: exit code 0; streams that are not there yet are named and nothing wrong."""
    entries = b"\n".join(b'{"a": %d}' % number for number in range(7))
    headers = {"content-type": "application/x-ndjson"}
    httpx.post(f"{server.url}/v1/streams/a/entries", content=entries, headers=headers).raise_for_status()
    ran = _pipeline("doctor", "--no-spark", "--json", "--streams", "a,later", "--gateway", f"g1={server.url}")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found = _findings(ran)
    assert found["gateway g1"]["said"].startswith(f"{server.url}: weir ")
    assert found["streams of g1"]["said"] == "7 entries in 1 stream, not there yet: later"
    assert found["java"]["state"] == "ok"
    assert found["pyspark"]["said"].startswith("4.")


def test_doctor_says_what_is_wrong_and_goes_on(tmp_path: Path) -> None:
    """One answer with all that is to be done, not one at a time."""
    (tmp_path / "token").write_text("")
    ran = _pipeline(
        "doctor",
        "--no-spark",
        "--json",
        "--gateway",
        "http://127.0.0.1:1",
        JAVA_HOME="/nowhere",
        PATH="/nowhere",
    )
    assert ran.returncode == 1
    found = _findings(ran)
    assert found["gateway g0"]["state"] == "wrong"
    assert "connection refused" in found["gateway g0"]["said"]
    assert found["numpy"]["state"] == "ok"


def test_streams_have_to_be_named() -> None:
    """A job on all streams there are is hardly ever meant."""
    with pytest.raises(OptionError, match="which streams"):
        options.source(options.connection(["http://a"]), None, None)
    found = options.source(options.connection(["http://a"], "file"), "a,b", None, ["fetchSize=7"])
    assert found == {"gateway.urls": "http://a", "tokenFile": "file", "subscribe": "a,b", "fetchSize": "7"}
    assert options.source(options.connection(None), None, None, ['assign={"g0":["a"]}'])


def test_the_group_to_be_moved_along_may_be_an_option_of_the_source() -> None:
    """By either of its names; the job's own option wins."""
    assert options.mirrored(None, None) is None
    assert options.mirrored(None, ["groupIdPrefix=spark"]) == "spark"
    assert options.mirrored("mine", ["mirrorGroup=spark"]) == "mine"


def test_once_and_every_exclude_each_other() -> None:
    """Once is what is meant where neither is given."""
    assert options.pace(once=False, every_ms=None).is_once
    assert options.pace(once=False, every_ms=0).every_ms == 0
    with pytest.raises(OptionError, match="only one"):
        options.pace(once=True, every_ms=1_000)


@pytest.mark.parametrize(
    ("rows", "left", "line"),
    [
        (20_000, 120_000, "batch 3: 20,000 entries in 2.0 s, 10,000/s; 120,000 left, about 12.0 s"),
        (20_000, 0, "batch 3: 20,000 entries in 2.0 s, 10,000/s; nothing left"),
        (20_000, None, "batch 3: 20,000 entries in 2.0 s, 10,000/s"),
        (0, 5, "batch 3: 0 entries in 2.0 s; 5 left"),
    ],
)
def test_a_batch_is_one_line(rows: int, left: int | None, line: str) -> None:
    """How much, how fast, how much is left, and when it will have been done."""
    progress = Progress(query="q", batch=3, rows=rows, duration_ms=2_000, time="", left=left)
    assert output.progress_line(progress) == line


def test_the_last_line_counts(capsys: pytest.CaptureFixture[str]) -> None:
    """Beside the results, or as the last JSON line."""
    output.ended(Summary(batches=1, rows=1_234, duration_ms=61_000, stopped=True), as_json=False)
    output.ended(Summary(batches=2, rows=5, restarts=3, duration_ms=5), as_json=False)
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        "weir: stopped: 1,234 entries in 1 batch, 1m 1s",
        "weir: done: 5 entries in 2 batches, 5 ms, started again 3 times",
    ]
    assert said.out == ""
    output.ended(Summary(batches=2, rows=5), as_json=True)
    assert orjson.loads(capsys.readouterr().out)["rows"] == 5


def test_a_terminal_obeys_nothing_that_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Names of streams are whatever somebody published to."""
    output.rows(
        [{"stream": "a\x1b[2Jb", "left": None, "share": 0.5}], ("stream", "left", "share"), as_json=False
    )
    assert capsys.readouterr().out.splitlines()[1].split() == ["a\\u001b[2Jb", "-", "0.5"]
