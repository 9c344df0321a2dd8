"""What `weir-spark replay` says before it starts Spark.

Knows: the commands as they are typed. Must never know: how anything is sent.
"""

import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from pyspark_weir.checkpoint import StateFolder
from pyspark_weir.cli.main import jobs
from pyspark_weir.gateway import GatewayAccess
from pyspark_weir.jobs.replay import PLAN, FromArchive, Replay, begin
from pyspark_weir.running import locked
from pyspark_weir.table.root import ArchiveRoot
from tests.spark.archive_tables import Maker

DAY_MS = 86_400_000


@pytest.fixture
def root(tmp_path: Path) -> str:
    """Two streams over two days of 1970."""
    maker = Maker(tmp_path / "archive")
    maker.batch({"a": [f"{n}-0" for n in range(1, 6)], "b": ["3-0"]})
    maker.batch({"a": [f"{DAY_MS + n}-0" for n in range(5)]})
    return maker.root.url


def weir(*arguments: str) -> Result:
    return CliRunner().invoke(jobs, arguments)


def shown(*arguments: str) -> dict[str, tuple[str, int]]:
    """By stream: where it would go, and how many entries of it."""
    found = weir("replay", "--dry-run", "--json", *arguments)
    assert found.exit_code == 0, found.stderr
    rows = map(json.loads, found.stdout.splitlines())
    return {row["stream"]: (row["target"], row["entries"]) for row in rows}


def test_a_dry_run_counts_what_would_be_sent(root: str) -> None:
    """Exactly, also where a range cuts files; and it leaves nothing behind."""
    assert shown("--from", root) == {"g0/a": ("a", 10), "g0/b": ("b", 1)}
    assert shown("--from", root, "--streams", "a", "--to", "a=again") == {"g0/a": ("again", 10)}
    assert shown("--from", root, "--pattern", "[bc]", "--to", "old.{stream}") == {"g0/b": ("old.b", 1)}
    assert shown("--from", root, "--after", "2-0", "--end", "4") == {"g0/a": ("a", 2), "g0/b": ("b", 1)}
    assert not (Path(root) / "_replay").exists()


def test_times_are_from_and_before(root: str) -> None:
    """`--since` has what happens at that moment, `--until` has not; UTC where no zone is named."""
    assert shown("--from", root, "--since", "1970-01-02") == {"g0/a": ("a", 5)}
    assert shown("--from", root, "--until", "1970-01-02T00:00:00Z", "--streams", "a") == {"g0/a": ("a", 5)}
    second_day = ("--since", "1970-01-02T01:00:00.002+01:00", "--until", str(DAY_MS + 4))
    assert shown("--from", root, *second_day) == {"g0/a": ("a", 2)}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "--from ARCHIVE or --from-gateway URL"),
        (
            ["--from", "{root}", "--from-gateway", "http://127.0.0.1:1"],
            "--from ARCHIVE or --from-gateway URL",
        ),
        (["--from", "{root}"], "--job-id is missing"),
        (["--from", "{root}", "--job-id", "a/b"], "--job-id a/b: up to 128 letters"),
        (["--from", "{root}", "--job-id", "j", "--streams", "nosuch"], "no stream nosuch"),
        (["--from", "{root}", "--job-id", "j", "--since", "yesterday"], "--since=yesterday: it is"),
        (["--from", "{root}", "--job-id", "j", "--until", "9" * 20], "beyond what an ID holds"),
        (["--from", "{root}", "--job-id", "j", "--since", "1", "--after", "1-0"], "only one of each"),
        (["--from", "{root}", "--job-id", "j", "--end", "1-0", "--after", "2-0"], "before it begins"),
        (["--from", "{root}", "--job-id", "j", "--pattern", "["], "--pattern=[: it is a regular expression"),
        (["--from", "{root}", "--job-id", "j", "--to", "x", "--to", "y"], "several streams for all others"),
        (["--from", "{root}", "--job-id", "j", "--keep-ids", "--to", "x"], "would not ascend"),
        (["--from-gateway", "http://127.0.0.1:1", "--job-id", "j"], "--state is missing"),
        (["--from", "{root}", "--job-id", "j", "--conf", "driver.memory=1g"], "settings are named spark"),
    ],
)
def test_what_cannot_be_replayed_is_refused(root: str, words: list[str], sentence: str) -> None:
    """With what to write instead, and before Spark starts; exit code 2."""
    refused = weir("replay", *(word.format(root=root) for word in words))
    assert sentence in refused.stderr.replace("\n", " ")
    assert refused.exit_code == 2


def test_two_runs_of_one_replay_exclude_each_other(root: str) -> None:
    """The second one is refused, with the process that has it; exit code 4."""
    with locked(f"{root}/_replay/j"):
        refused = weir("replay", "--from", root, "--job-id", "j")
    assert refused.exit_code == 4


def test_a_replay_that_was_begun_goes_nowhere_else(root: str) -> None:
    """The same name with another gateway, range or target is refused, though nothing is left to send."""
    source, target = FromArchive(ArchiveRoot.of(root)), GatewayAccess("g0", "http://127.0.0.1:1")
    state = StateFolder.of(f"{root}/_replay/j")
    plan = begin(state, source, target, Replay(job="j", source=source.address, gateway=target.url))
    state.replace(PLAN, msgspec.json.encode(msgspec.structs.replace(plan, done=True)))
    command = ("replay", "--from", root, "--job-id", "j")
    here = ("--gateway", "http://127.0.0.1:1")
    for words in (("--gateway", "http://127.0.0.1:2"), (*here, "--until", "9"), (*here, "--to", "x")):
        refused = weir(*command, *words)
        assert "begun with another" in refused.stderr.replace("\n", " ")
        assert refused.exit_code == 2
