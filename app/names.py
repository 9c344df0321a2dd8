"""The names of streams, groups and consumers, as every API takes them.

Knows: how a text that is no name is refused.
Must never know: where a name stood (a path, a body, a command), and whether anything of that name exists.
"""

from engine import errors
from engine.name_rules import is_name


def check(raw: bytes, what: str = "name") -> str:
    """The name that `raw` spells; `what` (`"stream name"`, …) is for the error's sentence.

    Raises the refusal `invalid_name`.
    """
    if not is_name(raw):
        raise errors.invalid_name(what)
    return raw.decode()


def check_text(name: str, what: str = "name") -> str:
    """The check for a name that came as text; a lone surrogate is no UTF-8.

    Raises the refusal `invalid_name`.
    """
    return check(name.encode(errors="surrogatepass"), what)
