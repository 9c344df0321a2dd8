"""Reads a log into a keyspace, and compresses texts that have gone cold.

Knows: payloads in order, and when texts are compressed.
Must never know: commands, asyncio, files.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from engine.errors import EngineError
from engine.keyspace import Caps, Keyspace
from engine.log import Log, LogRefusedError
from engine.nodes import Text, compress_each
from engine.records.payload import NewerRecordError, replay
from engine.runs import Run
from engine.storage import Storage
from engine.storage.file import FileStorage
from engine.storage.memory import MemoryStorage

# Cold texts are compressed at least this many at a time.
PACK_TEXTS_MIN: Final = 32
# Plain bytes in one call, unless one text has more: the library holds all that it gives in one buffer, which
# no limit of memory counts.
PACK_BYTES_MAX: Final = 4 << 20
# Called with the step ("checking", then "loading"), the bytes of the log that it has done, and all its bytes.
Progress = Callable[[str, int, int], None]
_PAYLOADS_A_TELL: Final = 4096


def no_progress(_step: str, _done_bytes: int, _total_bytes: int) -> None:
    """Report no progress."""


def recover(
    data: Path | Storage | None, caps: Caps, on_progress: Progress, holder: int | None = None
) -> tuple[Storage, Log, Keyspace]:
    """Open a directory and its log, and load the keyspace. Blocks. If the log is refused, nothing stays
    open.
    """
    storage = _storage_of(data, holder)
    log = Log.open(storage, on_progress=partial(on_progress, "checking"))
    keyspace = Keyspace(caps=caps)
    keyspace.runs.read = lambda run: log.read_run(run.file, run.offset, run.length)
    try:
        load(keyspace, log, on_progress)
    except BaseException:
        log.close(clean=False)
        if isinstance(storage, FileStorage):
            storage.close()
        raise
    return storage, log, keyspace


def load(keyspace: Keyspace, log: Log, on_progress: Progress = no_progress) -> None:
    """Apply every payload of the log. Raises LogRefusedError for one of a newer version, and for one that
    contradicts those before.
    """
    keyspace.begin_loading()
    done = 0
    for number, payload in enumerate(log.replay(), 1):
        done += len(payload)
        if not number % _PAYLOADS_A_TELL:
            on_progress("loading", done, log.recovery.bytes)
        try:
            replay(keyspace, payload)
        except NewerRecordError as newer:
            reason, (file, offset) = f"a frame of a newer version ({newer})", log.place_of(number)
            raise LogRefusedError(file, reason, offset=offset, newer=True) from newer
        except (ValueError, LookupError, AssertionError, EngineError) as error:
            reason, (file, offset) = f"does not fit what is before it: {error!r}", log.place_of(number)
            raise LogRefusedError(file, reason, offset=offset) from error
        if keyspace.garbage:
            keyspace.free_some()
        if len(keyspace.cold) >= PACK_TEXTS_MIN:
            _pack(keyspace.cold)
            keyspace.cold.clear()
    keyspace.end_loading()


def _pack(texts: Sequence[Text]) -> None:
    for text, small in zip(texts, pack(texts), strict=True):
        text.keep_packed(small)


def pack(texts: Sequence[Text]) -> list[bytes]:
    """Compress each text. May be called from any thread."""
    return [packed for chunk in chunks(texts) for packed in compress_each(chunk)]


def chunks(texts: Sequence[Text]) -> Iterator[Sequence[Text]]:
    """Cut texts into runs of at most `PACK_BYTES_MAX`, or of one that is larger."""
    start = size = 0
    for place, text in enumerate(texts):
        size += text.size
        if size > PACK_BYTES_MAX and place > start:
            yield texts[start:place]
            start, size = place, text.size
    yield texts[start:]


def _storage_of(data: Path | Storage | None, holder: int | None) -> Storage:
    """The storage of a directory; None is memory."""
    if isinstance(data, Path):
        return FileStorage(data, create=True, holder=holder)
    return MemoryStorage() if data is None else data


def run_lengths(keyspace: Keyspace) -> dict[int, int]:
    """How long each file of runs has to be for what refers to it. Takes a look at each run."""
    lengths: dict[int, int] = {}
    for key in keyspace.keys.values():
        for part in key.stream.nodes.values() if key.stream.nodes.runs else ():
            if isinstance(part, Run):
                lengths[part.file] = max(lengths.get(part.file, 0), part.offset + part.length)
    return lengths
