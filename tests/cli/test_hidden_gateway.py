"""`weir` where another package has the name of one of the gateway's."""

import os
import sys
from pathlib import Path

from tests.waiting import completed


def test_another_package_called_app_is_named(tmp_path: Path) -> None:
    """In one line, with what to do; the commands of the client are there."""
    (tmp_path / "app").mkdir()
    module = tmp_path / "app" / "__init__.py"
    module.touch()
    command = [sys.executable, "-m", "weir", "streams", "--help"]
    kept = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = completed(command, cwd=tmp_path, env=kept)
    assert (done.returncode, "List the streams." in done.stdout) == (0, True)
    assert done.stderr == (
        f"weir: the commands of weir-gateway cannot be loaded: {module} is another package of the name app; "
        "give weir-gateway an environment of its own, as `pipx install weir-gateway` and "
        "`uv tool install weir-gateway` do\n"
    )
