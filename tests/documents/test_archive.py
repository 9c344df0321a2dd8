"""docs/archive.md: its programs and commands, on an archive that is made without Spark."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_weir import gateway as calls
from pyspark_weir.gateway import Access, Gateway
from pyspark_weir.table import SCHEMA
from tests.documents.programs import programs
from tests.documents.shell import ShellSession, agrees, steps
from tests.server import Server
from tests.spark.table.making import Maker, key_of

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "archive.md").read_text()
_BATCHES = 6
_BATCH_ROWS = 500


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "weir-data") as running:
        yield running


def _archived(server: Server, root: Path) -> None:
    """Three thousand visits, of which one in fifty failed, in six batches."""
    maker, names = Maker(root), [("status", "500" if number % 50 == 0 else "200") for number in range(3_000)]
    with Gateway(Access("g0", server.url)) as gateway:
        for batch in range(_BATCHES):
            some = names[batch * _BATCH_ROWS : (batch + 1) * _BATCH_ROWS]
            stored = calls.publish(gateway, {"visits": [{"fields": [pair]} for pair in some]})
            seen = calls.stream(gateway, "visits")
            assert seen is not None
            page = calls.page(gateway, "visits", after=maker.upto("visits"), end=stored.last["visits"])
            entries = [f"{ms}-{seq}" for ms, seq in zip(page.ms, page.seq, strict=True)]
            maker.batch({key_of("visits", seen["generation"]): entries}, fields=some)
        calls.archived_up_to(gateway, "visits", maker.upto("visits"))


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
    session = ShellSession(tmp_path, environment)
    try:
        for step in steps(text):
            printed = session.run(step.command)
            same = len(printed) == len(step.output) and all(map(agrees, step.output, printed))
            assert same, "\n".join([f"$ {step.command}", "--- said", *step.output, "--- printed", *printed])
    finally:
        session.close()


def test_the_table_of_columns_is_the_table_s() -> None:
    """In its order, and none that there is not."""
    section = DOCUMENT.split("\n## The table\n")[1].split("\n## ")[0]
    cells = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    assert [name for cell in cells for name in cell.split("`")[1::2]] == SCHEMA.names
