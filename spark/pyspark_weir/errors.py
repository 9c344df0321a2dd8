"""What goes wrong in the pipeline, with a code that survives Spark's wrapping.

Knows: that a Python error reaches the user as text inside a JVM exception; so the code stands in the text.
Must never know: HTTP, Spark, what was tried.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

DATA_LOSS: Final = "WEIR_DATA_LOSS"
OPTION: Final = "WEIR_OPTION"
REFUSED: Final = "WEIR_REFUSED"
UNAVAILABLE: Final = "WEIR_UNAVAILABLE"

_NOTHING: Final[Mapping[str, object]] = MappingProxyType({})


class PipelineError(Exception):
    """Something that its reader can do something about: `sentence` says what. The text begins with `code`."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(f"{code}: {sentence}")
        self.code = code
        self.sentence = sentence

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        # Exceptions are pickled as a call of their class with `args`, which here is the text alone.
        return _restored, (type(self), self.args, dict(self.__dict__))


class OptionError(PipelineError):
    """An option of the data source or of a job that cannot be followed: which, and what to write instead."""

    def __init__(self, sentence: str) -> None:
        super().__init__(OPTION, sentence)


class DataLoss(PipelineError):  # noqa: N818 - it names what happened
    """Entries that were to be read are gone: trimmed away, or their stream is another one by now."""

    def __init__(self, sentence: str) -> None:
        super().__init__(DATA_LOSS, sentence)


class Refused(PipelineError):  # noqa: N818 - it names what happened
    """The gateway answered that it will not. `status` is HTTP's, `problem` the stable code of the gateway's
    problem document ("" where something else answered), `members` what else the document holds.
    """

    def __init__(
        self, sentence: str, *, status: int, problem: str = "", members: Mapping[str, object] = _NOTHING
    ) -> None:
        super().__init__(REFUSED, f"{sentence} ({problem})" if problem else sentence)
        self.status = status
        self.problem = problem
        self.members = dict(members)


class Unavailable(PipelineError):  # noqa: N818 - it names what happened
    """Nobody answered, or only that it cannot at the moment, for as long as was to be tried. Whether the last
    attempt was followed is not known.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(UNAVAILABLE, sentence)


def remedy(extra: str) -> str:
    """How to install what an optional part needs: Weir is not on a package index."""
    return f"make spark, or pip install ./sdk/python './spark[{extra}]', in a checkout of Weir"


def _restored(kind: type[PipelineError], args: tuple[Any, ...], members: dict[str, Any]) -> PipelineError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(members)
    return error
