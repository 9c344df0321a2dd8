"""CloudEvents of the npm package: sent in three modes, and read as a batch."""

import json
from pathlib import Path

from tests.server import Server
from tests.waiting import completed

HERE = Path(__file__).parent


def test_what_the_npm_package_sends_it_reads_again(tmp_path: Path) -> None:
    """Attributes, an extension and the data; each valid by the schema of the specification."""
    with Server(tmp_path / "data") as server:
        words = ["node", "cloudevents.mjs", server.url]
        ran = completed(words, cwd=HERE, timeout=60)
    assert ran.returncode == 0, ran.stderr
    first = [True, "1", "t.json", "acme", {"a": [1, "ü"]}]
    second = [True, "2", "t.text", None, "two words"]
    assert json.loads(ran.stdout) == [first, first, second, second, first, second]
