"""What an operator can do about an error of the system, by its number.

Knows: errno. Must never know: what was tried, and what follows from it.
"""

import errno
from collections.abc import Mapping
from typing import Final

_OTHERWISE: Final = "check the disk (dmesg, smartctl)"
_GONE: Final = "something in the data directory was deleted or moved: put it back in its place"
_FORBIDDEN: Final = "let the user of the gateway write there"
_REMEDIES: Final[Mapping[int, str]] = {
    errno.ENOSPC: "make room on that disk",
    errno.EDQUOT: "raise the quota on that disk, or make room in it",
    errno.EMFILE: "raise the limit of open files (systemd: LimitNOFILE, shell: ulimit -n), or have fewer "
    "clients",
    errno.ENFILE: "raise the system's limit of open files (sysctl fs.file-max), or end what has so many open",
    errno.ENOENT: _GONE,
    errno.ENOTDIR: _GONE,
    errno.ESTALE: _GONE,
    errno.EROFS: "the system has made the disk read-only: check it (dmesg), then mount it for writing again",
    errno.EACCES: _FORBIDDEN,
    errno.EPERM: _FORBIDDEN,
    errno.EFBIG: "raise the limit of the size of files (systemd: LimitFSIZE, shell: ulimit -f)",
    errno.ENOMEM: "give the machine or the container more memory",
}


# Of something that the process lacks now, and that says nothing of the disk.
PASSING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def explain(error: BaseException) -> str:
    """What has happened, and for an error of the system what to do: its own `remedy`, where it has one."""
    if not isinstance(error, OSError) or error.errno is None:
        return str(error) or repr(error)
    remedy = getattr(error, "remedy", None) or _REMEDIES.get(error.errno, _OTHERWISE)
    return f"{error.strerror}: {remedy}"
