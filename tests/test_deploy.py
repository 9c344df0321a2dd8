"""What runs the gateway elsewhere is sound: no container engine is at hand, but the linters for it are."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOLS = Path(sys.executable).parent


def lint(*command: str) -> None:
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_image_is_built_as_images_should_be() -> None:
    """Hadolint finds nothing in the Dockerfile."""
    lint(str(TOOLS / "hadolint"), "Dockerfile")


def test_the_compose_file_is_one() -> None:
    """It is what the specification of compose files describes."""
    lint(str(TOOLS / "check-jsonschema"), "--builtin-schema", "vendor.compose-spec", "deploy/compose.yaml")


@pytest.mark.parametrize("line", ["ExecStart=", "DynamicUser=yes", "NoNewPrivileges", "ProtectSystem=strict"])
def test_the_unit_is_hardened(line: str) -> None:
    """The unit keeps the gateway to its own data; where systemd is at hand it says that the unit is sound."""
    unit = ROOT / "deploy" / "weir.service"
    assert line in unit.read_text()
    if shutil.which("systemd-analyze"):
        ran = subprocess.run(
            ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False
        )
        # The program is not installed at its place here; nothing else may be said.
        said = [
            text
            for text in ran.stderr.splitlines()
            if "weir.service" in text and "not executable" not in text
        ]
        assert said == []
