"""In which folder of an archive a stream's files lie.

Knows: what a folder may be called, and how Spark writes names that may not be so.
Must never know: what is in the files.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import unquote

from pyspark.sql import Column
from pyspark.sql import functions as sf

from pyspark_weir.errors import PipelineError

# Where a column is null.
NOTHING: Final = "__HIVE_DEFAULT_PARTITION__"
# A folder's name has 255 bytes at most, `stream=` before it, and Spark writes three for some characters.
_plain_bytes_max: Final = 80
_prefix_chars: Final = 16
_hash_chars: Final = 32
# Java makes no file names of other characters where the locale is plain C.
_STRANGE: Final = "[^ -~]"


def folder(name: str) -> str:
    """The value by which files of a stream lie in folders: its name, or where that is long or strange its
    beginning and a hash.
    """
    if len(name.encode()) <= _plain_bytes_max and not re.search(_STRANGE, name):
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_hash_chars]
    return f"{re.sub(_STRANGE, '_', name[:_prefix_chars])}~{digest}"


def folder_column(name: Column) -> Column:
    """The same as `folder`, for a column."""
    plain = (sf.octet_length(name) <= _plain_bytes_max) & ~name.rlike(_STRANGE)
    prefix = sf.regexp_replace(sf.substring(name, 1, _prefix_chars), _STRANGE, "_")
    digest = sf.substring(sf.sha2(name.cast("binary"), 256), 1, _hash_chars)
    return sf.when(plain, name).otherwise(sf.concat(prefix, sf.lit("~"), digest))


def names_by_folder(names: Iterable[str]) -> Mapping[str, str]:
    """Which stream lies in which folder. Raises PipelineError where two would share one."""
    found: dict[str, str] = {}
    for name in names:
        value = folder(name)
        if found.setdefault(value, name) != name:
            raise PipelineError(
                "WEIR_ARCHIVE",
                f"the streams {found[value]!r} and {name!r} would lie in one folder: archive them apart",
            )
    return found


def values_of(path: str) -> Mapping[str, str | None]:
    """The values by which a file lies in folders, `a=1/b=2/file`, as they were before Spark wrote them."""
    pairs = (part.partition("=") for part in path.split("/")[:-1] if "=" in part)
    return {name: None if value == NOTHING else unquote(value) for name, _, value in pairs}
