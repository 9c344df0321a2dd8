"""What a machine refuses a job: files it may not write, and the life of its Java.

One start of Spark for all of it: the program runs several jobs in its session, as they are typed.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server import Server
from tests.spark.cluster import JVM
from tests.spark.table.making import Maker, key_of

pytestmark = pytest.mark.spark

_ended_s_max = 240.0
# For root no file is closed, unless it gives that up.
_AS_ANYBODY = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
_PROGRAM = f"""
import json, sys
from pyspark_weir.cli.main import jobs
from pyspark_weir.session import SessionOptions, open_session
if __name__ == "__main__":
    java = {{"spark.driver.extraJavaOptions": "{JVM} -Dlog4j2.configurationFile=" + sys.argv[1]}}
    open_session(SessionOptions(conf=java))
    for words in json.loads(sys.argv[2]):
        print("began", words, file=sys.stderr, flush=True)
        try:
            jobs(words)
        except SystemExit as end:
            print(json.dumps(end.code), flush=True)
"""


@contextlib.contextmanager
def running(folder: Path, jobs: list[list[str]]) -> Iterator[subprocess.Popen[str]]:
    root = Path(__file__).parents[3]
    logging = (root / "spark/pyspark_weir/log4j2.properties").as_uri()
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(
            [*_AS_ANYBODY, sys.executable, "-c", _PROGRAM, logging, json.dumps(jobs)],
            env=os.environ | {"PYTHONPATH": str(root)},
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def java_of(process: int) -> int:
    """The Java that a process has started."""
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            members = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
            if members["Name"] == "java" and members["PPid"] == str(process):
                return int(members["Pid"])
    raise AssertionError("it has no Java")


def test_closed_folders_and_a_killed_java(own_server: Server, tmp_path: Path) -> None:
    """Each job ends with 1, one object and one line: the cause. Nothing of Java's is shown."""
    entry = {"id": "1-0", "fields": {"a": "1"}}
    httpx.post(f"{own_server.url}/v1/streams/a/entries", json={"entries": [entry]}).raise_for_status()
    closed, day = tmp_path / "closed", tmp_path / "archive" / "date=1970-01-01"
    closed.mkdir()
    Maker(tmp_path / "archive").batch({key_of("other"): ["1-0"]})
    for folder in (closed, day):
        folder.chmod(0o555)

    def job(number: int, *words: str) -> list[str]:
        place = ["--checkpoint", str(tmp_path / f"checkpoint-{number}"), "--gateway", own_server.url]
        return ["archive", *words, *place, "--streams", "a", "--json", "--source", "durableOnly=false"]

    causes = [
        "Permission denied (os error 13)",
        "errno 13] Permission denied",
        "Java has ended, or was killed",
    ]
    roots = [[str(closed)], [str(tmp_path / "archive")], [str(tmp_path / "new"), "--every", "100ms"]]
    with running(tmp_path, [job(number, *words) for number, words in enumerate(roots)]) as process:
        assert process.stdout is not None
        lines = map(json.loads, process.stdout)
        failed: list[dict[str, Any]] = []
        for number, cause in enumerate(causes):
            if number == 2:
                assert next(lines)["rows"] == 1
                os.kill(java_of(process.pid), signal.SIGKILL)
            failed.append(next(line for line in lines if "rows" not in line))
            assert cause in failed[-1]["detail"]
            assert (failed[-1]["done"], failed[-1]["error"], next(lines)) == (False, "WEIR_FAILED", 1)
        assert process.wait(_ended_s_max) == 0
    said = (tmp_path / "said").read_text().splitlines()
    ours = said[next(at for at, line in enumerate(said) if line.startswith("began")) :]
    assert [line for line in ours if not line.startswith("began")] == [
        f"weir: WEIR_FAILED: {one['detail']}" for one in failed
    ]
