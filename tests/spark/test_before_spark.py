"""What cannot go well is said before Spark starts, which takes a while, by every job that needs a gateway.

Knows: the jobs as they are typed. Must never know: what they do.
"""

import json
import subprocess
import sys
from pathlib import Path

from typer.main import get_command

from pyspark_weir.cli.main import jobs
from tests.server import Server, server_of
from tests.spark.table.making import Maker, key_of

# In a process of its own: here a session may be left of other tests.
_EACH_JOB = """
import json, sys
from pyspark.sql import SparkSession
from typer.testing import CliRunner
from pyspark_weir.cli.main import jobs
for words in json.load(sys.stdin):
    ran = CliRunner().invoke(jobs, words)
    begun = SparkSession.getActiveSession() is not None or SparkSession._instantiatedSession is not None
    print(json.dumps([ran.exit_code, " ".join(ran.stderr.split()), begun]))
"""


# A gateway with tokens.
guarded = server_of("module", "--set", "root_token=root-token-of-at-least-24-characters")


def ends_of(every: list[list[str]]) -> list[tuple[int, str, bool]]:
    """How jobs end: their exit codes, what they say, and whether Spark had been started."""
    ran = subprocess.run(
        [sys.executable, "-c", _EACH_JOB],
        input=json.dumps(every),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return [tuple(json.loads(line)) for line in ran.stdout.splitlines()]


def jobs_at(gateway: str, folder: Path) -> dict[str, list[list[str]]]:
    """Words of each job that has a gateway to be asked; several ways where it has several gateways."""
    Maker(folder / "archive").batch({key_of("a"): ["1-0"]})
    archive, checkpoint = str(folder / "archive"), ["--checkpoint", str(folder / "checkpoint")]
    token = ["--token-file", str(folder / "token")]
    (folder / "token").write_text("wrong-token-of-at-least-24-characters\n")
    at = ["--gateway", gateway, *token]
    reading = [*at, "--source", "retryTimeoutMs=0"]
    replayed = ["--job-id", "j", "--state", str(folder / "state")]
    return {
        "archive": [
            ["archive", str(folder / "new"), *checkpoint, *reading, *streams]
            for streams in (["--streams", "a"], ["--pattern", "a.*"])
        ],
        "mirror": [
            ["mirror", *checkpoint, *reading, "--to", "copy.{stream}", *streams]
            for streams in (["--streams", "a"], ["--pattern", "a.*"], ["--streams", "a", "--from", "latest"])
        ],
        "replay": [
            ["replay", "--from", archive, *replayed, *at],
            ["replay", "--from-gateway", gateway, "--from-token-file", token[1], "--streams", "a", *replayed],
        ],
        "trim": [["trim", archive, *at]],
        "verify": [["verify", archive, *at]],
    }


def test_a_wrong_token_is_said_before_spark_starts(guarded: Server, tmp_path: Path) -> None:
    """By every job that has gateways, with the remedy; one that comes later has to be here too."""
    every = jobs_at(guarded.url, tmp_path)
    commands = get_command(jobs).commands  # type: ignore[attr-defined]
    assert every.keys() == {
        name for name, one in commands.items() if any("--gateway" in option.opts for option in one.params)
    }
    words = [one for some in every.values() for one in some]
    for job, (code, said, begun) in zip(words, ends_of(words), strict=True):
        assert (code, begun) == (1, False), (job, said)
        assert "look whether the token is still good" in said or "give a token" in said, job


def test_a_gateway_that_is_away_is_said_before_spark_starts(tmp_path: Path) -> None:
    """By every job that would start Spark and may be told not to wait for one."""
    every = jobs_at("http://127.0.0.1:1", tmp_path)
    words = [*every["archive"], *every["mirror"]]
    for job, (code, said, begun) in zip(words, ends_of(words), strict=True):
        assert (code, begun, "is it running" in said) == (1, False, True), (job, said)
