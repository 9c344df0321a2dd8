"""Which streams of which gateways a streaming reader follows."""

import json

import pytest

from pyspark_weir.errors import PipelineError
from pyspark_weir.gateways import missing_streams
from pyspark_weir.options import source_options
from tests.spark.weir import EVERYTHING, Weir, ids, step, steps


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
        pattern = f"{weir.prefix}/[a-c]"
        reader = weir.stream_reader(
            **EVERYTHING, subscribePattern=pattern, discoveryIntervalMs="10s", clock=lambda: now[0]
        )
        end, found = steps(reader, reader.initialOffset())
        assert found == [ids(1)]
        weir.publish([2], "b")
        weir.publish([3], "d")
        now[0] = 9.999
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
                **EVERYTHING, subscribePattern=f"{weir.prefix}/.*", streamShard=f"{part}/4"
            )
            found += [key.partition("/")[2] for key in reader.initialOffset()["s"]]
        assert sorted(found) == sorted(names)


class TestManyStreams:
    def test_more_than_one_call_takes_are_read_within_one_limit(self, own_weir: Weir) -> None:
        for some in (range(1, 801), range(801, 1_204)):
            entries = {f"own-{n}": [{"id": f"{n}-0", "fields": {"n": "1"}}] for n in some}
            own_weir.gateway.post(
                "/v1/publish", {"streams": entries}, headers={"idempotency-key": str(some)}, repeatable=True
            )
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


def test_streams_that_are_named_and_missing_are_known_before_a_job(weir: Weir) -> None:
    """A typing error would read nothing, and say that nothing is left; a pattern may find none yet."""
    weir.publish([1])
    there, typo = weir.name(), weir.name("typo")
    assert missing_streams(source_options(weir.options(subscribe=f"{there},{typo}"))) == [typo]
    two = f"g0={weir.server.url},g1={weir.server.url}"
    named = weir.options(subscribe=f"g0/{there},g1/{typo}") | {"gateway.urls": two}
    assert missing_streams(source_options(named)) == [typo]
    assert missing_streams(source_options(weir.options(subscribePattern="typo.*"))) == []
    away = weir.options(subscribe="typo") | {"gateway.urls": "http://127.0.0.1:1"}
    assert missing_streams(source_options(away)) == [], "the job itself says that there is no answer"
