"""What a streaming reader does where entries, streams or gateways are gone."""

import json
import shutil
import threading
from collections.abc import Iterator

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from pyspark_weir import offsets
from pyspark_weir.errors import DataLoss
from pyspark_weir.gateway import GatewayPlan, PlanQuery, of_stream
from pyspark_weir.gateways import Gateways
from pyspark_weir.offsets import Lost
from pyspark_weir.source.stream import StreamingReader
from tests.server import Server
from tests.spark.conftest import DURABLE
from tests.spark.weir import EVERYTHING, Offset, Weir, ids, ids_between, rows_of, step, steps, through_json


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
        start = end
        end, found = step(reader, start)
        assert found == ids(*range(10, 15))
        assert offsets.lost(end) == (self.lost(weir, start, "5-0", "9-0", "trimmed"),)
        assert offsets.lost(step(reader, end)[0]) == (), "a loss stands where it happened"

    @staticmethod
    def lost(weir: Weir, start: Offset, after: str, upto: str | None, why: str) -> Lost:
        """A loss of the stream that was read up to there."""
        key = f"g0/{weir.name()}"
        return Lost(key, offsets.decode(start)[key].generation, after, upto, why)

    def test_a_trim_of_all_is_noted_at_once(self, weir: Weir) -> None:
        """Not with the stream's next entry, and in each run until then."""
        weir.publish(range(1, 11))
        reader = weir.stream_reader(**EVERYTHING, maxEntriesPerTrigger="5", failOnDataLoss="false")
        start, _ = step(reader, reader.initialOffset())
        weir.gateway.trim(weir.name(), maxlen=0, guard=False)
        end, found = step(reader, start)
        assert found == []
        assert offsets.lost(end) == (self.lost(weir, start, "5-0", "10-0", "trimmed"),)
        assert step(weir.stream_reader(), end) == (end, []), "later runs know"

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
        weir.gateway.post(f"{of_stream(weir.name())}/entries/delete", {"ids": ["5-0"]})
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

    def test_what_a_stream_made_anew_had_lost_when_it_was_met_is_no_loss(
        self, weir: Weir, read: Offset
    ) -> None:
        """It is read from its first entry, again where the batch runs again; a trim behind that is a loss."""
        weir.trim(4)
        reader = weir.stream_reader(onReset="earliest", maxEntriesPerTrigger="3")
        end, found = step(reader, read)
        assert found == ids(4, 5, 12)
        assert ids_between(weir.stream_reader(onReset="earliest"), read, end) == found
        weir.trim(5)
        with pytest.raises(DataLoss, match="up to 4-0 were trimmed"):
            ids_between(weir.stream_reader(onReset="earliest"), read, end)

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

            def plan(self, query: PlanQuery) -> GatewayPlan:
                self.looks += 1
                if self.looks == 2:
                    weir.publish([13])
                return super().plan(query)

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
        assert step(weir.stream_reader(), accepted) == (accepted, []), "it is not raised again"
        assert offsets.lost(accepted) == (TestLoss.lost(weir, end, "5-0", None, "deleted"),)
        weir.gateway.post(f"{of_stream(weir.name())}/groups", {"name": "g", "mkstream": True})
        empty, found = step(weir.stream_reader(), accepted)
        assert (empty, found) == (accepted, []), "nor while the stream that is made anew is empty"
        weir.publish([1, 2])
        anew, found = step(weir.stream_reader(), accepted)
        assert found == ids(1, 2), "nor when it has entries, all of which are read"
        assert (offsets.lost(anew), offsets.gone(anew)) == ((), frozenset())

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
        options = {"subscribePattern": f"{weir.prefix}/(s|kept)", "maxEntriesPerTrigger": "6"}
        first = weir.stream_reader(**EVERYTHING, **options)
        end, _ = step(first, first.initialOffset())
        weir.delete()

        def later(**more: str) -> StreamingReader:
            reader = weir.stream_reader(**{**options, **more})
            if available_now:
                reader.prepareForTriggerAvailableNow()
            return reader

        for reader in (first, later()):
            with pytest.raises(DataLoss, match=rf"stream {weir.name()} .*the stream was deleted"):
                reader.latestOffset(end, ReadMaxRows(100))
        narrower = later(subscribePattern=f"{weir.prefix}/(kept|other)")
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
        names = ("refused", "earliest", "latest")
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
            weir.stream_reader(subscribe=weir.name("refused")).latestOffset(end, ReadMaxRows(100))

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
