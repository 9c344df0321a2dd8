"""The command line of the jobs: one under two names, light until a job runs, clear about what is wrong."""

import logging
import os
import signal
import subprocess
import sys
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import orjson
import pytest

from pyspark_weir.cli import main, output
from pyspark_weir.cli.arguments import QueryArguments, StreamArguments
from pyspark_weir.errors import OptionError
from pyspark_weir.progress import BatchProgress, StreamLag
from pyspark_weir.running import Summary
from tests.waiting import completed

ROOT = Path(__file__).parents[2]
_ended_s_max = 60.0


def _run(*command: str, cwd: str | None = None) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}
    environment = kept | {"PYTHONPATH": str(ROOT), "COLUMNS": "120", "TERM": "dumb"}
    return completed(command, cwd=cwd, env=environment, timeout=_ended_s_max)


def test_one_command_line_has_two_names() -> None:
    """`weir-spark`, and `python -m pyspark_weir` where scripts are not on PATH."""
    one = _run(sys.executable, "-m", "pyspark_weir", "--help")
    other = _run(sys.executable, "-c", "from pyspark_weir.__main__ import main; main()", "--help")
    assert one.returncode == other.returncode == 0
    assert "Usage: weir-spark " in one.stdout
    assert one.stdout == other.stdout
    (script,) = metadata.entry_points(group="console_scripts", name="weir-spark")
    assert script.value == "pyspark_weir.__main__:main"


def test_help_waits_for_nothing_heavy() -> None:
    """Spark takes half a second to import, Arrow another; completion asks at each key."""
    program = """
import sys
sys.argv = ["weir-spark", "--help"]
from pyspark_weir.__main__ import main
try:
    main()
finally:
    print("loaded", sorted({"pyspark", "pyarrow", "numpy", "matplotlib", "httpx"} & sys.modules.keys()))
"""
    assert _run(sys.executable, "-c", program).stdout.endswith("loaded []\n")


def test_ctrl_c_during_an_import_ends_without_a_trace() -> None:
    """As it ends any program: a shell shows 130."""
    program = """
import importlib.abc, os, signal, sys

class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == sys.argv[-1]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from pyspark_weir.__main__ import main
main()
"""
    job = ("archive", "a", "--checkpoint", "c", "--streams")
    for module, exit_code in (("typer", -signal.SIGINT), ("numpy", 130)):
        ran = _run(sys.executable, "-c", program, *job, module)
        assert (ran.returncode, ran.stderr.strip()) == (exit_code, "")


def test_a_missing_extra_is_named() -> None:
    """With the command that installs it."""
    program = """
import importlib.abc
import sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ("pyspark", "pyarrow", "numpy"):
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Missing())
sys.argv = ["weir-spark", "verify", "archive"]
from pyspark_weir.__main__ import main
main()
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
        (("--source", "Subscribe=t"), "--source Subscribe=…: another option of this command says it too"),
        (("--storage", "AWS_REGION=x"), "is a folder of this machine, which takes no options: AWS_REGION"),
    ],
)
def test_wrong_usage_ends_with_two(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    """As everywhere in Weir; the line says what to write instead."""
    given = ("archive", "a", "--checkpoint", "c", "--streams", "s")
    ran = _run(sys.executable, "-m", "pyspark_weir", *given, *words, cwd=str(tmp_path))
    assert ran.returncode == 2
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_failure_is_the_last_object_under_json(tmp_path: Path) -> None:
    """For programs, which would have to read the sentence else."""
    job = ("verify", "nowhere", "--json")
    ran = _run(sys.executable, "-m", "pyspark_weir", *job, cwd=str(tmp_path))
    found = orjson.loads(ran.stdout)
    assert (ran.returncode, found["done"], found["error"], found["exit_code"]) == (
        1,
        False,
        "WEIR_ARCHIVE",
        1,
    )
    assert found["detail"].endswith("holds no archive")
    assert ran.stderr.endswith(f"WEIR_ARCHIVE: {found['detail']}\n")


def test_streams_have_to_be_named() -> None:
    """A job on all streams there are is hardly ever meant."""
    with pytest.raises(OptionError, match="no streams are named"):
        StreamArguments(gateways=["http://a"]).source()
    chosen = StreamArguments(
        gateways=["http://a"], token_file="file", streams="a,b", source_options=["fetchSize=7"]
    )
    assert chosen.source() == {
        "gateway.urls": "http://a",
        "tokenFile": "file",
        "subscribe": "a,b",
        "fetchSize": "7",
    }
    assert StreamArguments(source_options=['assign={"g0":["a"]}']).source()
    elsewhere = StreamArguments(streams="a", source_options=["gateway.urls=http://b"])
    assert elsewhere.source()["gateway.urls"] == "http://b"


def test_the_group_to_be_moved_along_may_be_an_option_of_the_source() -> None:
    """By either of its names; the job's own option wins."""
    query = partial(QueryArguments, checkpoint="c", streams="a")
    assert query().query("archive").mirror_group is None
    assert query(source_options=["groupIdPrefix=spark"]).query("archive").mirror_group == "spark"
    both = query(mirror_group="mine", source_options=["mirrorGroup=spark"])
    assert both.query("archive").mirror_group == "mine"


def test_once_and_every_exclude_each_other() -> None:
    """Once is what is meant where neither is given; 0 is as fast as can be, not once."""
    query = partial(QueryArguments, checkpoint="c", streams="a")
    assert query().query("archive").every_ms is None
    assert query(every_ms=0).query("archive").every_ms == 0
    with pytest.raises(OptionError, match="exclude each other"):
        query(once=True, every_ms=1_000).query("archive")


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
    lag = None if left is None else {"g0/a": StreamLag(left, 9), "g0/b": StreamLag(0, 0)}
    progress = BatchProgress(query="q", batch=3, rows=rows, duration_ms=2_000, time="", lag=lag)
    assert output.progress_line(progress) == line


@pytest.mark.parametrize(
    ("streams", "said"), [(1, "7 entries of 1 stream in"), (2, "7 entries of 2 streams in")]
)
def test_a_line_counts_streams(streams: int, said: str) -> None:
    """Those that had something new."""
    progress = BatchProgress(query="q", batch=3, rows=7, duration_ms=5, time="", streams=streams)
    assert said in output.progress_line(progress)


@pytest.mark.parametrize(
    ("done", "left", "bar"),
    [
        (0, 9, f"{'─' * 20}   0 %"),
        (999, 1, f"{'━' * 19}─  99 %"),
        (1_000, 0, f"{'━' * 20} 100 %"),
        (0, 0, f"{'━' * 20} 100 %"),
        (5, None, ""),
    ],
)
def test_a_bar_is_full_when_nothing_is_left(done: int, left: int | None, bar: str) -> None:
    """And not before."""
    assert output.progress_bar(done, left) == bar


def test_the_last_line_counts(capsys: pytest.CaptureFixture[str]) -> None:
    """Beside the results, or as the last JSON line."""
    output.ended(Summary(batches=1, rows=1_234, duration_ms=61_000, stopped=True), as_json=False)
    output.ended(Summary(batches=2, rows=5, duration_ms=5), as_json=False)
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        "weir: stopped: 1,234 entries in 1 batch, 1m 1s",
        "weir: done: 5 entries in 2 batches, 5 ms",
    ]
    assert said.out == ""
    output.ended(Summary(batches=2, rows=5), as_json=True)
    assert orjson.loads(capsys.readouterr().out)["rows"] == 5


def test_a_terminal_obeys_nothing_that_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Names of streams are chosen by publishers."""
    output.rows(
        [{"stream": "a\x1b[2Jb", "left": None, "share": 0.5}], ("stream", "left", "share"), as_json=False
    )
    assert capsys.readouterr().out.splitlines()[1].split() == ["a\\u001b[2Jb", "-", "0.5"]


def test_what_py4j_logs_of_a_killed_java_needs_verbose(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is in Python's root logger, whose other lines are kept."""
    py4j = find_spec("py4j.java_gateway")
    assert py4j is not None
    assert py4j.origin is not None
    lost = logging.LogRecord("root", logging.ERROR, py4j.origin, 1, "lost", None, None)
    other = logging.LogRecord("root", logging.ERROR, __file__, 1, "other", None, None)
    root = logging.getLogger()
    with main._silent_servers():  # noqa: SLF001 - whether a command is under way then is chance
        for record in (lost, other):
            root.handle(record)
    assert caplog.messages == ["other"]
    root.handle(lost)
    assert caplog.messages == ["other", "lost"]
