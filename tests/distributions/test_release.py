"""A release: what it ships, made twice with the same bytes, and the workflow that makes it from a tag.

Knows: .ci/release, the workflow's schema. Must never know: where releases go.
"""

import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Final

import pytest
from ruamel.yaml import YAML

from tests.distributions.conftest import FOLDERS, ROOT, run

WORKFLOW: Final = ROOT / ".github" / "workflows" / "release.yml"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a release; the script fails where two builds differ."""
    folder = tmp_path_factory.mktemp("release")
    done = run(ROOT / ".ci" / "release", folder, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_a_release_has_each_package_and_its_checksum(made: Path) -> None:
    """Wheels of the three distributions, the npm package, the SBOM."""
    lines = (made / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in (line.split() for line in lines)}
    assert sums == {name: hashlib.sha256((made / name).read_bytes()).hexdigest() for name in sums}
    wheels = {name.partition("-")[0] for name in sums if name.endswith(".whl")}
    assert wheels == set(FOLDERS)
    assert {name.partition("-0")[0] for name in sums} == {*wheels, "weir-client", "sbom.cdx.json"}


def test_the_sbom_names_what_the_lock_holds(made: Path) -> None:
    """Each package with its version and its hashes."""
    found = json.loads((made / "sbom.cdx.json").read_text())
    assert found["bomFormat"] == "CycloneDX"
    named = {f"{one['name']}=={one['version']}" for one in found["components"]}
    lock = (ROOT / "requirements.lock").read_text()
    locked = set(re.findall(r"^([a-z0-9._-]+)(?:\[[a-z,]+\])?(==[^ ;]+)", lock, re.MULTILINE))
    assert named == {name + version for name, version in locked}
    assert len(named) > 20


def test_the_notes_are_the_changelog_of_the_version(made: Path) -> None:
    """One section, without a heading of another."""
    notes = (made / "notes.md").read_text()
    assert "### Added" in notes
    assert notes.strip() in (ROOT / "CHANGELOG.md").read_text()
    assert not re.search("^## ", notes, re.MULTILINE)


def test_the_workflow_is_one(tmp_path: Path) -> None:
    """By the schema of such files, with a limit of time; a planted fault is found."""
    check = [str(Path(sys.executable).parent / "check-jsonschema"), "--builtin-schema"]
    for schema in ("vendor.github-workflows", "custom.github-workflows-require-timeout"):
        done = run(*check, schema, WORKFLOW, cwd=ROOT)
        assert done.returncode == 0, done.stdout
    fault = tmp_path / "release.yml"
    fault.write_text(WORKFLOW.read_text().replace("runs-on:", "run-on:"))
    assert run(*check, "vendor.github-workflows", fault, cwd=ROOT).returncode == 1


def test_the_workflow_runs_the_gate_and_names_no_host() -> None:
    """Before anything is shipped; its programs are in the repository."""
    text = WORKFLOW.read_text()
    (job,) = YAML(typ="safe").load(text)["jobs"].values()
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands.index(".ci/run") < commands.index(".ci/release dist")
    assert "://" not in text
