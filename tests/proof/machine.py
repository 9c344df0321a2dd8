"""What this machine lets a test do: each with the reason where not, which is never a pass.

Knows: root, loop devices, tmpfs, strace; how to mark a test that needs them (it is listed as not run).
Must never know: what is proved with them.
"""

import contextlib
import fcntl
import functools
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Self

import pytest

# linux/ext4: _IOR('X', 125, __u32), and the flag that lets not even the journal out.
SHUTDOWN: Final = (2 << 30) | (4 << 16) | (ord("X") << 8) | 125
NOLOGFLUSH: Final = 2
DISK_BYTES: Final = 96 << 20


def run(*command: str) -> None:
    """Run a program of the system; CalledProcessError with its words where it fails."""
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)


@functools.cache
def no_loop_disk() -> str | None:
    """Why no file system can be mounted here from a file; None if one can."""
    if os.geteuid() != 0:
        return "needs root and loop devices"
    missing = [name for name in ("mkfs.ext4", "mount", "umount") if shutil.which(name) is None]
    if missing:
        return f"needs {', '.join(missing)}"
    folder = Path("/tmp") if not os.access("/run", os.W_OK) else Path("/run")
    image, place = folder / f"weir-probe-{os.getpid()}.img", folder / f"weir-probe-{os.getpid()}"
    try:
        make_disk(image, 16 << 20)
        place.mkdir()
        run("mount", "-o", "loop", str(image), str(place))
        run("umount", str(place))
    except (subprocess.CalledProcessError, OSError) as error:
        return f"needs root and loop devices ({getattr(error, 'stderr', None) or error})"
    finally:
        image.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            place.rmdir()
    return None


@functools.cache
def no_tmpfs() -> str | None:
    """Why no small tmpfs can be mounted here; None if one can."""
    return None if os.geteuid() == 0 and shutil.which("mount") else "needs root to mount a small tmpfs"


@functools.cache
def no_strace() -> str | None:
    """Why no process can be traced here; None if one can."""
    if shutil.which("strace") is None:
        return "needs strace"
    probe = subprocess.run(["strace", "-qq", "-o", "/dev/null", "true"], check=False, capture_output=True)
    return None if probe.returncode == 0 else "strace may not trace here"


def needs(reason: Callable[[], str | None]) -> pytest.MarkDecorator:
    """Mark a test that cannot run everywhere: where it cannot, the gate's last lines say so and why."""
    why = reason()
    return pytest.mark.skipif(why is not None, reason=why or "")


def make_disk(image: Path, size: int = DISK_BYTES, *options: str) -> None:
    """A file that is an empty ext4."""
    with image.open("wb") as file:
        file.truncate(size)
    run("mkfs.ext4", "-q", "-F", *options, str(image))


@contextlib.contextmanager
def disk_without_promises(folder: Path, size: int) -> Iterator[Path]:
    """An ext4 as ext3 was: it has no fallocate."""
    image, place = folder / "disk.img", folder / "disk"
    make_disk(image, size, "-m", "0", "-O", "^extent,^64bit,^metadata_csum,^flex_bg")
    place.mkdir()
    run("mount", "-o", "loop", str(image), str(place))
    try:
        yield place
    finally:
        run("umount", str(place))


class CutDisk:
    """An ext4 on a file, whose power can be cut: nothing reaches it after `cut`, not even its journal."""

    def __init__(self, folder: Path) -> None:
        self._image = folder / "disk.img"
        self.place = folder / "disk"
        self._mounted = False

    def mount(self) -> None:
        """Mount it, as after a start of the machine. Only what is synced reaches the disk by itself."""
        run("mount", "-o", "loop,commit=1000", str(self._image), str(self.place))
        self._mounted = True

    def cut(self) -> None:
        """Cut the power."""
        directory = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(directory, SHUTDOWN, struct.pack("I", NOLOGFLUSH))
        finally:
            os.close(directory)

    def unmount(self) -> None:
        """Let go of it. Idempotent."""
        if self._mounted:
            run("umount", str(self.place))
            self._mounted = False

    def __enter__(self) -> Self:
        make_disk(self._image)
        self.place.mkdir()
        self.mount()
        return self

    def __exit__(self, *_: object) -> None:
        self.unmount()


@contextlib.contextmanager
def small_disk(place: Path, size: str) -> Iterator[Callable[[str], None]]:
    """A tmpfs of a size; gives a function that makes it larger."""
    place.mkdir()
    run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place))
    try:
        yield lambda larger: run("mount", "-o", f"remount,size={larger}", str(place))
    finally:
        run("umount", str(place))
