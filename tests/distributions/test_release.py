"""A release: what it ships, made twice with the same bytes, and the workflow that makes it from a tag.

Knows: .ci/release, the workflow's schema. Must never know: where releases go.
"""

import hashlib
import json
import re
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Final

import pytest
from ruamel.yaml import YAML

from tests.distributions.conftest import FOLDERS, ROOT, run

WORKFLOWS: Final = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
RELEASE: Final = ROOT / ".github" / "workflows" / "release.yml"
TOOLS: Final = Path(sys.executable).parent.parent / "tools" / "bin"
REPOSITORY: Final = "https://example.org/weir"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a release; the script fails where two builds differ."""
    folder = tmp_path_factory.mktemp("release")
    done = run(ROOT / ".ci" / "release", folder, cwd=ROOT, REPOSITORY=REPOSITORY)
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


def test_each_package_says_where_it_comes_from_and_runs_where_an_index_takes_it(made: Path) -> None:
    """Wheels by their metadata, the npm package by what its provenance is compared with."""
    for wheel in made.glob("*.whl"):
        with zipfile.ZipFile(wheel) as packed:
            (name,) = (name for name in packed.namelist() if name.endswith(".dist-info/METADATA"))
            assert f"Project-URL: Repository, {REPOSITORY}\n" in packed.read(name).decode()
    with tarfile.open(next(made.glob("*.tgz"))) as packed:
        described = packed.extractfile("package/package.json")
        assert described is not None
        assert json.load(described)["repository"] == {"type": "git", "url": f"git+{REPOSITORY}.git"}
    tags = {wheel.stem.rpartition("-")[2] for wheel in made.glob("weir_gateway*.whl")}
    assert tags == {"any", *(tag for tag in tags if tag.startswith("manylinux"))}
    assert len(tags) == 2


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


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_is_one(workflow: Path, tmp_path: Path) -> None:
    """By the schema of such files, with a limit of time; a planted fault is found."""
    check = [str(Path(sys.executable).parent / "check-jsonschema"), "--builtin-schema"]
    for schema in ("vendor.github-workflows", "custom.github-workflows-require-timeout"):
        done = run(*check, schema, workflow, cwd=ROOT)
        assert done.returncode == 0, done.stdout
    fault = tmp_path / "release.yml"
    fault.write_text(workflow.read_text().replace("runs-on:", "run-on:"))
    assert run(*check, "vendor.github-workflows", fault, cwd=ROOT).returncode == 1


def test_the_workflows_give_nobody_a_way_in(tmp_path: Path) -> None:
    """Actions stand by their hash, jobs have the rights they need, nothing runs what a stranger wrote."""
    look = [str(TOOLS / "zizmor"), "--offline", "--no-progress"]
    done = run(*look, *WORKFLOWS, cwd=ROOT)
    assert done.returncode == 0, done.stdout
    text = RELEASE.read_text()
    for found, planted in (
        ("unpinned-uses", re.sub(r"@[0-9a-f]{40}", "@main", text)),
        (
            "excessive-permissions",
            text.replace("permissions:\n      contents: read\n", "permissions: write-all\n"),
        ),
        ("template-injection", text.replace("run: make coverage", 'run: echo "${{ github.head_ref }}"')),
    ):
        assert planted != text
        fault = tmp_path / ".github" / "workflows" / "release.yml"
        fault.parent.mkdir(parents=True, exist_ok=True)
        fault.write_text(planted)
        done = run(*look, fault, cwd=tmp_path)
        assert found in done.stdout
        assert done.returncode != 0


def test_the_release_runs_the_gate_first_and_names_no_host() -> None:
    """Before anything is shipped; each job that ships waits for it. Its programs are in the repository."""
    text = RELEASE.read_text()
    jobs = YAML(typ="safe").load(text)["jobs"]
    commands = [step["run"] for step in jobs["build"]["steps"] if "run" in step]
    assert commands.index(".ci/run") < commands.index("make coverage") < commands.index(".ci/release dist")
    needs = {name: job.get("needs") for name, job in jobs.items()}
    assert needs.pop("build") is None
    assert needs.pop("attest") == "build"
    assert needs.pop("publish") == ["pypi", "npm"]
    assert set(needs.values()) == {"attest"}
    assert "://" not in text
