"""The streaming reader against a real gateway, driven as Spark drives it."""

import json
import pickle
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows

from pyspark_weir import gateway as calls
from pyspark_weir import offsets
from pyspark_weir.errors import DataLoss, OptionError, PipelineError
from pyspark_weir.source.gateways import Asked, Gateways, Planned
from pyspark_weir.source.reading import batches
from pyspark_weir.source.stream import StreamReader
from tests.server import Server
from tests.spark.conftest import DURABLE
from tests.spark.weir import Offset, Weir, ids_between, rows_of, step, steps, through_json

EVERYTHING = {"startingOffsets": "earliest"}


def ids(*numbers: int) -> list[str]:
    return [f"{number}-0" for number in numbers]


class TestBatches:
    def test_every_entry_is_read_once_and_in_order_within_the_limit(self, weir: Weir) -> None:
        published = weir.publish(range(1, 26))
        reader = weir.stream_reader(**EVERYTHING, maxEntriesPerTrigger="10")
        _, found = steps(reader, reader.initialOffset())
        assert [len(one) for one in found] == [10, 10, 5]
        assert [one for batch in found for one in batch] == published

    def test_a_new_query_begins_with_what_is_new(self, weir: Weir) -> None:
        weir.publish(range(1, 6))
        reader = weir.stream_reader()
        start, found = steps(reader, reader.initialOffset())
        assert found == []
        weir.publish([6, 7])
        assert step(reader, start)[1] == ids(6, 7)

    def test_nothing_new_is_the_same_text_as_before(self, weir: Weir) -> None:
        weir.publish(range(1, 6))
        reader = weir.stream_reader(**EVERYTHING)
        end, _ = steps(reader, reader.initialOffset())
        written = json.dumps(end)
        again = reader.latestOffset(json.loads(written), ReadMaxRows(10))
        assert json.dumps(again) == written
        assert reader.partitions(end, again) == []

    def test_a_batch_is_read_again_as_it_was_by_a_reader_of_a_later_run(self, weir: Weir) -> None:
        weir.publish(range(1, 21))
        first = weir.stream_reader(**EVERYTHING, maxEntriesPerTrigger="8")
        start = first.initialOffset()
        end, read = step(first, start)
        weir.publish(range(21, 41))
        assert ids_between(weir.stream_reader(**EVERYTHING), start, end) == read == ids(*range(1, 9))

    def test_a_batch_keeps_its_tasks_whatever_the_machine_that_runs_it_again(self, weir: Weir) -> None:
        """Its sink knows what it has by tasks: cut otherwise, rows would be stored twice."""
        weir.publish(range(1, 41))
        weir.publish(range(1, 6), "short")
        both = {"subscribe": f"{weir.name()},{weir.name('short')}"}
        first = weir.stream_reader(**EVERYTHING, **both, maxEntriesPerPartition="10", minPartitions="2")
        start = first.initialOffset()
        end = through_json(first.latestOffset(start, ReadMaxRows(100)))

        def tasks(**options: str) -> list[list[str]]:
            reader = weir.stream_reader(**both, **options)
            return [[row["id"] for row in rows_of(reader.read(one))] for one in reader.partitions(start, end)]

        before = tasks(maxEntriesPerPartition="10", minPartitions="2")
        assert len(before) == 5
        assert tasks(maxEntriesPerPartition="7", minPartitions="5") == before
        assert tasks(ordered="true") == before
        del end["cut"]
        assert len(tasks()) == 1, "as it is cut where no offset tells"

    def test_bytes_are_a_limit_too(self, weir: Weir) -> None:
        weir.publish(range(1, 101))
        reader = weir.stream_reader(**EVERYTHING, maxBytesPerTrigger="400")
        start = reader.initialOffset()
        _, by_option = step(reader, start)
        _, by_spark = step(weir.stream_reader(**EVERYTHING), start, ReadMaxBytes(400))
        assert 1 <= len(by_option) < 50
        assert by_option == by_spark

    def test_spark_may_ask_for_everything(self, weir: Weir) -> None:
        published = weir.publish(range(1, 26))
        reader = weir.stream_reader(**EVERYTHING, maxEntriesPerTrigger="10")
        assert step(reader, reader.initialOffset(), ReadAllAvailable())[1] == published

    def test_the_limit_is_shared_by_what_streams_have(self, weir: Weir) -> None:
        weir.publish(range(1, 91), "long")
        weir.publish(range(1, 11), "short")
        streams = f"{weir.name('long')},{weir.name('short')}"
        reader = weir.stream_reader(**EVERYTHING, subscribe=streams, maxEntriesPerTrigger="20")
        start = reader.initialOffset()
        end, found = step(reader, start)
        assert len(found) == 20
        assert {stream.rpartition("-")[2] for stream in _moved(start, end)} == {"long", "short"}

    def test_the_heads_that_were_seen_are_told_without_another_call(self, own_weir: Weir) -> None:
        own_weir.publish(range(1, 26))
        reader = own_weir.stream_reader(**EVERYTHING, maxEntriesPerTrigger="10")
        assert reader.reportLatestOffset() is None
        step(reader, reader.initialOffset())
        own_weir.server.kill()
        told = reader.reportLatestOffset()
        assert told is not None
        assert [place.id for place in offsets.decode(told).values()] == ["25-0"]

    def test_a_task_reads_with_what_was_pickled(self, weir: Weir) -> None:
        published = weir.publish(range(1, 6))
        reader = weir.stream_reader(**EVERYTHING)
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        parts = reader.partitions(start, end)
        read, part = pickle.loads(pickle.dumps((reader.read, parts[0])))
        assert [row["id"] for row in rows_of(read(part))] == published

    def test_a_reader_of_small_pages_reads_the_same(self, weir: Weir) -> None:
        published = weir.publish(range(1, 26))
        reader = weir.stream_reader(**EVERYTHING, fetchSize="3")
        assert step(reader, reader.initialOffset())[1] == published

    def test_a_partition_that_spark_made_up_is_empty(self, weir: Weir) -> None:
        reader = weir.stream_reader()
        assert list(batches(reader._options, reader._form, None)) == []  # noqa: SLF001

    def test_dead_letters_can_be_followed(self, weir: Weir) -> None:
        path = f"/v1/streams/{weir.name()}/entries"
        weir.gateway.post(path, {"id": "1-0", "fields": {"a": "b", "weir-source": "s", "weir-reason": "r"}})
        reader = weir.stream_reader(**EVERYTHING, relation="deadletter")
        start = reader.initialOffset()
        (part,) = reader.partitions(start, reader.latestOffset(start, ReadMaxRows(10)))
        (row,) = rows_of(reader.read(part))
        assert (row["source"], row["reason"], row["fields"]) == ("s", "r", [("a", "b")])

    def test_a_stream_has_no_end(self, weir: Weir) -> None:
        with pytest.raises(OptionError, match=r"endingTimestamp: a stream has no end.*availableNow"):
            weir.stream_reader(endingTimestamp="5")

    def test_a_snapshot_is_no_stream(self, weir: Weir) -> None:
        with pytest.raises(OptionError, match=r"relation=groups is a snapshot.*spark\.read"):
            weir.stream_reader(relation="groups")


def _moved(start: Offset, end: Offset) -> set[str]:
    return {key for key, place in end["s"].items() if start["s"].get(key) != place}


class TestBeginnings:
    def test_an_id_is_the_last_one_that_counts_as_read(self, weir: Weir) -> None:
        weir.publish(range(1, 11))
        starting = json.dumps({weir.name(): "4-0"})
        reader = weir.stream_reader(startingOffsets=starting)
        assert step(reader, reader.initialOffset())[1] == ids(*range(5, 11))

    def test_a_time_is_the_first_that_is_read(self, weir: Weir) -> None:
        weir.publish(range(1, 11))
        reader = weir.stream_reader(startingTimestamp="4")
        assert step(reader, reader.initialOffset())[1] == ids(*range(4, 11))

    def test_a_time_to_come_begins_behind_what_there_is(self, weir: Weir) -> None:
        weir.publish(range(1, 11))
        reader = weir.stream_reader(startingTimestamp="1000")
        start = reader.initialOffset()
        assert step(reader, start) == (start, [])
        weir.publish([2_000])
        assert step(reader, start)[1] == ids(2_000)

    def test_an_id_behind_the_last_entry_is_refused(self, weir: Weir) -> None:
        weir.publish(range(1, 11))
        reader = weir.stream_reader(startingOffsets=json.dumps({weir.name(): "11-0"}))
        with pytest.raises(OptionError, match=r"startingOffsets.*11-0.*10-0"):
            reader.initialOffset()

    def test_an_id_before_what_is_left_is_a_loss(self, weir: Weir) -> None:
        weir.publish(range(1, 11))
        weir.trim(5)
        starting = json.dumps({weir.name(): "2-0"})
        with pytest.raises(DataLoss, match="up to 4-0"):
            weir.stream_reader(startingOffsets=starting).initialOffset()
        reader = weir.stream_reader(startingOffsets=starting, failOnDataLoss="false")
        assert step(reader, reader.initialOffset())[1] == ids(*range(5, 11))

    def test_the_beginning_of_a_trimmed_stream_is_its_first_entry(self, weir: Weir) -> None:
        weir.publish(range(1, 11))
        weir.trim(5)
        reader = weir.stream_reader(**EVERYTHING)
        assert step(reader, reader.initialOffset())[1] == ids(*range(5, 11))


class TestStreamsThatCome:
    def test_a_stream_that_appears_later_is_read_from_its_beginning(self, weir: Weir) -> None:
        reader = weir.stream_reader()
        start = reader.initialOffset()
        assert step(reader, start) == (start, [])
        weir.publish([1, 2, 3])
        end, found = step(reader, start)
        assert found == ids(1, 2, 3)
        weir.publish([4])
        assert step(reader, end)[1] == ids(4)

    def test_a_missing_stream_can_be_refused(self, weir: Weir) -> None:
        with pytest.raises(PipelineError, match=rf"WEIR_NO_STREAM.*{weir.name()}"):
            weir.stream_reader(failOnMissingStream="true").initialOffset()

    def test_a_stream_added_to_the_options_of_a_running_query_is_read_from_its_beginning(
        self, weir: Weir
    ) -> None:
        weir.publish([1, 2])
        weir.publish([1], "added")
        reader = weir.stream_reader(**EVERYTHING)
        end, _ = steps(reader, reader.initialOffset())
        later = weir.stream_reader(subscribe=f"{weir.name()},{weir.name('added')}")
        assert step(later, end)[1] == ids(1)

    def test_a_stream_left_out_and_named_again_goes_on_where_it_was(self, weir: Weir) -> None:
        weir.publish([1, 2])
        weir.publish([1, 2], "other")
        both = f"{weir.name()},{weir.name('other')}"
        reader = weir.stream_reader(**EVERYTHING, subscribe=both)
        end, _ = steps(reader, reader.initialOffset())
        weir.publish([3])
        end, found = step(weir.stream_reader(), end)
        assert found == ids(3)
        weir.publish([3], "other")
        assert step(weir.stream_reader(subscribe=both), end)[1] == ids(3)

    def test_a_pattern_finds_new_streams_after_a_while(self, weir: Weir) -> None:
        now = [0.0]
        weir.publish([1], "a")
        pattern = f"{weir.prefix}-[a-c]"
        reader = weir.stream_reader(
            **EVERYTHING, subscribePattern=pattern, discoveryIntervalMs="10s", clock=lambda: now[0]
        )
        end, found = steps(reader, reader.initialOffset())
        assert found == [ids(1)]
        weir.publish([2], "b")
        weir.publish([3], "d")
        assert step(reader, end)[1] == []
        now[0] = 10.0
        assert step(reader, end)[1] == ids(2)

    def test_parts_of_all_streams_are_disjoint_and_leave_none_out(self, weir: Weir) -> None:
        names = [weir.name(str(n)) for n in range(20)]
        for number in range(20):
            weir.publish([number + 1], str(number))
        found: list[str] = []
        for part in range(4):
            reader = weir.stream_reader(
                **EVERYTHING, subscribePattern=f"{weir.prefix}-.*", streamShard=f"{part}/4"
            )
            found += [key.partition("/")[2] for key in reader.initialOffset()["s"]]
        assert sorted(found) == sorted(names)


class TestAvailableNow:
    def test_what_comes_after_the_start_is_left_to_the_next_run(self, weir: Weir) -> None:
        weir.publish(range(1, 21))
        reader = weir.stream_reader(**EVERYTHING, maxEntriesPerTrigger="8")
        reader.prepareForTriggerAvailableNow()
        start = reader.initialOffset()
        weir.publish(range(21, 31))
        end, found = steps(reader, start)
        assert [one for batch in found for one in batch] == ids(*range(1, 21))
        again = weir.stream_reader(maxEntriesPerTrigger="100")
        again.prepareForTriggerAvailableNow()
        assert steps(again, end)[1] == [ids(*range(21, 31))]

    def test_streams_that_appear_later_are_left_to_the_next_run(self, weir: Weir) -> None:
        weir.publish([1], "a")
        pattern = f"{weir.prefix}-.*"
        reader = weir.stream_reader(**EVERYTHING, subscribePattern=pattern, discoveryIntervalMs="0")
        reader.prepareForTriggerAvailableNow()
        weir.publish([2], "b")
        end, found = steps(reader, reader.initialOffset())
        assert found == [ids(1)]
        again = weir.stream_reader(subscribePattern=pattern)
        again.prepareForTriggerAvailableNow()
        assert steps(again, end)[1] == [ids(2)]

    def test_there_is_no_waiting_for_more(self, weir: Weir) -> None:
        weir.publish([1])
        reader = weir.stream_reader(**EVERYTHING, minEntriesPerTrigger="100", pollTimeoutMs="60000")
        reader.prepareForTriggerAvailableNow()
        assert steps(reader, reader.initialOffset())[1] == [ids(1)]


class TestWaiting:
    def test_a_batch_waits_for_enough_entries_but_not_for_ever(self, weir: Weir) -> None:
        now, slept = [0.0], list[float]()
        reader = weir.stream_reader(
            **EVERYTHING,
            minEntriesPerTrigger="5",
            maxTriggerDelay="60s",
            pollTimeoutMs="500",
            clock=lambda: now[0],
            sleep=slept.append,
        )
        weir.publish([1, 2, 3])
        start = reader.initialOffset()
        assert step(reader, start) == (start, [])
        # So that Spark, which asks again at once, does not ask a hundred times a second.
        assert slept == [0.5]
        now[0] = 59.9
        assert step(reader, start) == (start, [])
        assert slept[1] == pytest.approx(0.1)
        now[0] = 60.0
        end, found = step(reader, start)
        assert found == ids(1, 2, 3)
        weir.publish([4])
        assert step(reader, end) == (end, [])
        weir.publish([5, 6, 7, 8])
        assert step(reader, end)[1] == ids(4, 5, 6, 7, 8)

    def test_spark_may_set_the_least_itself(self, weir: Weir) -> None:
        reader = weir.stream_reader(**EVERYTHING, sleep=lambda _: None)
        weir.publish([1, 2])
        start = reader.initialOffset()
        assert step(reader, start, ReadMinRows(3)) == (start, [])
        assert step(reader, start, ReadMinRows(2))[1] == ids(1, 2)

    @pytest.mark.parametrize("gateways", [1, 2])
    def test_a_reader_that_waits_is_woken_by_an_entry(
        self, weir: Weir, other_weir: Weir, gateways: int
    ) -> None:
        urls = f"g0={weir.server.url},g1={other_weir.server.url}" if gateways == 2 else weir.server.url
        options = {"gateway.urls": urls, "subscribe": weir.name(), "pollTimeoutMs": "30000"}
        reader = weir.stream_reader(**EVERYTHING, **options)
        weir.publish([1])
        end, _ = step(reader, reader.initialOffset())
        asked = threading.Event()

        def publish_later() -> None:
            asked.wait(10)
            weir.publish([2])

        thread = threading.Thread(target=publish_later)
        thread.start()
        threading.Timer(0.2, asked.set).start()
        found = reader.latestOffset(end, ReadMaxRows(10))
        thread.join()
        assert found != end
        assert ids_between(reader, end, found) == ids(2)


class TestLoss:
    def test_a_trim_is_told_before_the_batch_is_written_down(self, weir: Weir) -> None:
        weir.publish(range(1, 21))
        reader = weir.stream_reader(**EVERYTHING, maxEntriesPerTrigger="5")
        end, _ = step(reader, reader.initialOffset())
        weir.trim(10)
        with pytest.raises(DataLoss, match=r"WEIR_DATA_LOSS.*after 5-0.*up to 9-0.*failOnDataLoss=false"):
            reader.latestOffset(end, ReadMaxRows(5))

    def test_a_trim_is_survived_on_request(self, weir: Weir) -> None:
        weir.publish(range(1, 21))
        reader = weir.stream_reader(**EVERYTHING, maxEntriesPerTrigger="5", failOnDataLoss="false")
        end, _ = step(reader, reader.initialOffset())
        weir.trim(10)
        assert step(reader, end)[1] == ids(*range(10, 15))

    def test_a_trim_of_what_was_read_is_no_loss(self, weir: Weir) -> None:
        weir.publish(range(1, 21))
        reader = weir.stream_reader(**EVERYTHING, maxEntriesPerTrigger="5")
        end, _ = step(reader, reader.initialOffset())
        weir.trim(6)
        assert step(reader, end)[1] == ids(*range(6, 11))

    @pytest.mark.parametrize("begun", ["met", "later", "read"])
    def test_a_trim_after_the_batch_was_written_down_is_told_again(self, weir: Weir, begun: str) -> None:
        # met: the stream's first batch; later: it was there at the start; read: some of it was read before.
        if begun != "met":
            weir.publish([1, 2])
        reader = weir.stream_reader(**EVERYTHING)
        start = reader.initialOffset()
        if begun == "read":
            start, _ = step(reader, start)
        weir.publish(range(3, 21))
        end = reader.latestOffset(start, ReadMaxRows(100))
        parts = reader.partitions(through_json(start), through_json(end))
        weir.trim(10)
        with pytest.raises(DataLoss, match="WEIR_DATA_LOSS"):
            reader.partitions(through_json(start), through_json(end))
        with pytest.raises(DataLoss, match=r"stream .* of g0, \(.*trimmed before they were read"):
            list(reader.read(parts[0]))
        kind = weir.stream_reader(failOnDataLoss="false")
        assert ids_between(kind, start, end) == ids(*range(10, 21))
        assert [row["id"] for row in rows_of(kind.read(parts[0]))] == ids(*range(10, 21))

    def test_a_trim_overtaking_a_reader_between_two_pages_is_told(self, weir: Weir) -> None:
        weir.publish(range(1, 21))
        reader = weir.stream_reader(**EVERYTHING, fetchSize="2")
        start = reader.initialOffset()
        (part,) = reader.partitions(start, reader.latestOffset(start, ReadMaxRows(100)))
        pages = iter(reader.read(part))
        assert [row["id"] for row in next(pages).to_pylist()] == ids(1, 2)
        weir.trim(15)
        with pytest.raises(DataLoss, match="WEIR_DATA_LOSS"):
            # One page may have been on its way.
            list(pages)

    def test_a_deleted_entry_inside_is_no_loss(self, weir: Weir) -> None:
        weir.publish(range(1, 11))
        reader = weir.stream_reader(**EVERYTHING)
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadMaxRows(100))
        weir.gateway.post(f"/v1/streams/{weir.name()}/entries/delete", {"ids": ["5-0"]})
        assert ids_between(reader, start, end) == ids(1, 2, 3, 4, 6, 7, 8, 9, 10)


class TestResets:
    @pytest.fixture
    def read(self, weir: Weir) -> Offset:
        """A stream read to 10-0, then deleted and made anew with 3-0 to 5-0, and 12-0."""
        weir.publish(range(1, 11))
        reader = weir.stream_reader(**EVERYTHING)
        end, _ = steps(reader, reader.initialOffset())
        weir.delete()
        weir.publish([3, 4, 5, 12])
        return end

    def test_a_stream_made_anew_is_told(self, weir: Weir, read: Offset) -> None:
        with pytest.raises(DataLoss, match=r"WEIR_DATA_LOSS.*deleted and made anew.*onReset=earliest"):
            weir.stream_reader().latestOffset(read, ReadMaxRows(100))

    @pytest.mark.parametrize("options", [{"onReset": "earliest"}, {"failOnDataLoss": "false"}])
    def test_a_stream_made_anew_can_be_read_from_its_beginning(
        self, weir: Weir, read: Offset, options: dict[str, str]
    ) -> None:
        reader = weir.stream_reader(**options, maxEntriesPerTrigger="3")
        end, found = step(reader, read)
        assert found == ids(3, 4, 5)
        assert ids_between(weir.stream_reader(**options), read, end) == found, "and the same once more"
        assert step(reader, end)[1] == ids(12)

    def test_a_stream_made_anew_can_be_read_from_its_end(self, weir: Weir, read: Offset) -> None:
        reader = weir.stream_reader(onReset="latest")
        end, found = step(reader, read)
        assert found == []
        assert json.dumps(end) != json.dumps(read)
        weir.publish([13])
        assert step(reader, end)[1] == ids(13)

    def test_what_comes_behind_that_end_while_it_is_found_is_not_left_out(
        self, weir: Weir, read: Offset
    ) -> None:
        class Between(Gateways):
            """Something is published before the second look."""

            looks = 0

            def plan(self, asked: Asked) -> Planned:
                self.looks += 1
                if self.looks == 2:
                    weir.publish([13])
                return super().plan(asked)

        reader = weir.stream_reader(onReset="latest")
        reader._gateways = Between(reader._options)  # noqa: SLF001 - to come between two of its calls
        end, found = step(reader, read)
        assert found == []
        assert step(reader, end)[1] == ids(13)

    def test_a_stream_made_anew_after_the_batch_was_written_down_is_told(self, weir: Weir) -> None:
        weir.publish(range(1, 11))
        reader = weir.stream_reader(**EVERYTHING)
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadMaxRows(100))
        parts = reader.partitions(start, end)
        weir.delete()
        weir.publish(range(1, 11))
        with pytest.raises(DataLoss, match="made anew"):
            reader.partitions(start, end)
        with pytest.raises(DataLoss, match="made anew"):
            list(reader.read(parts[0]))
        kind = weir.stream_reader(failOnDataLoss="false")
        assert ids_between(kind, start, end) == []
        assert list(kind.read(parts[0])) == []

    def test_a_deleted_stream_is_a_loss_to_a_reader_that_has_not_seen_its_end(self, weir: Weir) -> None:
        weir.publish(range(1, 11))
        reader = weir.stream_reader(**EVERYTHING, maxEntriesPerTrigger="5")
        start = reader.initialOffset()
        end, _ = step(reader, start)
        (part,) = reader.partitions(start, end)
        weir.delete()
        with pytest.raises(DataLoss, match="the stream was deleted before it was read"):
            list(reader.read(part))
        with pytest.raises(DataLoss, match="the stream was deleted"):
            reader.latestOffset(end, ReadMaxRows(5))
        accepted, found = step(weir.stream_reader(failOnDataLoss="false"), end)
        assert found == []
        assert step(weir.stream_reader(), accepted) == (accepted, []), "it is not told again"

    def test_a_deleted_stream_that_was_read_to_its_end_is_no_loss(self, weir: Weir) -> None:
        weir.publish(range(1, 11))
        reader = weir.stream_reader(**EVERYTHING)
        end, _ = steps(reader, reader.initialOffset())
        weir.delete()
        seen, found = step(reader, end)
        assert found == []
        assert step(reader, seen) == (seen, [])
        assert step(weir.stream_reader(), seen) == (seen, []), "a later run knows that nothing was unread"

    @pytest.mark.parametrize("available_now", [False, True])
    def test_a_deleted_stream_that_only_a_pattern_names_is_a_loss_too(
        self, weir: Weir, *, available_now: bool
    ) -> None:
        weir.publish(range(1, 11))
        weir.publish([1], "kept")
        weir.publish([1], "other")
        options = {"subscribePattern": f"{weir.prefix}-(s|kept)", "maxEntriesPerTrigger": "6"}
        first = weir.stream_reader(**EVERYTHING, **options)
        end, _ = step(first, first.initialOffset())
        weir.delete()

        def later(**more: str) -> StreamReader:
            reader = weir.stream_reader(**{**options, **more})
            if available_now:
                reader.prepareForTriggerAvailableNow()
            return reader

        for reader in (first, later()):
            with pytest.raises(DataLoss, match=rf"stream {weir.name()} .*the stream was deleted"):
                reader.latestOffset(end, ReadMaxRows(100))
        narrower = later(subscribePattern=f"{weir.prefix}-(kept|other)")
        assert step(narrower, end)[1] == ids(1), "what the pattern does not name is not missed"
        accepted, _ = steps(later(failOnDataLoss="false"), end)
        weir.publish([2], "kept")
        assert step(later(), accepted)[1] == ids(2)

    def test_a_stream_that_comes_back_as_it_was_is_read_on(self, weir: Weir) -> None:
        """The gateway was started on another folder for a while, say."""
        weir.publish(range(1, 11))
        reader = weir.stream_reader(**EVERYTHING, maxEntriesPerTrigger="4")
        end, _ = step(reader, reader.initialOffset())
        away = {**end, "gone": list(end["s"])}
        back, found = step(reader, away)
        assert found == ids(5, 6, 7, 8)
        assert offsets.gone(back) == frozenset()


class TestOlderData:
    """Streams read to 20-0; then the gateway is started on a copy of its data from when they had 10-0."""

    @pytest.fixture(scope="class")
    @classmethod
    def restored(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Weir, Offset]]:
        place = tmp_path_factory.mktemp("restored")
        names = ("told", "earliest", "latest")
        with Server(place / "data", *DURABLE) as server:
            weir = Weir(server, "restored")
            for name in names:
                weir.publish(range(1, 11), name)
            server.stop()
            shutil.copytree(server.data, place / "copy")
            server.start()
            for name in names:
                weir.publish(range(11, 21), name)
            reader = weir.stream_reader(**EVERYTHING, subscribe=",".join(map(weir.name, names)))
            end, _ = steps(reader, reader.initialOffset())
            server.stop()
            shutil.rmtree(server.data)
            shutil.copytree(place / "copy", server.data)
            server.start()
            yield weir, end
            weir.close()

    def test_is_told(self, restored: tuple[Weir, Offset]) -> None:
        weir, end = restored
        with pytest.raises(DataLoss, match=r"WEIR_DATA_LOSS.*ends at 10-0.*older data was restored"):
            weir.stream_reader(subscribe=weir.name("told")).latestOffset(end, ReadMaxRows(100))

    def test_can_be_read_from_its_beginning(self, restored: tuple[Weir, Offset]) -> None:
        weir, start = restored
        options = {"subscribe": weir.name("earliest"), "onReset": "earliest", "maxEntriesPerTrigger": "6"}
        reader = weir.stream_reader(**options)
        end, found = step(reader, start)
        assert found == ids(*range(1, 7))
        assert ids_between(weir.stream_reader(**options), start, end) == found, "and the same once more"
        assert steps(reader, end)[1] == [ids(*range(7, 11))]

    def test_can_be_read_from_its_end(self, restored: tuple[Weir, Offset]) -> None:
        weir, start = restored
        reader = weir.stream_reader(subscribe=weir.name("latest"), onReset="latest")
        end, found = step(reader, start)
        assert found == []
        weir.publish([11], "latest")
        assert step(reader, end)[1] == ids(11)


class TestDurability:
    @pytest.fixture
    def careless(self, tmp_path: Path) -> Iterator[Weir]:
        with Server(tmp_path / "careless", "--fsync", "no") as server:
            found = Weir(server, "careless")
            yield found
            found.close()

    def test_a_gateway_that_never_syncs_is_refused_unless_asked_for(self, careless: Weir) -> None:
        careless.publish([1])
        with pytest.raises(PipelineError, match=r"WEIR_NOT_DURABLE.*durableOnly=false"):
            careless.stream_reader(**EVERYTHING).initialOffset()
        reader = careless.stream_reader(**EVERYTHING, durableOnly="false")
        assert step(reader, reader.initialOffset())[1] == ids(1)


class TestAGatewayThatDies:
    def test_between_two_pages_is_waited_for_and_the_range_read_on(self, own_weir: Weir) -> None:
        published = own_weir.publish(range(1, 21))
        reader = own_weir.stream_reader(**EVERYTHING, fetchSize="2")
        start = reader.initialOffset()
        (part,) = reader.partitions(start, reader.latestOffset(start, ReadMaxRows(100)))
        pages = iter(reader.read(part))
        found = [row["id"] for row in next(pages).to_pylist()]
        own_weir.server.kill()
        back = threading.Timer(0.5, own_weir.server.start)
        back.start()
        found += [row["id"] for row in rows_of(pages)]
        back.join()
        assert found == published


class TestManyStreams:
    def test_more_than_one_call_takes_are_read_within_one_limit(self, own_weir: Weir) -> None:
        for some in (range(1, 801), range(801, 1_204)):
            entries = {f"own-{n}": [{"id": f"{n}-0", "fields": {"n": "1"}}] for n in some}
            calls.publish(own_weir.gateway, entries, key=str(some))
        reader = own_weir.stream_reader(**EVERYTHING, subscribePattern="own-.*", maxEntriesPerTrigger="1300")
        start = reader.initialOffset()
        end, found = step(reader, start)
        assert sorted(found) == sorted(ids(*range(1, 1_204)))
        assert step(reader, end) == (end, [])


class TestSeveralGateways:
    def test_are_read_as_one_within_one_limit(self, weir: Weir, other_weir: Weir) -> None:
        urls = f"g0={weir.server.url},g1={other_weir.server.url}"
        other_weir.prefix = weir.prefix
        weir.publish(range(1, 31))
        other_weir.publish(range(101, 111))
        reader = weir.stream_reader(**EVERYTHING, **{"gateway.urls": urls}, maxEntriesPerTrigger="20")
        _, found = steps(reader, reader.initialOffset())
        assert all(len(one) <= 20 for one in found)
        assert 18 <= len(found[0]) <= 20, "rounded down for each gateway"
        assert sorted(one for batch in found for one in batch) == sorted(ids(*range(1, 31), *range(101, 111)))

    def test_have_names_so_that_one_may_move(self, weir: Weir) -> None:
        weir.publish([1])
        before = weir.stream_reader(**EVERYTHING, **{"gateway.urls": f"here={weir.server.url}"})
        end, _ = steps(before, before.initialOffset())
        weir.publish([2])
        moved = f"here={weir.server.url.replace('127.0.0.1', 'localhost')}"
        assert step(weir.stream_reader(**{"gateway.urls": moved}), end)[1] == ids(2)

    def test_can_be_told_apart_by_name(self, weir: Weir, other_weir: Weir) -> None:
        urls = f"g0={weir.server.url},g1={other_weir.server.url}"
        other_weir.prefix = weir.prefix
        weir.publish([1])
        other_weir.publish([2])
        reader = weir.stream_reader(
            **EVERYTHING, **{"gateway.urls": urls}, assign=json.dumps({"g1": [weir.name()]})
        )
        assert step(reader, reader.initialOffset())[1] == ids(2)
        reader = weir.stream_reader(**EVERYTHING, **{"gateway.urls": urls}, subscribe=f"g0/{weir.name()}")
        assert step(reader, reader.initialOffset())[1] == ids(1)


@pytest.fixture(scope="module")
def other_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("other") / "data", *DURABLE) as server:
        yield server


@pytest.fixture
def other_weir(other_server: Server) -> Iterator[Weir]:
    """A second gateway; its streams of one name are those of all tests."""
    found = Weir(other_server, "other")
    yield found
    found.close()
