"""Compiles engine/_rows.c for a wheel or an editable installation, where a compiler and Python's headers are.

Knows: how to compile one file. Does nothing where it cannot, and nothing else: the gateway works without it.
With WEIR_ROWS=python in the environment it leaves it too: a wheel for every machine.

    build_rows.py SOURCE MADE [FLAG...]      compiles a file by hand
"""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# No debugging data: they would name the folder.
FLAGS = ("-O2", "-g0", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror=implicit")


class RowsHook(BuildHookInterface):  # type: ignore[type-arg]
    """Called by hatchling before it packs."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say in the wheel's name what machine it is for."""
        made = Path(self.root, "engine", "_rows.abi3.so")
        # The environment of a build; the gateway reads its own in app/settings/environment.py.
        is_wanted = os.environ.get("WEIR_ROWS") != "python"  # noqa: TID251 - as above
        if not is_wanted or not compile_rows(made.with_name("_rows.c"), made):
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data.update(pure_python=False, tag=f"cp311-abi3-{platform}")
        build_data["artifacts"].append("engine/_rows.abi3.so")


def compile_rows(source: Path, made: Path, *flags: str) -> bool:
    """Compile it. Returns False where something is missing for that; raises if the file is at fault."""
    compiler = compiler_here()
    headers = sysconfig.get_path("include")
    if compiler is None or not Path(headers, "Python.h").is_file():
        return False
    # Others may import the file meanwhile: it is replaced as a whole.
    with TemporaryDirectory(dir=made.parent.resolve(), prefix=".rows-") as folder:
        compiled = Path(folder, made.name)
        options = (*FLAGS, *flags, f"-I{headers}", "-o", str(compiled), source.name)
        subprocess.run([*compiler, *options], cwd=source.parent, check=True)
        compiled.replace(made)
    return True


def compiler_here() -> list[str] | None:
    """The command of the compiler: what CC names, what built Python, or `cc`."""
    for named in (os.environ.get("CC"), sysconfig.get_config_var("CC"), "cc"):  # noqa: TID251 - of a build
        command = shlex.split(named or "")
        if command and shutil.which(command[0]):
            return command
    return None


if __name__ == "__main__":
    sys.exit(not compile_rows(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]))
