"""docs/pipeline.md: its tables are those of the program, and its commands use options that exist."""

import re
from pathlib import Path

import pytest
from typer.main import get_command

from pyspark_weir.cli.main import jobs
from pyspark_weir.options import COMMON, SOURCE
from pyspark_weir.raw_options import Option
from pyspark_weir.sink.options import SINK, SinkOptions
from tests.documents.shell import options_of

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "pipeline.md").read_text()
_COMMAND = re.compile(r"^weir-spark ([a-z]+) (.*)$", re.MULTILINE)


def _section(title: str) -> str:
    return DOCUMENT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def _named(section: str) -> set[str]:
    """All names in the first column of a section's table."""
    cells = re.findall(r"^\| (`.+?) \|", section, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def _names(table: tuple[Option, ...]) -> set[str]:
    return {name for one in table for name in (one.name, *one.aliases)}


def test_the_table_of_reading_is_the_source_s() -> None:
    """Each option with its aliases, and none that there is not."""
    assert _named(_section("Reading in a program of your own")) == _names(SOURCE)


def test_the_table_of_writing_is_the_sink_s() -> None:
    """Both, with what they share listed once."""
    assert _named(_section("Writing")) == _names(SINK)
    assert _names(COMMON) <= _names(SINK)


@pytest.mark.parametrize(
    ("option", "value"),
    re.findall(r"^\| `(\w+)`[^|]*\| ([a-z]+|[0-9]+) \|", _section("Writing"), re.MULTILINE),
)
def test_defaults_of_the_sink_are_as_told(option: str, value: str) -> None:
    """To give the default is the same as to give nothing."""
    plain = {"gateway.urls": "http://127.0.0.1:8080", "stream": "a"}
    given = SinkOptions.of(plain | {option: value})
    if option not in ("jobId", "keyColumn"):
        assert given == SinkOptions.of(plain)


def test_all_jobs_are_told() -> None:
    """A job that the guide does not name would not be found."""
    commands = set(get_command(jobs).commands)  # type: ignore[attr-defined]
    assert _named(_section("Jobs")) == commands


@pytest.mark.parametrize("job", sorted({job for job, _ in _COMMAND.findall(DOCUMENT)}))
def test_commands_that_are_not_run_use_options_that_exist(job: str) -> None:
    """No cluster is at hand, and no test waits a day; but a misspelt option is found."""
    words = " ".join(rest for name, rest in _COMMAND.findall(DOCUMENT) if name == job)
    assert set(re.findall(r"(?<!\S)--[a-z-]+", words)) <= options_of(job)
