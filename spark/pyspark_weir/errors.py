"""What goes wrong in the pipeline, with a code that survives Spark's wrapping.

Knows: that a Python error reaches the user as text inside a JVM exception; so the code stands in the text.
Must never know: HTTP, Spark, what was tried.
"""

import copyreg
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final

DATA_LOSS: Final = "WEIR_DATA_LOSS"
OPTION: Final = "WEIR_OPTION"
LOCKED: Final = "WEIR_LOCKED"
FAILED: Final = "WEIR_FAILED"

_NOTHING: Final[Mapping[str, object]] = MappingProxyType({})


class PipelineError(Exception):
    """Something that its reader can do something about: `sentence` says what. The text begins with `code`."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(f"{code}: {sentence}")
        self.code = code
        self.sentence = sentence

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are pickled as a call of their class with `args`, which here is the text alone.
        make = copyreg.__newobj__  # type: ignore[attr-defined] # typeshed leaves it out
        return make, (type(self), *self.args), self.__dict__


class CodedError(PipelineError):
    """An error whose class has a code of its own."""

    CODE: ClassVar[str]

    def __init__(self, sentence: str, /) -> None:
        super().__init__(self.CODE, sentence)


class OptionError(CodedError):
    """An option of the data source or of a job that cannot be followed: which, and what to write instead."""

    CODE = OPTION


class DataLoss(CodedError):  # noqa: N818 - it names what happened
    """Entries that were to be read are gone: trimmed away, or their stream is another one by now."""

    CODE = DATA_LOSS


class RefusedError(CodedError):
    """The gateway answered that it will not. `status` is HTTP's, `problem` the stable code of the gateway's
    problem document ("" where something else answered), `members` what else the document holds.
    """

    CODE = "WEIR_REFUSED"

    def __init__(
        self, sentence: str, *, status: int, problem: str = "", members: Mapping[str, object] = _NOTHING
    ) -> None:
        super().__init__(f"{sentence} ({problem})" if problem else sentence)
        self.status = status
        self.problem = problem
        self.members = dict(members)

    def about(self, what: str) -> "RefusedError":
        found = RefusedError(f"{what}: {self.sentence}", status=self.status, members=self.members)
        found.problem = self.problem
        return found


class Unavailable(CodedError):  # noqa: N818 - it names what happened
    """The gateway did not answer, or not for as long as was to be tried. Whether it followed the last attempt
    is not known.
    """

    CODE = "WEIR_UNAVAILABLE"


class ArchiveError(CodedError):
    """The archive cannot be used as asked; nothing was changed."""

    CODE = "WEIR_ARCHIVE"


class ArchiveDamagedError(ArchiveError):
    """A file of the archive is missing, cut short or changed."""


class UnknownFeatureError(ArchiveError):
    """Another program has brought a feature of Delta's protocol into the table that Weir does not know."""


class ArchiveLockedError(CodedError):
    """Another process works on the archive, or took over because this one was too slow."""

    CODE = LOCKED


class RangeConflictError(ArchiveError):
    """A batch does not continue the table's ranges: another checkpoint, or an old copy of one."""


class StaleFilesError(ArchiveError):
    """A batch's files are so old that a vacuum may delete them: write them again."""


class CommitConflictError(ArchiveError):
    """Other writers committed first, each time: try again later."""


# deltalake's reasons are several lines, with colours, and an object store's answer as XML at their end.
_DECORATION: Final = re.compile(r"\x1b\[[0-9;]*m|↳")
_STORE_ANSWER: Final = re.compile(
    r"<\?xml.*?<Code>(.*?)</Code>\s*<Message>(.*?)</Message>.*</Error>", re.DOTALL
)


def storage_error(error: Exception) -> PipelineError:
    """What a disk or an object store refuses, in one line."""
    reason = _STORE_ANSWER.sub(r"\1: \2", _DECORATION.sub(" ", str(error)))
    return PipelineError(FAILED, " ".join(reason.split()))


def remedy() -> str:
    """How to install Spark: Weir is not on a package index."""
    return "make spark, or pip install ./sdk/python './spark[spark]', in a checkout of Weir"
