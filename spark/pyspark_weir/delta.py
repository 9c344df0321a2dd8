"""The same archive as a Delta table, for those who read such: a log of commits beside the manifests.

Knows: how a manifest becomes one commit, once. Must never know: Spark, gateways.

The manifests stay what counts; the log follows them. A commit carries a manifest's number as the version of
an application's transaction, which tells that it was made. Delta's own `optimize` and `vacuum` would take
files away that manifests name: compact with Weir.
"""

import json
from collections.abc import Sequence

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.transaction import (
    AddAction,
    CommitProperties,
    RemoveAction,
    Transaction,
    create_table_with_add_actions,
)

from pyspark_weir.errors import OptionError
from pyspark_weir.manifest import About, Archive, File, Kind, Manifest
from pyspark_weir.parquet import SCHEMA
from pyspark_weir.place import Place


def check_root(root: str) -> None:
    """Raises OptionError for a root where no Delta table can be kept from here, without looking there."""
    scheme, found, _ = root.partition("://")
    if found and scheme != "file":
        raise OptionError(
            f"{root}: a Delta table is kept in folders of this machine only; use --format parquet"
        )


def table_schema(about: About) -> pa.Schema:
    """The columns of the table: those by which files lie in folders, then an entry's."""
    return pa.schema([*(pa.field(name, pa.string()) for name in about.columns), *SCHEMA])


def follow(place: Place) -> list[str]:
    """Commit what manifests say and the log does not yet; the names of these manifests. May be repeated, and
    catches up with whatever was missed.
    """
    archive = Archive.read(place)
    about = archive.about
    schema = Schema.from_arrow(table_schema(about))
    if not DeltaTable.is_deltatable(place.base):
        create_table_with_add_actions(
            place.base, schema, [], mode="ignore", partition_by=list(about.columns), name="weir archive"
        )
    table = DeltaTable(place.base)
    known = {file.path: file for step in (*archive.batches, *archive.compactions) for file in step.add}
    done: list[str] = []
    # Batches first: a compaction removes what they add, and was made after them.
    for kind, steps in (("batch", archive.batches), ("compaction", archive.compactions)):
        for step in _missing(table, about, kind, steps):
            table.create_write_transaction(
                _actions(about, step, known),
                "append",
                schema,
                partition_by=list(about.columns),
                commit_properties=CommitProperties(
                    app_transactions=[Transaction(_application(about, step.kind), step.number)]
                ),
            )
            # The next commit builds on this one; else the log takes it for somebody else's.
            table.update_incremental()
            done.append(step.name)
    return done


def _missing(table: DeltaTable, about: About, kind: str, steps: Sequence[Manifest]) -> list[Manifest]:
    if not steps:
        return []
    last = table.transaction_version(_application(about, steps[0].kind))
    # Version 0 is a version.
    return [step for step in steps if last is None or step.number > last]


def _application(about: About, kind: Kind) -> str:
    return about.archive if kind == "batch" else f"{about.archive}/compaction"


def _actions(about: About, step: Manifest, known: dict[str, File]) -> list[AddAction | RemoveAction]:
    """What a step adds and removes. Paths are given as they are: the library writes them in Delta's way."""
    # A compaction changes where entries lie, and no entry.
    changes = step.kind == "batch"
    added: list[AddAction | RemoveAction] = [
        AddAction(
            path=file.path,
            size=file.bytes,
            partition_values=_values(about, file),
            modification_time=step.at_ms,
            data_change=changes,
            stats=json.dumps({"numRecords": file.rows}),
        )
        for file in step.add
    ]
    return added + [
        RemoveAction(path, changes, step.at_ms, known[path].bytes, _values(about, known[path]))
        for path in step.remove
    ]


def _values(about: About, file: File) -> dict[str, str | None]:
    values = {"shard": file.shard, "stream": file.stream, "date": file.date}
    return {name: values[name] for name in about.columns}
