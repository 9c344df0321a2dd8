"""Writes what streams get into Parquet files, each entry once, through any crash.

Knows: how a batch of a streaming query becomes files and then a manifest, and when the gateway is told.
Must never know: how often batches come, what is printed.

A batch has a number and a range of IDs per stream, both in Spark's checkpoint before it runs. Its files are
written under its number, secured, and then named by its manifest: from then on they count. A driver that died
before that runs the same batch again and overwrites the files; one that died after finds the manifest and
writes nothing. So manifests and checkpoint must be of one query, which each batch makes sure of.

A batch is settled when Spark's checkpoint says that it has ended: from then on nobody reads its entries
again, and the gateway is told that they are archived. Told before, it might trim what a restart asks for.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyspark_weir import checkpoint, clock, folders, ids, offsets
from pyspark_weir import gateway as calls
from pyspark_weir.errors import OptionError, Refused
from pyspark_weir.gateway import Access, Gateway
from pyspark_weir.gateway.client import Answer
from pyspark_weir.ids import EntryId
from pyspark_weir.jobs.batches import reported
from pyspark_weir.manifest import (
    ABOUT,
    VERSION,
    About,
    File,
    Format,
    Manifest,
    ManifestError,
    Progress,
    StreamKey,
    batch_folder,
    read_about,
    read_manifest,
    totals,
    write_about,
    write_manifest,
)
from pyspark_weir.offsets import Offsets, Position
from pyspark_weir.options import EARLIEST, LATEST, source_options
from pyspark_weir.parquet import id_runs
from pyspark_weir.place import UNFINISHED, Place

SOURCE: Final = "weir"
# What is archived is everything, in the form that loses nothing.
_FIXED: Final = {"fieldsFormat": "entries", "relation": "entries", "startingOffsets": EARLIEST}
_PARQUET: Final = ".parquet"
_ONE: Final = ("stream", "date")
_SEVERAL: Final = ("shard", "stream", "date")


@dataclass(frozen=True)
class Archiving:
    """What to archive, and to where: `source` holds options of the data source; `root` and `checkpoint` are
    folders of this machine, or addresses that Spark and `pyarrow.fs` both reach. `follow` is called after
    each manifest, and may be called twice: it brings another log, of a Delta table, up to the manifests.
    """

    root: str
    checkpoint: str
    source: Mapping[str, str]
    format: Format = "parquet"
    follow: Callable[[Place], object] | None = None


def query(spark: SparkSession, asked: Archiving) -> DataStreamWriter:
    """The query alone, as `Archiver.query`; nobody settles its last batch before it is started again."""
    return Archiver(asked).query(spark)


def source_options_of(asked: Archiving, columns: tuple[str, ...]) -> dict[str, str]:
    """The data source's options. Raises OptionError for those that an archive cannot have."""
    fixed = {name.lower(): name for name in _FIXED}
    for name in asked.source:
        if name.lower() in fixed:
            raise OptionError(
                f"{fixed[name.lower()]} is {_FIXED[fixed[name.lower()]]} in an archive: leave it out"
            )
    given = {**asked.source, **_FIXED}
    if columns == _SEVERAL:
        given["includeMeta"] = "true"  # for the gateway's name
    options = source_options(given)
    if options.on_reset == LATEST:
        raise OptionError(
            "onReset=latest would leave entries out that no manifest tells of: use earliest or fail"
        )
    if options.starting is not None and options.starting.default != EARLIEST:
        raise OptionError("an archive starts with the earliest entry: leave startingTimestamp out")
    if options.columns:
        raise OptionError("an archive holds all fields: leave columns out")
    return given


class Archiver:
    """What a query hands its batches to."""

    def __init__(self, asked: Archiving) -> None:
        self.root = Place.of(asked.root)
        self.checkpoint = Place.of(asked.checkpoint)
        self.format = asked.format
        self._follow = asked.follow
        self.accesses = source_options({**asked.source, **_FIXED}).gateways
        self.columns = _ONE if len(self.accesses) == 1 else _SEVERAL
        self._source = source_options_of(asked, self.columns)
        self._settled: int | None = None
        # Batches are stored in a thread of Spark's, and told of in another.
        self._settling = Lock()

    def query(self, spark: SparkSession) -> DataStreamWriter:
        """The query, to be given its checkpoint and a trigger, and started.

        Raises OptionError, PipelineError where the root belongs to another query.
        """
        self.check()
        self.settle()
        reader = spark.readStream.format(SOURCE)
        for name, value in self._source.items():
            reader = reader.option(name, value)
        writer = reader.load().writeStream.queryName("weir-archive")
        return writer.foreachBatch(reported(self.store, self.checkpoint))

    def check(self) -> None:
        """Refuse a root that is not this query's, before anything is written. Raises OptionError."""
        about = read_about(self.root)
        query_id = checkpoint.query_id(self.checkpoint)
        if about is None:
            if checkpoint.last_commit(self.checkpoint) is not None:
                raise OptionError(
                    f"{self.checkpoint.address} has archived before, and {self.root.address} holds no "
                    "archive: give the root that belongs to it, or another checkpoint"
                )
            self._check_empty()
        elif query_id is None:
            raise OptionError(
                f"{self.root.address} holds an archive of the query {about.archive}, and "
                f"{self.checkpoint.address} has no query yet: give its checkpoint, or another root"
            )
        else:
            self._check_same(about, query_id)

    def _check_empty(self) -> None:
        for path, _size in self.root.below(""):
            if not path.endswith(UNFINISHED):
                raise OptionError(
                    f"{self.root.address} holds {path}, and no {ABOUT}: an archive begins in an empty folder"
                )

    def _check_same(self, about: About, query_id: str) -> None:
        wanted = self._about(query_id)
        if about.archive != query_id:
            raise OptionError(
                f"{self.root.address} is the archive of the query {about.archive}, {self.checkpoint.address} "
                f"the checkpoint of {query_id}: give those that belong together"
            )
        if about.format != wanted.format:
            raise OptionError(f"{self.root.address} was begun with --format {about.format}: go on with it")
        if about.columns != wanted.columns:
            raise OptionError(
                f"{self.root.address} was begun for {_gateways(about)}: one gateway and several lie in "
                "different folders; give the new ones a root of their own"
            )

    def _about(self, query_id: str) -> About:
        names = tuple(sorted(access.name for access in self.accesses))
        return About(v=VERSION, archive=query_id, format=self.format, columns=self.columns, gateways=names)

    def store(self, frame: DataFrame, number: int) -> None:
        """Store a batch, unless it has been."""
        about = self._entered()
        self.settle()
        moved = self.moved(number)
        manifest = read_manifest(self.root, "batch", number)
        if manifest is None:
            self.write_files(frame, number)
            manifest = self.manifest(about, number, moved)
            write_manifest(self.root, manifest)
        else:
            _check_repeated(manifest, about, moved)
        if self._follow is not None:
            self._follow(self.root)

    def _entered(self) -> About:
        """The archive, founded with the first batch."""
        query_id = checkpoint.query_id(self.checkpoint)
        if query_id is None:
            raise OptionError(f"{self.checkpoint.address} is not the checkpoint of this query")
        about = read_about(self.root)
        if about is None:
            self._check_empty()
            about = self._about(query_id)
            write_about(self.root, about)
        self._check_same(about, query_id)
        return about

    def moved(self, number: int) -> dict[StreamKey, tuple[str, Position]]:
        """Of each stream in which a batch goes on: after which ID, and where it ends."""
        ends = checkpoint.ends(self.checkpoint, number)
        before = checkpoint.ends(self.checkpoint, number - 1) if number else {}
        return dict(_moved(before, ends))

    def write_files(self, frame: DataFrame, number: int) -> None:
        """Write a batch's entries, instead of what was there under its number."""
        own = (
            *(
                folders.folder_column(sf.col(name)) if name == "stream" else sf.col(name)
                for name in self.columns[:-1]
            ),
            sf.date_format("ts", "yyyy-MM-dd"),
        )
        named = [column.alias(name) for column, name in zip(own, self.columns, strict=True)]
        rows = frame.select(*named, "id", "ms", "seq", "ts", "fields")
        # In the order of folders: Spark keeps one file open at a time, and need not sort again.
        ordered = rows.sortWithinPartitions(*self.columns, *_in_order())
        (
            ordered.write.mode("overwrite")
            .partitionBy(*self.columns)
            .option("compression", "zstd")
            .option("partitionOverwriteMode", "static")
            .option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")
            .parquet(f"{self.root.address}/{batch_folder(number)}")
        )

    def manifest(
        self, about: About, number: int, moved: Mapping[StreamKey, tuple[str, Position]]
    ) -> Manifest:
        """What a batch wrote, read back from its files, which are secure when this returns."""
        names = folders.names_by_folder({key.stream for key in moved})
        paths = [path for path, _size in self.root.below(batch_folder(number)) if path.endswith(_PARQUET)]
        self.root.secure(paths)
        files = tuple(
            sorted(
                (self._file(path, names, moved) for path in paths), key=lambda file: (*file.key, file.path)
            )
        )
        found = totals(files)
        streams = []
        for key, (after, end) in sorted(moved.items()):
            rows, size = found.get(key, (0, 0))
            own = [file for file in files if file.key == key]
            low = min((ids.parse(file.min) for file in own), default=None)
            high = max((ids.parse(file.max) for file in own), default=None)
            streams.append(
                Progress(
                    shard=key.shard,
                    stream=key.stream,
                    generation=end.generation,
                    after=after,
                    upto=end.id,
                    rows=rows,
                    bytes=size,
                    min=_text(low),
                    max=_text(high),
                )
            )
        return Manifest(
            v=VERSION,
            kind="batch",
            number=number,
            archive=about.archive,
            at_ms=clock.wall_ms(),
            streams=tuple(streams),
            add=files,
            remove=(),
        )

    def _file(
        self, path: str, names: Mapping[str, str], moved: Mapping[StreamKey, tuple[str, Position]]
    ) -> File:
        values = folders.values_of(path)
        shard = values.get("shard") or self.accesses[0].name
        key = StreamKey(shard, names.get(values["stream"] or folders.NOTHING, ""))
        if key not in moved:
            raise ManifestError(f"{path} holds entries of a stream of which its batch has none")
        runs = [run for run in id_runs(self.root, path) if len(run)]
        if not runs:
            raise ManifestError(f"{path} holds no entry")
        size = self.root.size(path)
        assert size is not None, "it was read just now"
        return File(
            path=path,
            shard=key.shard,
            stream=key.stream,
            generation=moved[key][1].generation,
            date=values["date"],
            rows=sum(map(len, runs)),
            bytes=size,
            min=str(runs[0][0]),
            max=str(runs[-1][-1]),
        )

    def settle(self) -> None:
        """Have the gateways show, and their retention keep, how far the archive goes: up to the last batch
        that has ended for Spark as well. Raises Refused, Unavailable.
        """
        with self._settling:
            last = checkpoint.last_commit(self.checkpoint)
            if last is None:
                return
            # Each batch settles those before it: when this begins, it may be the last alone that is not.
            first = last if self._settled is None else self._settled + 1
            moved: dict[StreamKey, Progress] = {}
            for number in range(first, last + 1):
                manifest = read_manifest(self.root, "batch", number)
                if manifest is not None:
                    moved |= {one.key: one for one in manifest.streams}
            # Spark does not sync it: after a power cut it would ask for what was trimmed.
            self.checkpoint.secure(checkpoint.files_of(last))
            for access in self.accesses:
                own = [one for one in moved.values() if one.shard == access.name]
                if own:
                    _tell(access, own)
            self._settled = last


def _tell(access: Access, moved: list[Progress]) -> None:
    with Gateway(access) as gateway:
        for one in moved:
            if not _is_of(one, calls.stream(gateway, one.stream)):
                continue
            try:
                calls.archived_up_to(gateway, one.stream, one.upto)
            except Refused as refused:
                # Deleted meanwhile: nobody is left to be told.
                if refused.problem != "no_stream":
                    raise


def _is_of(moved: Progress, seen: Answer | None) -> bool:
    """Whether a stream is still the one that was archived. Another one of its name has other entries under
    the same IDs, as may one have that was put back to before: told that those are archived, the gateway might
    trim them unread. It is told when a batch has read them.
    """
    return (
        seen is not None
        and seen["generation"] == moved.generation
        and not ids.is_after(moved.upto, seen["last_id"])
    )


def _moved(before: Offsets, ends: Offsets) -> Iterator[tuple[StreamKey, tuple[str, Position]]]:
    for name, end in ends.items():
        start = before.get(name)
        # A stream that was made anew is read from its beginning.
        anew = start is None or start.generation not in ("", end.generation)
        after = ids.BEGINNING if start is None or anew else start.id
        if ids.is_after(after, end.id):
            # Older data was put back, with onReset=earliest: what it has is read again.
            after = end.floor or ids.BEGINNING
        if end.generation and (anew or after != end.id):
            yield StreamKey(*offsets.parts(name)), (after, end)


def _check_repeated(
    manifest: Manifest, about: About, moved: Mapping[StreamKey, tuple[str, Position]]
) -> None:
    """Raises ManifestError where a checkpoint has another batch of this number: an older copy of it, say."""
    stored = {one.key: (one.after, one.upto, one.generation) for one in manifest.streams}
    planned = {key: (after, end.id, end.generation) for key, (after, end) in moved.items()}
    if stored != planned or manifest.archive != about.archive:
        raise ManifestError(
            f"{manifest.name} holds another range than the checkpoint has for batch {manifest.number}: the "
            "checkpoint was put back to an older one; go on with the newest, or begin another archive"
        )


def _in_order() -> list[Column]:
    """IDs in order. What exceeds a bigint is null in `ms` or `seq`, and sorts by its text, after others."""
    ms, seq = sf.col("ms"), sf.col("seq")
    halves = sf.split(sf.col("id"), "-")
    width = len(str(ids.HALF_MAX))
    text = sf.concat(sf.lpad(halves[0], width, "0"), sf.lpad(halves[1], width, "0"))
    return [
        ms.asc_nulls_last(),
        sf.when(ms.isNotNull(), seq).asc_nulls_last(),
        sf.when(ms.isNull() | seq.isNull(), text).asc(),
    ]


def _text(one: EntryId | None) -> str | None:
    return None if one is None else str(one)


def _gateways(about: About) -> str:
    return (
        f"the gateway {about.gateways[0]}" if len(about.gateways) == 1 else f"{len(about.gateways)} gateways"
    )
