"""Numbers that each batch of a query adds to, kept in one file.

Knows: that a batch which is run again after a crash must not count twice.
Must never know: what is counted, Spark.

The file lies in the query's checkpoint and goes with it. It is replaced whole after each batch and says which
batch was the last. Spark runs a batch again when it died before it noted the batch's end; the batch has the
same entries then, so skipping it is right.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from pyspark_weir.errors import OptionError, PipelineError
from pyspark_weir.place import Place

_version: Final = 1
_NONE_YET: Final = -1


class Tally:
    """The numbers of one query. `about` is what they depend on, such as the length of a window: a checkpoint
    that was begun with something else is refused.
    """

    def __init__(self, checkpoint: str, job: str, about: Mapping[str, Any]) -> None:
        self._place = Place.of(checkpoint)
        self._name = f"weir-{job}.json"
        self._about = {"job": job, **about}
        self.batch, self.kept = self._read()

    def _read(self) -> tuple[int, Any]:
        content = self._place.read(self._name)
        if content is None:
            return _NONE_YET, None
        where = self._place.path(self._name)
        try:
            found = orjson.loads(content)
            version, about, batch, kept = (found[name] for name in ("v", "about", "batch", "kept"))
        except (ValueError, KeyError, TypeError):
            raise PipelineError(
                "WEIR_TALLY", f"{where} is damaged: remove the checkpoint, and the job counts from the start"
            ) from None
        if version != _version:
            raise PipelineError("WEIR_TALLY", f"{where} has version {version}: a newer Weir wrote it")
        if about != self._about:
            raise OptionError(
                f"this checkpoint was begun with {_told(about)}, not {_told(self._about)}: "
                "numbers of both would not add up; give another --checkpoint"
            )
        return int(batch), kept

    def add(self, batch: int, change: Callable[[Any], Any]) -> bool:
        """Replace what is kept (None at first) by what `change` makes of it; False if this batch is in it."""
        if batch <= self.batch:
            return False
        kept = change(self.kept)
        content = {"v": _version, "about": self._about, "batch": batch, "kept": kept}
        self._place.write(self._name, orjson.dumps(content))
        self.batch, self.kept = batch, kept
        return True


def _told(about: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in about.items() if value is not None)
