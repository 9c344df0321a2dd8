"""New segments and bases made by hand on a directory that no process has open.

Knows: the log's own steps for both. Must never know: when a running engine takes them.
"""

from engine import Engine
from engine.log import Log
from engine.records.payload import encode
from engine.records.snapshot import snapshot
from engine.storage.memory import MemoryStorage
from tests.engine.clocks import HandClock
from tests.engine.running import keyspace_of


def next_segment(storage: MemoryStorage) -> None:
    """Let the log go on in another file."""
    log = Log.open(storage)
    _switch(log)
    log.close(clean=log.recovery.clean_stop)


def rewrite(storage: MemoryStorage) -> None:
    """Put a base in the place of everything."""
    engine = Engine.open(MemoryStorage(_files(storage)), clock=HandClock(), fsync="always")
    keyspace = keyspace_of(engine)
    payloads = [encode([record]) for record in snapshot(keyspace)]
    log = Log.open(storage)
    base = log.create_base(_switch(log))
    base.append(payloads)
    dead = {*log.run_files} - {*keyspace.runs.files}
    log.install_base(base.finish(reservation_ms=log.recovery.reservation_ms), dead)
    log.close(clean=log.recovery.clean_stop)


def _switch(log: Log) -> int:
    position = log.start_segment(log.prepare_segment())
    log.write(log.take_staged())
    log.sync()
    log.name_segments()
    return position


def _files(storage: MemoryStorage) -> dict[str, bytes]:
    return {name: storage.content(name) for name in storage.names()}
