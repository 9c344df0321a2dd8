"""assistant-ui's own tests of resumable streams pass with the gateway as their store."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tests.server import Server
from tests.typescript.test_typescript import client_module  # noqa: F401 - a fixture

HERE: Final = Path(__file__).parent
MODULES: Final = HERE.parent / "node_modules"
SUITE_S_MAX: Final = 180
# Those of the stores in memory and over Redis are about these alone.
SUITES: Final = ("ResumableStreamContext", "createResumableAssistantStreamResponse", "integration")


def test_assistant_ui_s_tests_pass_with_our_store(client_module: Path, tmp_path: Path) -> None:  # noqa: F811
    """All of those that are given a store: by its context, by its responses, and together."""
    for name in ("store.mjs", "vitest.config.mjs"):
        shutil.copy(HERE / name, tmp_path)
    shutil.copytree(MODULES / "assistant-stream" / "src", tmp_path / "src")
    (tmp_path / "node_modules").symlink_to(MODULES)
    report = tmp_path / "report.json"
    words = ["run", "--testTimeout=60000", "--reporter=json", f"--outputFile={report}", *SUITES]
    with Server(tmp_path / "data") as server:
        resumable = client_module.with_name("resumable.js").as_uri()
        subprocess.run(
            ["node", MODULES / "vitest" / "vitest.mjs", *words],
            cwd=tmp_path,
            env={**os.environ, "WEIR_URL": server.url, "WEIR_RESUMABLE": resumable},
            timeout=SUITE_S_MAX,
            check=False,
            capture_output=True,
        )
        found = [
            one for file in json.loads(report.read_text())["testResults"] for one in file["assertionResults"]
        ]
        failed = {one["fullName"]: one["failureMessages"] for one in found if one["status"] != "passed"}
        assert failed == {}
        assert len(found) >= 47
