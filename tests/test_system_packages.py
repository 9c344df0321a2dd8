"""How the gate gets what it needs from the machine's package manager.

Knows: Debian's apt, in folders of its own. Must never know: which packages the gate needs.
"""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from typing import IO, Final

import pytest

from tests.proof.machine import needs

CI: Final = Path(__file__).parent.parent / ".ci"
# Longer than apt takes to try a lock for the first time.
HELD_S: Final = 1.0


def no_apt() -> str | None:
    """Why nothing can be installed here; None if something can."""
    if shutil.which("apt-get") is None:
        return "needs apt-get"
    as_root = subprocess.run([CI / "as-root", "true"], check=False, capture_output=True)
    return None if as_root.returncode == 0 else "needs root, or a sudo that asks nothing"


def has_systemd() -> str | None:
    """Why nothing can be learnt here of machines without systemd."""
    return "needs a machine without systemd" if Path("/run/systemd/system").exists() else None


def held(path: Path) -> IO[str]:
    """Hold it as apt does, until it is closed."""
    lock = path.open("w")
    fcntl.lockf(lock, fcntl.LOCK_EX)
    return lock


@needs(no_apt)
def test_installing_waits_for_apts_locks(tmp_path: Path) -> None:
    """A machine that has just started is still busy with its own updates."""
    (tmp_path / "lists/partial").mkdir(parents=True)
    shutil.copy("/var/lib/dpkg/status", tmp_path / "status")
    config = tmp_path / "apt.conf"
    no_sources = 'Dir::Etc::sourcelist "/dev/null"; Dir::Etc::sourceparts "/dev/null";'
    config.write_text(f'Dir::State "{tmp_path}"; Dir::State::status "{tmp_path}/status"; {no_sources}')
    locks = [held(tmp_path / name) for name in ("lists/lock", "lock-frontend")]
    # It is installed everywhere; without sources there is no newer one.
    install = [str(CI / "apt-install"), "a C library", "libc6"]
    with subprocess.Popen(install, env=os.environ | {"APT_CONFIG": str(config)}) as installing:
        for lock in locks:
            with lock, pytest.raises(subprocess.TimeoutExpired):
                installing.wait(HELD_S)
        assert installing.wait(30) == 0


@needs(has_systemd)
def test_a_daemon_that_has_only_a_unit_of_systemd_was_not_started() -> None:
    """Debian's caddy is such a package, and `service` knows no such name."""
    stopped = subprocess.run(
        [CI / "stop-daemon", "weir-has-no-init-script"], check=False, capture_output=True
    )
    assert (stopped.returncode, stopped.stderr) == (0, b"")
