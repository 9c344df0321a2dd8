"""The names of streams, groups and consumers, as every API takes them.

Knows: which bytes are a name: 1 to 512 bytes of strict UTF-8, no `/`, no control characters, not `.` or `..`,
and nothing is normalised (two names are the same only if their bytes are).
Must never know: where a name stood (a path, a body, a command), and whether anything of that name exists.
"""

import re
from typing import Final

from engine import errors

# Long enough for any naming scheme, short enough for a path segment, a log line and a metric label.
NAME_BYTES_MAX: Final = 512

# `/` would break paths; C0, DEL and C1 would break logs, headers and terminals.
_FORBIDDEN: Final = re.compile(r"[/\x00-\x1f\x7f-\x9f]")
# They mean something else to everything that resolves paths on the way here.
_RESERVED: Final = frozenset({".", ".."})


def check(raw: bytes, what: str = "name") -> str:
    """The name that `raw` spells; `what` (`"stream name"`, …) is for the error's sentence.

    Raises the refusal `invalid_name`.
    """
    if not 1 <= len(raw) <= NAME_BYTES_MAX:
        raise errors.invalid_name(what)
    try:
        name = raw.decode()
    except UnicodeDecodeError:
        raise errors.invalid_name(what) from None
    if name in _RESERVED or _FORBIDDEN.search(name):
        raise errors.invalid_name(what)
    return name


def check_text(name: str, what: str = "name") -> str:
    """The check for a name that came as text; a lone surrogate is no UTF-8.

    Raises the refusal `invalid_name`.
    """
    return check(name.encode(errors="surrogatepass"), what)
