"""What the wheels hold: every file of their packages, and the same bytes from the same source."""

import shutil
import subprocess
import zipfile
from pathlib import Path
from typing import Final

import pytest

from engine import rows
from tests.distributions.conftest import FOLDERS, ROOT, build

PACKAGES: Final = {
    "weir_gateway": ("app", "engine", "history"),
    "weir_client": ("weir",),
    "pyspark_weir": ("pyspark_weir",),
}
COMPILED: Final = "engine/_rows.abi3.so"


def _sources(folder: str) -> list[Path]:
    """The files that git has or would take, relative to the project's folder."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT / folder, capture_output=True, text=True, check=True).stdout
    return [Path(name) for name in listed.split("\0") if name and (ROOT / folder / name).exists()]


@pytest.mark.parametrize("name", FOLDERS)
def test_a_wheel_carries_every_file_of_its_packages(name: str, wheels: dict[str, Path]) -> None:
    """Vendored scripts, pages and tables go along with the modules; tests and benchmarks stay at home."""
    with zipfile.ZipFile(wheels[name]) as archive:
        carried = archive.namelist()
    expected = {str(file) for file in _sources(FOLDERS[name]) if file.parts[0] in PACKAGES[name]}
    if name == "weir_gateway" and rows.way() == "c":
        expected.add(COMPILED)
    assert {file for file in carried if ".dist-info/" not in file} == expected
    assert any(file.endswith(".dist-info/licenses/LICENSE") for file in carried)
    assert all(f"{package}/py.typed" in carried for package in PACKAGES[name])


@pytest.mark.parametrize("name", FOLDERS)
def test_a_wheel_can_be_built_again(name: str, wheels: dict[str, Path], tmp_path: Path) -> None:
    """The same bytes, from a copy at another place that was made at another time."""
    copy = tmp_path / "copy"
    for file in _sources(FOLDERS[name]):
        (copy / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / FOLDERS[name] / file, copy / file)
    again = build(copy, tmp_path / "again")
    assert again.name == wheels[name].name
    assert again.read_bytes() == wheels[name].read_bytes()


@pytest.mark.parametrize("variables", [{"PATH": "", "CC": ""}, {"WEIR_ROWS": "python"}])
def test_without_a_compiler_the_wheel_is_for_every_machine(variables: dict[str, str], tmp_path: Path) -> None:
    """With one, its name says for which machine it is, and which Python at least."""
    copy = tmp_path / "copy"
    for file in _sources("."):
        (copy / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, copy / file)
    wheel = build(copy, tmp_path / "wheel", **variables)
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert COMPILED not in archive.namelist()
    if rows.way() == "c":
        assert "-cp311-abi3-linux_" in build(copy, tmp_path / "another").name
