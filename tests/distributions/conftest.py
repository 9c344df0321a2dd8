"""The three distributions as users get them: wheels, environments with some of them, a folder of a user.

Knows: how wheels are built and installed without an index. Must never know: what they are tried with.
"""

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
FOLDERS: Final = {"weir_gateway": ".", "weir_client": "sdk/python", "pyspark_weir": "spark"}
USERS_OWN: Final = ("app.py", "pipeline.py", "cli/__init__.py", "engine/__init__.py")

Environment = Callable[..., Path]


def run(*command: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run to the end, with an environment that names nothing of this repository."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WEIR_", "PYTHON"))}
    plain = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}
    return subprocess.run(
        command,
        cwd=cwd,
        env=kept | plain | variables,
        check=False,
        capture_output=True,
        text=True,
        # Spark alone takes a minute where it has half a core.
        timeout=300,
    )


def build(folder: Path, into: Path, **variables: str) -> Path:
    """The wheel of a project."""
    done = run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", into, cwd=folder, **variables)
    assert done.returncode == 0, done.stderr
    (wheel,) = into.iterdir()
    return wheel


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel of each distribution."""
    return {
        name: build(ROOT / folder, tmp_path_factory.mktemp(name) / "wheel")
        for name, folder in FOLDERS.items()
    }


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path]) -> Environment:
    """Make a virtual environment with some of the distributions, and return its folder."""
    others = tmp_path_factory.mktemp("others")
    for item in Path(sysconfig.get_path("purelib")).iterdir():
        # What else is installed here, without the editable installations of this repository.
        if "weir" not in item.name:
            (others / item.name).symlink_to(item)

    def make(*names: str) -> Path:
        made = tmp_path_factory.mktemp("environment")
        venv.create(made, with_pip=False)
        if names:
            into = [sys.executable, "-m", "pip", "--python", str(made), "install"]
            into += ["--no-deps", "--no-index", "--no-compile"]
            done = run(*into, *(wheels[name] for name in names), cwd=made)
            assert done.returncode == 0, done.stderr
        (packages,) = made.glob("lib/python*/site-packages")
        (packages / "others.pth").write_text(f"{others}\n")
        return made

    return make


@pytest.fixture
def users_folder(tmp_path: Path) -> Path:
    """A user's folder; its modules have the names of ours, and raise when they are imported."""
    for name in USERS_OWN:
        file = tmp_path / "work" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("raise RuntimeError('a module of the user was imported')\n")
    return tmp_path / "work"
