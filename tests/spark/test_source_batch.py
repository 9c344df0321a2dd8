"""The batch reader against a real gateway, driven as Spark drives it."""

import datetime as dt
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan
from pyspark.sql.types import StringType, StructField, StructType

from pyspark_weir.clock import monotonic_s
from pyspark_weir.errors import DataLoss, PipelineError
from pyspark_weir.gateway import of_group, of_stream
from pyspark_weir.options import source_options
from pyspark_weir.source.batch import BatchReader
from tests.server import Server
from tests.spark.weir import Weir, read_all, rows_of, steps


def ids(*numbers: int) -> list[str]:
    return [f"{number}-0" for number in numbers]


def ids_of(rows: list[dict[str, Any]]) -> list[str]:
    return [row["id"] for row in rows]


class TestRange:
    def test_everything_is_read_unless_something_else_is_asked_for(self, weir: Weir) -> None:
        published = weir.publish(range(1, 11))
        rows = read_all(weir.batch_reader())
        assert ids_of(rows) == published
        assert rows[0] == {
            "stream": weir.name(),
            "id": "1-0",
            "ms": 1,
            "seq": 0,
            "ts": dt.datetime(1970, 1, 1, 0, 0, 0, 1_000, tzinfo=dt.UTC),
            "fields": [("n", "1-0")],
        }

    @pytest.mark.parametrize(
        ("options", "first", "last"),
        [
            ({"startingOffsets": '{"S": "3-0"}'}, 4, 10),
            ({"startingOffsets": '{"g0/S": "3-0"}', "endingOffsets": '{"S": "7-0"}'}, 4, 7),
            ({"startingTimestamp": "3", "endingTimestamp": "7"}, 3, 7),
            ({"startingTimestamp": "1970-01-01T00:00:00.003Z"}, 3, 10),
            ({"startingOffsetsByTimestamp": '{"S": 9}'}, 9, 10),
            ({"endingOffsets": '{"S": "99-0"}'}, 1, 10),
            ({"startingOffsets": "latest"}, 1, 0),
            ({"endingOffsets": "earliest"}, 1, 0),
            ({"startingTimestamp": "100"}, 1, 0),
        ],
    )
    def test_bounds_are_ids_or_times(
        self, weir: Weir, options: dict[str, str], first: int, last: int
    ) -> None:
        weir.publish(range(1, 11))
        given = {name: value.replace("S", weir.name()) for name, value in options.items()}
        assert ids_of(read_all(weir.batch_reader(**given))) == ids(*range(first, last + 1))

    def test_tasks_read_one_snapshot_whatever_is_published_meanwhile(self, weir: Weir) -> None:
        published = weir.publish(range(1, 11))
        reader = weir.batch_reader()
        parts = reader.partitions()
        weir.publish(range(11, 21))
        assert ids_of([row for part in parts for row in rows_of(reader.read(part))]) == published

    def test_a_missing_stream_is_empty_or_refused(self, weir: Weir) -> None:
        assert read_all(weir.batch_reader()) == []
        with pytest.raises(PipelineError, match=rf"WEIR_NO_STREAM.*{weir.name()}"):
            read_all(weir.batch_reader(failOnMissingStream="true"))

    def test_a_beginning_that_was_trimmed_is_a_loss(self, weir: Weir) -> None:
        weir.publish(range(1, 11))
        weir.trim(6)
        starting = json.dumps({weir.name(): "2-0"})
        with pytest.raises(DataLoss, match=r"WEIR_DATA_LOSS.*up to 5-0"):
            read_all(weir.batch_reader(startingOffsets=starting))
        kept = ids(6, 7, 8, 9, 10)
        assert ids_of(read_all(weir.batch_reader(startingOffsets=starting, failOnDataLoss="false"))) == kept
        assert ids_of(read_all(weir.batch_reader())) == kept, "all that there is, is no loss"
        assert ids_of(read_all(weir.batch_reader(startingTimestamp="2"))) == kept, "nor is a time"

    @pytest.mark.parametrize("trimmed_before", [False, True])
    def test_a_trim_that_overtakes_a_task_is_a_loss(self, weir: Weir, *, trimmed_before: bool) -> None:
        weir.publish(range(1, 11))
        if trimmed_before:
            weir.trim(2)
        reader = weir.batch_reader()
        parts = reader.partitions()
        weir.trim(6)
        with pytest.raises(DataLoss, match="WEIR_DATA_LOSS"):
            [list(reader.read(part)) for part in parts]

    def test_only_the_columns_that_are_asked_for_come_over_the_wire(self, weir: Weir) -> None:
        weir.publish([1, 2])
        assert read_all(weir.batch_reader(columns="id,seq")) == [
            {"id": "1-0", "seq": 0}, {"id": "2-0", "seq": 0},
        ]  # fmt: skip

    def test_a_stream_whose_last_entries_were_deleted_is_not_waited_for(self, weir: Weir) -> None:
        weir.publish([1, 2, 3])
        weir.gateway.post(f"{of_stream(weir.name())}/entries/delete", {"ids": ["2-0", "3-0"]})
        begun_s = monotonic_s()
        assert ids_of(read_all(weir.batch_reader())) == ids(1)
        assert monotonic_s() - begun_s < 4, "the disk is waited for five seconds"


class TestPartitions:
    def test_a_long_stream_is_cut_and_no_entry_is_lost_at_the_cuts(self, weir: Weir) -> None:
        published = weir.publish(range(1, 1_001))
        reader = weir.batch_reader(maxEntriesPerPartition="300")
        parts = reader.partitions()
        found = [ids_of(rows_of(reader.read(part))) for part in parts]
        assert len(found) == 4
        assert all(200 <= len(one) <= 300 for one in found)
        assert [one for part in found for one in part] == published

    def test_an_ordered_stream_is_never_cut(self, weir: Weir) -> None:
        published = weir.publish(range(1, 1_001))
        reader = weir.batch_reader(maxEntriesPerPartition="300", ordered="true")
        (part,) = reader.partitions()
        assert ids_of(rows_of(reader.read(part))) == published

    def test_large_entries_are_cut_by_their_bytes(self, weir: Weir) -> None:
        weir.publish(range(1, 1_001))
        assert len(weir.batch_reader(maxBytesPerPartition="20000").partitions()) > 1

    def test_many_short_streams_share_a_task(self, weir: Weir) -> None:
        for number in range(30):
            weir.publish([number + 1], str(number))
        reader = weir.batch_reader(subscribePattern=f"{weir.prefix}/.*")
        (part,) = reader.partitions()
        assert sorted(ids_of(rows_of(reader.read(part)))) == sorted(ids(*range(1, 31)))


class TestPushdown:
    def reader(self, weir: Weir, filters: list[Filter]) -> BatchReader:
        streams = f"{weir.name()},{weir.name('other')}"
        reader = weir.batch_reader(subscribe=streams, includeMeta="true")
        assert list(reader.pushFilters(filters)) == filters, "Spark looks at each row again"
        return reader

    def test_filters_leave_streams_and_ranges_unread(self, weir: Weir) -> None:
        weir.publish(range(1, 11))
        weir.publish(range(1, 11), "other")
        filters: list[Filter] = [
            EqualTo(("stream",), weir.name()),
            GreaterThanOrEqual(("ms",), 4),
            LessThan(("ms",), 8),
        ]
        rows = read_all(self.reader(weir, filters))
        assert {row["stream"] for row in rows} == {weir.name()}
        # One more at the end than is asked for: bounds are rounded outwards.
        assert ids_of(rows) == ids(4, 5, 6, 7, 8, 9)

    def test_nothing_is_read_where_nothing_can_match(self, weir: Weir) -> None:
        weir.publish(range(1, 11))
        assert read_all(self.reader(weir, [In(("stream",), ("x", "y"))])) == []
        assert read_all(self.reader(weir, [EqualTo(("shard",), "g9")])) == []

    def test_an_id_reads_one_entry(self, weir: Weir) -> None:
        weir.publish(range(1, 11))
        assert ids_of(read_all(self.reader(weir, [EqualTo(("id",), "4-0")]))) == ids(4)

    def test_columns_of_ones_own_are_fields_also_where_they_are_named_like_the_entrys(
        self, weir: Weir
    ) -> None:
        """`ms`, how long a visit took, says nothing of the ID; `_ms` does."""
        fields = {"ms": "7000", "id": "9-0", "stream": "x", "ts": "1970-01-01"}
        entries = [{"id": one, "fields": fields} for one in ids(1, 20)]
        weir.gateway.post(f"{of_stream(weir.name())}/entries", {"entries": entries})
        options = source_options(weir.options())
        columns = StructType([StructField(name, StringType()) for name in (*fields, "_id")])
        filters: list[Filter] = [
            EqualTo(("stream",), "x"),
            EqualTo(("id",), "9-0"),
            GreaterThan(("ms",), 6_000),
            LessThan(("_ms",), 10),
        ]
        reader = BatchReader(options, columns)
        assert list(reader.pushFilters(filters)) == filters
        assert [row["_id"] for row in read_all(reader)] == ids(1)


class TestRelations:
    @pytest.fixture
    def grouped(self, weir: Weir) -> Weir:
        """Ten entries, of which `c` of group `g` holds three, and one letter of a second group."""
        weir.publish(range(1, 11))
        path = of_stream(weir.name())
        weir.gateway.post(f"{path}/groups", {"name": "g", "start": "0"})
        weir.gateway.post(f"{of_group(weir.name(), 'g')}/consumers/c/read", {"count": 3})
        letters = {"stream": weir.name("dead"), "max_deliveries": 5}
        weir.gateway.post(f"{path}/groups", {"name": "h", "start": "0", "dead_letter": letters})
        weir.gateway.post(f"{of_group(weir.name(), 'h')}/consumers/d/read", {"count": 1})
        weir.gateway.post(f"{of_group(weir.name(), 'h')}/dead-letter", {"ids": ["1-0"], "reason": "spoilt"})
        return weir

    def test_streams(self, grouped: Weir) -> None:
        (row,) = read_all(grouped.batch_reader(relation="streams"))
        assert (row["shard"], row["stream"], row["length"], row["groups"]) == ("g0", grouped.name(), 10, 2)
        assert (row["first_id"], row["last_id"]) == ("1-0", "10-0")
        assert row["generation"]

    def test_streams_by_pattern(self, grouped: Weir) -> None:
        rows = read_all(grouped.batch_reader(relation="streams", subscribePattern=f"{grouped.prefix}/.*"))
        assert sorted(row["stream"] for row in rows) == sorted([grouped.name(), grouped.name("dead")])

    def test_groups(self, grouped: Weir) -> None:
        rows = {row["group"]: row for row in read_all(grouped.batch_reader(relation="groups"))}
        assert (rows["g"]["pending"], rows["g"]["lag"], rows["g"]["last_delivered_id"]) == (3, 7, "3-0")
        assert (rows["h"]["dead_letter_stream"], rows["h"]["max_deliveries"]) == (grouped.name("dead"), 5)

    def test_consumers(self, grouped: Weir) -> None:
        rows = read_all(grouped.batch_reader(relation="consumers"))
        assert [(row["group"], row["consumer"], row["pending"]) for row in rows] == [
            ("g", "c", 3), ("h", "d", 0),
        ]  # fmt: skip

    def test_pending(self, grouped: Weir) -> None:
        rows = read_all(grouped.batch_reader(relation="pending"))
        shown = ("group", "id", "ms", "consumer", "delivery_count")
        assert [tuple(row[name] for name in shown) for row in rows] == [
            ("g", "1-0", 1, "c", 1), ("g", "2-0", 2, "c", 1), ("g", "3-0", 3, "c", 1),
        ]  # fmt: skip
        assert rows[0]["ts"] == dt.datetime(1970, 1, 1, 0, 0, 0, 1_000, tzinfo=dt.UTC)

    def test_pages_of_pending_entries_follow_each_other(self, weir: Weir) -> None:
        weir.publish(["5-0", "5-1", "5-2"])
        weir.gateway.post(f"{of_stream(weir.name())}/groups", {"name": "g", "start": "0"})
        weir.gateway.post(f"{of_group(weir.name(), 'g')}/consumers/c/read", {"count": 3})
        found = weir.gateway.pending(weir.name(), "g", 2)
        assert [one["id"] for one in found] == ["5-0", "5-1", "5-2"]

    def test_deadletter(self, grouped: Weir) -> None:
        (row,) = read_all(grouped.batch_reader(relation="deadletter", subscribe=grouped.name("dead")))
        shown = {
            name: row[name] for name in ("source", "source_id", "group", "consumer", "deliveries", "reason")
        }
        assert shown == {
            "source": grouped.name(), "source_id": "1-0", "group": "h", "consumer": "d", "deliveries": 1,
            "reason": "spoilt",
        }  # fmt: skip
        assert row["fields"] == [("n", "1-0")]
        assert row["stream"] == grouped.name("dead")

    def test_a_letter_about_a_letter_keeps_what_the_first_one_told(self, weir: Weir) -> None:
        names = ("weir-source", "weir-id", "weir-group", "weir-consumer", "weir-deliveries", "weir-reason")
        first = [[name, f"first {name}"] for name in names]
        second = [[name, f"second {name}"] for name in names]
        body = {"id": "1-0", "fields": [["a", "b"], *first, *second]}
        weir.gateway.post(f"{of_stream(weir.name())}/entries", body)
        (row,) = read_all(weir.batch_reader(relation="deadletter"))
        assert row["source"] == "second weir-source"
        assert row["deliveries"] is None, "no number"
        assert dict(row["fields"]) == {"a": "b", **{name: f"first {name}" for name in names}}

    @pytest.mark.parametrize("relation", ["streams", "groups", "consumers", "pending", "deadletter"])
    def test_nothing_is_no_rows(self, weir: Weir, relation: str) -> None:
        assert read_all(weir.batch_reader(relation=relation)) == []


def test_ids_beyond_a_bigint_are_read_to_the_last(weir: Weir) -> None:
    last = (1 << 64) - 1
    published = weir.publish(
        [f"{(1 << 63) - 1}-{1 << 63}", f"{1 << 63}-{last}", f"{last}-0", f"{last}-{last}"]
    )
    rows = read_all(weir.batch_reader(columns="id,ms,seq,ts", fetchSize="1"))
    assert ids_of(rows) == published
    assert [(row["ms"], row["seq"], row["ts"]) for row in rows] == [
        ((1 << 63) - 1, None, None), (None, None, None), (None, 0, None), (None, None, None),
    ]  # fmt: skip


def test_repeated_names_and_bytes_come_as_they_were_published(weir: Weir) -> None:
    path = f"{of_stream(weir.name())}/entries"
    weir.gateway.post(path, {"id": "1-0", "fields": [["a", "1"], ["a", "2"]]})
    weir.gateway.post(path, {"id": "2-0", "encoding": "base64", "fields": {"a": "/wA="}})
    rows = read_all(weir.batch_reader(fieldsFormat="entries"))
    assert [[(pair["name"], pair["value"]) for pair in row["fields"]] for row in rows] == [
        [("a", b"1"), ("a", b"2")],
        [("a", b"\xff\x00")],
    ]


def test_what_was_published_before_is_read_though_the_disk_is_a_second_behind(tmp_path: Path) -> None:
    with Server(tmp_path / "data", "--fsync", "everysec") as server, closing(Weir(server, "late")) as weir:
        for number in range(1, 6):
            weir.publish([number], str(number))
        options = {"subscribePattern": "late/.*"}
        assert sorted(ids_of(read_all(weir.batch_reader(**options)))) == ids(1, 2, 3, 4, 5)
        weir.publish([7], "5")
        reader = weir.stream_reader(**options, startingOffsets="earliest")
        reader.prepareForTriggerAvailableNow()
        _, found = steps(reader, reader.initialOffset())
        assert sorted(one for batch in found for one in batch) == ids(1, 2, 3, 4, 5, 7)
