"""docs/archive.md: its programs and commands, on an archive that is made without Spark."""

import os
import sys
from pathlib import Path

from pyspark_weir.gateway import GatewayAccess, GatewayClient
from pyspark_weir.ids import EntryId
from pyspark_weir.table.deletions import record
from pyspark_weir.table.schema import SCHEMA
from tests.documents.programs import programs
from tests.documents.shell import run_steps
from tests.server import Server
from tests.spark.table.making import Maker, key_of
from tests.waiting import completed

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "archive.md").read_text()
# Each file of deltalake's own file system takes a while to be freed by the thread that read it.
_SLOW = """
import runpy, sys, threading, time
import pyarrow
from deltalake.fs import DeltaStorageHandler

class Slow:
    def __init__(self, file):
        self._file = file

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __del__(self):
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.5)

DeltaStorageHandler.open_input_file = lambda self, path: pyarrow.PythonFile(
    Slow(self._handler.open_input_file(path)), mode="r"
)
runpy.run_path(sys.argv[1], run_name="__main__")
"""
_BATCHES = 6
_BATCH_ROWS = 500


def test_programs_end_as_they_should_while_threads_free_files(tmp_path: Path) -> None:
    """Arrow's threads may free files after the result is there, when Python is ending."""
    maker = Maker(tmp_path / "archive")
    maker.batch({key_of("visits"): ["5-0", "5-1", "5-2"]}, fields=[("status", "500")] * 3)
    record(maker.table.root, {key_of("visits"): EntryId(5, 1)}, {})
    ended: dict[str, tuple[int, str, str]] = {}
    for name, program in programs(DOCUMENT).items():
        (tmp_path / name).write_text(program)
        command = [sys.executable, "-c", _SLOW, name]
        done = completed(command, cwd=tmp_path)
        ended[name] = done.returncode, done.stdout, done.stderr
    said = dict.fromkeys(ended, (0, "3 3\n", "")) | {"with_deletions.py": (0, "visits 5-1\n", "")}
    assert ended == said


def _archived(server: Server, root: Path) -> None:
    """Three thousand visits, of which one in fifty failed, in six batches."""
    maker, names = Maker(root), [("status", "500" if number % 50 == 0 else "200") for number in range(3_000)]
    with GatewayClient(GatewayAccess("g0", server.url)) as gateway:
        for batch in range(_BATCHES):
            some = names[batch * _BATCH_ROWS : (batch + 1) * _BATCH_ROWS]
            stored = gateway.publish_many({"visits": [[pair] for pair in some]})
            seen = gateway.stream("visits")
            assert seen is not None
            page = gateway.page("visits", after=maker.upto("visits"), end=stored["visits"].last_id)
            entries = [f"{ms}-{seq}" for ms, seq in zip(page.ms, page.seq, strict=True)]
            maker.batch({key_of("visits", seen["generation"]): entries}, fields=some)
        gateway.update_stream("visits", archived_up_to=maker.upto("visits"))


def test_programs_and_commands_print_what_the_document_says(server: Server, tmp_path: Path) -> None:
    """In the order in which they stand."""
    _archived(server, tmp_path / "archive")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WEIR_")}
    environment |= {
        "WEIR_URL": server.url,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "sdk/python")]),
    }
    found = programs(DOCUMENT)
    assert len(found) == 5
    for name, program in found.items():
        (tmp_path / name).write_text(program)
    text = DOCUMENT.replace(".venv/bin/python", sys.executable)
    text = text.replace(".venv/bin/weir-spark", f"{sys.executable} -m pyspark_weir")
    text = text.replace(".venv/bin/weir", f"{sys.executable} -m weir")
    run_steps(text, tmp_path, environment)


def test_the_table_of_columns_is_the_table_s() -> None:
    """In its order, and none that there is not."""
    section = DOCUMENT.split("\n## The table\n")[1].split("\n## ")[0]
    cells = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    assert [name for cell in cells for name in cell.split("`")[1::2]] == SCHEMA.names
