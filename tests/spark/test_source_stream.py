"""The streaming reader against a real gateway, driven as Spark drives it."""

import json
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)

from pyspark_weir import offsets
from pyspark_weir.errors import DataLoss, OptionError, PipelineError
from pyspark_weir.gateway import of_stream
from pyspark_weir.source.reading import batches
from tests.server import Server
from tests.spark.weir import EVERYTHING, Offset, Weir, ids, ids_between, rows_of, step, steps, through_json


def _moved(start: Offset, end: Offset) -> set[str]:
    return {key for key, place in end["s"].items() if start["s"].get(key) != place}


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
        assert len(tasks()) == 1, "as it is cut where no offset says how"

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

    @pytest.mark.parametrize("limit", [ReadAllAvailable(), ReadMinRows(1)])
    def test_where_spark_asks_for_more_the_options_set_no_limit(self, weir: Weir, limit: ReadLimit) -> None:
        """For everything, or for a least number of entries."""
        published = weir.publish(range(1, 26))
        reader = weir.stream_reader(**EVERYTHING, maxBytesPerTrigger="400")
        assert step(reader, reader.initialOffset(), limit)[1] == published

    def test_the_limit_is_shared_by_what_streams_have(self, weir: Weir) -> None:
        weir.publish(range(1, 91), "long")
        weir.publish(range(1, 11), "short")
        streams = f"{weir.name('long')},{weir.name('short')}"
        reader = weir.stream_reader(**EVERYTHING, subscribe=streams, maxEntriesPerTrigger="20")
        start = reader.initialOffset()
        end, found = step(reader, start)
        assert len(found) == 20
        assert {stream.rpartition("/")[2] for stream in _moved(start, end)} == {"long", "short"}

    def test_the_heads_that_were_seen_are_told_without_another_call(self, own_weir: Weir) -> None:
        own_weir.publish(range(1, 26))
        reader = own_weir.stream_reader(**EVERYTHING, maxEntriesPerTrigger="10")
        assert reader.reportLatestOffset() is None
        step(reader, reader.initialOffset())
        own_weir.server.kill()
        reported = reader.reportLatestOffset()
        assert reported is not None
        assert [place.id for place in offsets.decode(reported).values()] == ["25-0"]

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
        path = f"{of_stream(weir.name())}/entries"
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

    @pytest.mark.parametrize("option", ["startingTimestamp", "startingOffsetsByTimestamp"])
    def test_a_time_to_come_is_refused_unless_latest_is_meant(self, weir: Weir, option: str) -> None:
        """What is published until then would be read as well."""
        weir.publish(range(1, 11))
        time = "1000" if option == "startingTimestamp" else json.dumps({weir.name(): 1000})
        with pytest.raises(OptionError, match=rf"{option}: .* its last one is 10-0: give an earlier time"):
            weir.stream_reader(**{option: time}).initialOffset()
        reader = weir.stream_reader(**{option: time}, startingTimestampStrategy="latest")
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
        pattern = f"{weir.prefix}/.*"
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
