"""What goes wrong with an archive's table.

Knows: the code that all of them have. Must never know: how they are found.
"""

from pyspark_weir.errors import PipelineError


class ArchiveError(PipelineError):
    """The archive cannot be used as asked; nothing was changed."""

    def __init__(self, sentence: str, /) -> None:
        super().__init__("WEIR_ARCHIVE", sentence)


class ArchiveDamagedError(ArchiveError):
    """A file of the archive is missing, cut short or changed."""


class ArchiveLockedError(PipelineError):
    """Another process works on the archive, or took over because this one was too slow."""

    def __init__(self, sentence: str, /) -> None:
        super().__init__("WEIR_LOCKED", sentence)


class RangeConflictError(ArchiveError):
    """A batch does not continue the table's ranges: another checkpoint, or an old copy of one."""


class StaleFilesError(ArchiveError):
    """A batch's files are so old that a vacuum may delete them: write them again."""


class CommitConflictError(ArchiveError):
    """Other writers committed first, each time: try again later."""
