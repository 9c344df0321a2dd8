"""Says whether a machine is ready: Java, Spark, what workers find, each gateway, what there is to read.

Knows: what can be missing, and what helps. Must never know: how findings are shown.
"""

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from typing import Any, Final

from pyspark_weir import gateway as calls
from pyspark_weir import java
from pyspark_weir.errors import PipelineError, remedy
from pyspark_weir.gateway import Access, Gateway, PlanQuery
from pyspark_weir.session import SessionOptions, open_session

_PYTHON_MIN: Final = (3, 11)
_NEEDED: Final = ("pyspark", "pyarrow", "numpy", "httpx", "orjson", "stamina")
_EXTRAS: Final = {"deltalake": "delta", "matplotlib": "plot"}
# What a task imports before it reads or writes an entry.
_IN_WORKERS: Final = ("pyspark_weir", "pyarrow", "httpx", "orjson", "stamina")
_MASTER: Final = "a worker needs this Python's packages: see Clusters in docs/pipeline.md"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `fine` None: it is not needed unless somebody asks for it."""

    what: str
    fine: bool | None
    said: str

    def members(self) -> dict[str, Any]:
        """For programs and tables."""
        state = {True: "ok", False: "wrong", None: "absent"}
        return {"check": self.what, "state": state[self.fine], "said": self.said}


@dataclass(frozen=True)
class Examination:
    """What to look at. `source` holds options of the data source that select streams, None for none; `spark`
    None leaves Spark alone, which takes ten seconds to start.
    """

    gateways: tuple[Access, ...]
    streams: tuple[str, ...] = ()
    source: Mapping[str, str] | None = None
    spark: SessionOptions | None = field(default_factory=SessionOptions)


def examine(what: Examination) -> Iterator[Finding]:
    """The findings, each as soon as it is there."""
    yield _python()
    yield from _packages()
    yield _guarded("java", _java)
    for access in what.gateways:
        yield _guarded(f"gateway {access.name}", partial(_gateway, access))
        if what.streams:
            yield _guarded(f"streams of {access.name}", partial(_plan, access, what.streams))
    if what.spark is not None:
        yield from _spark(what.spark, what.source)


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("python", sys.version_info >= _PYTHON_MIN, f"{version}, {sys.executable}")


def _packages() -> Iterator[Finding]:
    for name in _NEEDED:
        try:
            importlib.import_module(name)
            yield Finding(name, fine=True, said=metadata.version(name))
        except ImportError as error:
            yield Finding(name, fine=False, said=f"{error}: {remedy('spark')}")
    for name, extra in _EXTRAS.items():
        try:
            yield Finding(name, fine=True, said=metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Finding(name, fine=None, said=f"{remedy(extra)} for --{_OPTION_OF[extra]}")


_OPTION_OF: Final = {"delta": "format delta", "plot": "plot"}


def _guarded(what: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(what, fine=True, said=look())
    except PipelineError as error:
        return Finding(what, fine=False, said=error.sentence)


def _java() -> str:
    found = java.find()
    return f"{found.version}, from {found.origin}" + (f", {found.home}" if found.home else "")


def _gateway(access: Access) -> str:
    with Gateway(access) as gateway:
        told = gateway.get("/v1", about="its version")
    return f"{access.url}: {told.get('name', 'something')} {told.get('version', 'of no version')}"


def _plan(access: Access, names: Iterable[str]) -> str:
    """What reading from the beginning would bring; nothing is read."""
    with Gateway(access) as gateway:
        planned = calls.plan_of_each(gateway, PlanQuery(streams=dict.fromkeys(names, "0-0"), max_entries=1))
    entries = sum(stream.lag for stream in planned.streams.values())
    missing = f", not there yet: {', '.join(planned.missing)}" if planned.missing else ""
    unsynced = [name for name, stream in planned.streams.items() if stream.durable is None]
    never = f", never synced, read them with durableOnly=false: {', '.join(unsynced)}" if unsynced else ""
    streams = "1 stream" if len(planned.streams) == 1 else f"{len(planned.streams):,} streams"
    return f"{entries:,} entries in {streams}{missing}{never}"


def _spark(options: SessionOptions, source: Mapping[str, str] | None) -> Iterator[Finding]:
    try:
        spark = open_session(options)
    except (PipelineError, OSError, RuntimeError) as error:
        yield Finding("spark", fine=False, said=str(error).splitlines()[0])
        return
    context = spark.sparkContext
    yield Finding("spark", fine=True, said=f"{spark.version} on {context.master}")
    try:
        found = context.parallelize([0], 1).mapPartitions(_in_worker).collect()
    except Exception as error:  # noqa: BLE001 - whatever a worker dies of is what is looked for
        yield Finding("workers", fine=False, said=f"{_last_line(error)}; {_MASTER}")
        return
    python, missing = found[0]
    if missing:
        yield Finding("workers", fine=False, said=f"{python} has no {', '.join(missing)}; {_MASTER}")
        return
    yield Finding("workers", fine=True, said=python)
    if source is not None:
        yield _reading(lambda: spark.read.format("weir").options(**source).load().columns)


def _reading(look: Callable[[], list[str]]) -> Finding:
    try:
        return Finding("data source", fine=True, said=f"columns {', '.join(look())}")
    except Exception as error:  # noqa: BLE001 - Spark wraps whatever it is
        return Finding("data source", fine=False, said=_last_line(error))


def _in_worker(_rows: Iterable[int]) -> Iterator[tuple[str, list[str]]]:
    missing = []
    for name in _IN_WORKERS:
        try:
            importlib.import_module(name)
        except ImportError:
            missing.append(name)
    yield sys.executable, missing


def _last_line(error: Exception) -> str:
    """The innermost of what Spark wraps stands last before its own Java frames."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    python = [line for line in lines if not line.startswith(("at ", "File ", "^", "Caused by"))]
    return (python or lines or [type(error).__name__])[-1]
