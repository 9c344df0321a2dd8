"""What Spark's checkpoint of a streaming query says: whose it is, and which range each batch has.

Knows: the files `metadata` and `offsets/<batch>` that Spark writes, the latter before a batch runs.
Must never know: Spark itself, what is done with a batch.
"""

import json
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
from pyarrow import fs

from pyspark_weir import offsets
from pyspark_weir.errors import OptionError, PipelineError
from pyspark_weir.offsets import Lost, Offsets
from pyspark_weir.table.root import S3_SCHEMES, ArchiveRoot, Folder

_SCHEME: Final = "://"


class StateFolder(Folder):
    """The root of a checkpoint. `address` is what Spark calls it: with a scheme always, else a cluster would
    look on its default file system.
    """

    def __init__(self, files: Any, base: str, address: str) -> None:  # noqa: ANN401 - pyarrow has no types
        self.files = files
        self.base = base.rstrip("/")
        self.address = address.rstrip("/")

    @classmethod
    def of(cls, root: str) -> Self:
        """A path of this machine, or an address such as `hdfs://name/folder` or `s3a://bucket/folder`.

        Raises OptionError for what pyarrow cannot reach: HDFS needs Hadoop's library on this machine.
        """
        if _SCHEME not in root:
            base = str(Path(root).absolute())
            return cls(fs.LocalFileSystem(), base, f"file://{base}")
        if root.partition(_SCHEME)[0] in S3_SCHEMES:
            bucket = ArchiveRoot.of(root)
            return cls(bucket.files, bucket.base, root)
        try:
            files, base = fs.FileSystem.from_uri(root)
        except (pa.ArrowInvalid, OSError) as error:
            # Without Hadoop's library it goes on for a hundred lines, which name where it was looked for.
            reason = str(error).partition("\n")[0]
            raise OptionError(
                f"{root!r} is no place that can be reached from here ({reason}): give a folder, "
                "or an address that pyarrow.fs understands"
            ) from None
        return cls(files, base, root)


_METADATA: Final = "metadata"
_OFFSETS: Final = "offsets"
_COMMITS: Final = "commits"
_VERSION: Final = "v1"
_NO_OFFSET: Final = "-"


def query_id(checkpoint: StateFolder) -> str | None:
    """The query's ID, which stays through restarts; None where no query has begun. Raises PipelineError."""
    stored = checkpoint.read(_METADATA)
    if stored is None:
        return None
    try:
        found = json.loads(stored)["id"]
    except (ValueError, KeyError, TypeError):
        found = None
    if not isinstance(found, str) or not found:
        raise _strange(checkpoint, _METADATA, "it has no query ID")
    return found


def is_of(checkpoint: StateFolder, query: str) -> bool:
    """Whether it is that query's, and still has the ranges of its batches. Raises PipelineError."""
    return query_id(checkpoint) == query and any(name.isdigit() for name in checkpoint.names(_OFFSETS))


def last_commit(checkpoint: StateFolder) -> int | None:
    """The last batch that has ended; None where none has."""
    return max((int(name) for name in checkpoint.names(_COMMITS) if name.isdigit()), default=None)


def files_of(batch: int) -> list[str]:
    """What says of a batch that it has ended, and where the next one begins."""
    return [_METADATA, f"{_OFFSETS}/{batch}", f"{_COMMITS}/{batch}"]


def secure_plan(checkpoint: StateFolder, batch: int) -> None:
    """Have the disk hold which range a batch has, and whose it is; Spark does not see to that. What is done
    with the batch from now on may outlast a power cut: it must not be forgotten what it was done with, or
    Spark would give that number to another range. Raises PipelineError.
    """
    names = [_METADATA, f"{_OFFSETS}/{batch}"]
    for name in names:
        if checkpoint.size(name) is None:
            raise _strange(checkpoint, name, "it is missing")
    checkpoint.sync(names)


def ends(checkpoint: StateFolder, batch: int) -> Offsets:
    """How far each stream is read when a batch has ended. Raises PipelineError."""
    return offsets.decode(_end(checkpoint, batch))


def lost(checkpoint: StateFolder, batch: int) -> tuple[Lost, ...]:
    """What was gone before a batch could read it. Raises PipelineError."""
    return offsets.lost(_end(checkpoint, batch))


def _end(checkpoint: StateFolder, batch: int) -> dict[str, Any]:
    name = f"{_OFFSETS}/{batch}"
    stored = checkpoint.read(name)
    if stored is None:
        raise _strange(checkpoint, name, "it is missing")
    version, _, rest = stored.decode().partition("\n")
    lines = rest.splitlines()
    if version != _VERSION or len(lines) != 2 or lines[1] == _NO_OFFSET:
        raise _strange(checkpoint, name, f"version {version} with {len(lines)} lines")
    found: dict[str, Any] = json.loads(lines[1])
    return found


def _strange(checkpoint: StateFolder, name: str, why: str) -> PipelineError:
    return PipelineError(
        "WEIR_CHECKPOINT",
        f"{checkpoint.address}/{name} is not as Spark writes it ({why}): restore the checkpoint from a copy",
    )
