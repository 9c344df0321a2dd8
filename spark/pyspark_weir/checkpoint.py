"""What Spark's checkpoint of a streaming query says: whose it is, and which range each batch has.

Knows: the files `metadata` and `offsets/<batch>` that Spark writes, the latter before a batch runs.
Must never know: Spark itself, what is done with a batch.
"""

import json
from typing import Final

from pyspark_weir import offsets
from pyspark_weir.errors import PipelineError
from pyspark_weir.offsets import Offsets
from pyspark_weir.place import Place

_METADATA: Final = "metadata"
_OFFSETS: Final = "offsets"
_COMMITS: Final = "commits"
_VERSION: Final = "v1"
_NO_OFFSET: Final = "-"


def query_id(checkpoint: Place) -> str | None:
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


def last_commit(checkpoint: Place) -> int | None:
    """The last batch that has ended; None where none has."""
    return max((int(name) for name in checkpoint.names(_COMMITS) if name.isdigit()), default=None)


def files_of(batch: int) -> list[str]:
    """What says of a batch that it has ended, and where the next one begins."""
    return [_METADATA, f"{_OFFSETS}/{batch}", f"{_COMMITS}/{batch}"]


def secure_plan(checkpoint: Place, batch: int) -> None:
    """Have the disk hold which range a batch has, and whose it is; Spark does not see to that. What is done
    with the batch from now on may outlast a power cut: it must not be forgotten what it was done with, or
    Spark would give that number to another range. Raises PipelineError.
    """
    names = [_METADATA, f"{_OFFSETS}/{batch}"]
    for name in names:
        if checkpoint.size(name) is None:
            raise _strange(checkpoint, name, "it is missing")
    checkpoint.secure(names)


def ends(checkpoint: Place, batch: int) -> Offsets:
    """How far each stream is read when a batch has ended. Raises PipelineError."""
    name = f"{_OFFSETS}/{batch}"
    stored = checkpoint.read(name)
    if stored is None:
        raise _strange(checkpoint, name, "it is missing")
    version, _, rest = stored.decode().partition("\n")
    lines = rest.splitlines()
    if version != _VERSION or len(lines) != 2 or lines[1] == _NO_OFFSET:
        raise _strange(checkpoint, name, f"version {version} with {len(lines)} lines")
    return offsets.decode(json.loads(lines[1]))


def _strange(checkpoint: Place, name: str, why: str) -> PipelineError:
    return PipelineError(
        "WEIR_CHECKPOINT",
        f"{checkpoint.address}/{name} is not as Spark writes it ({why}): restore the checkpoint from a copy",
    )
