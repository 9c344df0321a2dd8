"""The data source's options: every name is known or refused, and every refusal says what to write."""

import dataclasses

import pytest

from pyspark_weir.errors import OptionError
from pyspark_weir.options import SourceOptions, source_options
from pyspark_weir.raw_options import Option

MUST = {"gateway.urls": "http://127.0.0.1:8080", "subscribe": "orders"}


def read(**more: str) -> SourceOptions:
    return source_options({**MUST, **more})


def test_what_is_left_out_has_the_documented_default() -> None:
    found = read()
    assert [(one.name, one.url) for one in found.gateways] == [("g0", "http://127.0.0.1:8080")]
    defaults = dataclasses.replace(
        SourceOptions(gateways=found.gateways), subscribe=("orders",), min_partitions=found.min_partitions
    )
    assert found == defaults
    assert (found.max_entries_per_trigger, found.max_entries_per_partition) == (500_000, 200_000)
    assert (found.fetch_size, found.poll_timeout_ms, found.max_trigger_delay_ms) == (20_000, 500, 900_000)
    assert (found.gateways[0].request_timeout_ms, found.gateways[0].retry_timeout_ms) == (30_000, 60_000)
    assert (found.fail_on_data_loss, found.on_reset, found.durable_only) == (True, "fail", True)


def test_names_are_compared_without_regard_to_case() -> None:
    found = source_options(
        {"GATEWAY.URLS": MUST["gateway.urls"], "SUBSCRIBE": "a", "failondataloss": "FALSE"}
    )
    assert found.fail_on_data_loss is False


@pytest.mark.parametrize(
    ("alias", "value", "member"),
    [
        ("maxOffsetsPerTrigger", "7", "max_entries_per_trigger"),
        ("minOffsetsPerTrigger", "7", "min_entries_per_trigger"),
        ("maxRecordsPerPartition", "7", "max_entries_per_partition"),
        ("kafkaConsumer.pollTimeoutMs", "7", "poll_timeout_ms"),
        ("includeHeaders", "true", "include_meta"),
    ],
)
def test_the_names_that_users_of_other_systems_know_are_taken(alias: str, value: str, member: str) -> None:
    assert getattr(read(**{alias: value}), member) == (True if value == "true" else int(value))


@pytest.mark.parametrize("name", ["streams", "stream.keys"])
def test_subscribe_has_the_names_of_its_neighbours(name: str) -> None:
    assert source_options({"url": MUST["gateway.urls"], name: "a, b,,a"}).subscribe == ("a", "b")


def test_an_option_given_under_two_of_its_names_is_refused() -> None:
    with pytest.raises(OptionError, match=r"maxEntriesPerTrigger and maxOffsetsPerTrigger.*leave one"):
        read(maxEntriesPerTrigger="1", maxOffsetsPerTrigger="2")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("failOnDatLoss", "did you mean failOnDataLoss?"),
        ("startingOffset", "did you mean startingOffsets?"),
        ("subscibe", "did you mean subscribe?"),
        ("token", "tokenFile or tokenEnv"),
        ("path", "option subscribe"),
        ("zzzz", "zzzz is no option"),
        ("keyMode", "an option for writing only"),
    ],
)
def test_an_unknown_option_is_refused_with_what_may_be_meant(name: str, hint: str) -> None:
    with pytest.raises(OptionError, match="WEIR_OPTION") as refused:
        source_options({**MUST, name: "x"}, also=[Option("keyMode")])
    assert hint in str(refused.value)


@pytest.mark.parametrize(
    "ways",
    [{}, {"subscribe": "a", "subscribePattern": "a.*"}, {"subscribePattern": "a", "assign": '{"g0": ["a"]}'}],
)
def test_streams_are_named_in_exactly_one_way(ways: dict[str, str]) -> None:
    with pytest.raises(OptionError, match="exactly one of subscribe, subscribePattern and assign"):
        source_options({"url": MUST["gateway.urls"], **ways})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("subscribePattern", "("),
        ("assign", "a,b"),
        ("assign", '{"g7": ["a"]}'),
        ("assign", '{"g0": "a"}'),
    ],
)
def test_streams_named_wrongly_are_told_with_the_option(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=name):
        source_options({"url": MUST["gateway.urls"], name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("maxEntriesPerTrigger", "0"), ("maxEntriesPerTrigger", "-1"), ("fetchSize", "1e3"),
        ("pollTimeoutMs", "60001"), ("ordered", "yes"), ("onReset", "ignore"),
        ("maxTriggerDelay", "15 minutes"),
        ("fieldsFormat", "avro"), ("streamShard", "8/8"), ("streamShard", "1"), ("minPartitions", "10001"),
        ("startingOffsets", "first"), ("startingOffsets", "[]"), ("startingOffsets", '{"orders": "x"}'),
        ("startingTimestamp", "yesterday"), ("startingTimestamp", "-5"), ("endingOffsetsByTimestamp", "5"),
        ("relation", "topics"), ("onBadUtf8", "ignore"), ("dupFields", "all"), ("retryTimeoutMs", "1s"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_told_with_its_option(name: str, value: str) -> None:
    with pytest.raises(OptionError, match=name):
        read(**{name: value})


def test_what_is_before_the_first_slash_may_be_a_gateway() -> None:
    """If there is one of that name; else it is part of the stream's name, at every gateway."""
    urls = "g0=http://h:1,g1=http://h:2"
    found = read(**{"gateway.urls": urls, "subscribe": "a,eu/a,g1/b,g1/eu/b,g0/g1/c,g0"})
    assert found.named_at("g0") == ["a", "eu/a", "g1/c", "g0"]
    assert found.named_at("g1") == ["a", "eu/a", "b", "eu/b", "g0"]
    starts = read(startingOffsets='{"g0/eu/a": "1-0", "eu/a": "2-0"}').starting
    assert starts is not None
    assert [starts.of(gateway, "eu/a") for gateway in ("g0", "g1")] == ["1-0", "2-0"]


def test_gateways_have_stable_names() -> None:
    found = read(**{"gateway.urls": "g0=http://h:1, g1=http://h:2/base", "subscribe": "orders,g1/clicks"})
    assert [(one.name, one.url) for one in found.gateways] == [
        ("g0", "http://h:1"),
        ("g1", "http://h:2/base"),
    ]
    assert found.access("g1").url == "http://h:2/base"
    with pytest.raises(OptionError, match="no gateway named g2"):
        found.access("g2")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://u:hunter2@h:80", "password"), ("http://u:hunter2@h:80x", "port"),
        ("http://h:hunter2", "port"), ("http://h/?token=hunter2", "tokenFile"), ("http://h/#hunter2", "#"),
        ("u:hunter2@h", "http://"), ("ftp://hunter2", "http://"), ("http://:80/hunter2", "host"),
        ("http://h:99999/hunter2", "65535"), ("http://xn--a/hunter2", "name"), ("http://[hunter2", "host"),
    ],
)  # fmt: skip
def test_a_url_that_is_refused_is_not_shown(url: str, why: str) -> None:
    """It may hold a password, and errors travel in logs."""
    with pytest.raises(OptionError, match=r"gateway\.urls") as refused:
        read(**{"gateway.urls": f"g0={url}"})
    assert why in refused.value.sentence
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("urls", ["http://h:1,http://h:2", "g0=http://h:1,g0=http://h:2", "", "h"])
def test_gateways_without_name_or_url_are_refused(urls: str) -> None:
    with pytest.raises(OptionError, match=r"gateway\.urls"):
        read(**{"gateway.urls": urls})


class TestBounds:
    def test_an_id_is_taken_for_one_stream_and_the_others_begin_at_their_beginning(self) -> None:
        found = read(startingOffsets='{"orders": "170-5", "g0/b": "latest", "c": -2}').starting
        assert found is not None
        assert [found.of("g0", name) for name in ("orders", "b", "c", "d")] == [
            "170-5", "latest", "earliest", "earliest",
        ]  # fmt: skip
        assert found.of("g1", "b") == "earliest"

    def test_a_time_is_the_last_id_before_it_and_as_an_end_the_last_in_it(self) -> None:
        found = read(startingTimestamp="1000", endingTimestamp="1970-01-01T00:00:02Z")
        assert found.starting is not None
        assert found.starting.default == f"999-{(1 << 64) - 1}"
        assert found.ending.default == f"2000-{(1 << 64) - 1}"

    def test_a_time_without_zone_is_utc(self) -> None:
        assert read(endingTimestamp="1970-01-01T00:00:02").ending.default.startswith("2000-")

    def test_a_time_wins_over_times_by_stream_and_these_over_ids(self) -> None:
        by_stream = {"startingOffsetsByTimestamp": '{"orders": 5}', "startingOffsets": "latest"}
        found = read(**by_stream).starting
        assert found is not None
        assert found.of("g0", "orders").startswith("4-")
        found = read(**by_stream, startingTimestamp="9").starting
        assert found is not None
        assert found.of("g0", "orders").startswith("8-")

    def test_the_beginning_of_time_is_before_every_entry(self) -> None:
        found = read(startingTimestamp="0").starting
        assert found is not None
        assert found.default == "0-0"


def test_a_reset_is_survived_where_losses_are() -> None:
    assert read(failOnDataLoss="false").on_reset == "earliest"
    assert read(failOnDataLoss="false", onReset="fail").on_reset == "fail"
    assert read(onReset="latest").on_reset == "latest"


def test_a_delay_has_a_unit() -> None:
    texts = ("500", "500ms", "10s", "15m", "2h")
    assert [read(maxTriggerDelay=text).max_trigger_delay_ms for text in texts] == [
        500, 500, 10_000, 900_000, 7_200_000,
    ]  # fmt: skip
