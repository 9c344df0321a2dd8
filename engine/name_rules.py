"""Which texts are names of streams, groups and consumers.

Knows: 1 to 512 bytes of UTF-8 without control characters; between slashes nothing is empty, `.` or `..`; what
begins with `weir/` is Weir's own. Nothing is normalised: two names are the same only if their bytes are.
Must never know: where a name stood (a path, a body, a command), and whether anything of that name exists.
"""

import re
from typing import Final

# Long enough for any naming scheme, short enough for a path segment, a log line and a metric label.
NAME_BYTES_MAX: Final = 512
# Over a backend the names of streams are those of its keys, and Weir's own keys begin so.
RESERVED: Final = "weir/"

# C0, DEL and C1 would break logs, headers and terminals.
_FORBIDDEN: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# Empty parts, `.` and `..` mean something else to everything that resolves paths on the way here.
_DOTS: Final = frozenset({".", ".."})
_MISLEADING: Final = re.compile(rf"{RESERVED}|(?:[^/]+/)*\.{{0,2}}(?:/|\Z)")


def is_name(raw: bytes) -> bool:
    """Whether these bytes are a name."""
    if not 1 <= len(raw) <= NAME_BYTES_MAX:
        return False
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        return False
    misleads = _MISLEADING.match(name) if "/" in name else name in _DOTS
    return not (misleads or _FORBIDDEN.search(name))
