"""Streams are mirrored: filtered, changed, routed; each entry once, however often a batch runs."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pyspark_weir.errors import OptionError
from pyspark_weir.gateway import GatewayAccess, GatewayClient, of_stream
from pyspark_weir.jobs.mirror import Mirror, Targets, query
from tests.server import Server


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayClient]:
    with (
        Server(tmp_path / "mirrored", "--fsync", "always") as server,
        GatewayClient(GatewayAccess("g0", server.url)) as opened,
    ):
        yield opened


def publish(gateway: GatewayClient, stream: str, entries: list[dict[str, Any]]) -> None:
    gateway.post(f"{of_stream(stream)}/entries", {"entries": entries})


def entries(gateway: GatewayClient, stream: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = gateway.get(f"{of_stream(stream)}/entries", {"count": 10_000})["entries"]
    return found


def run(spark: SparkSession, asked: Mirror) -> None:
    writer = query(spark, asked).option("checkpointLocation", asked.checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


def source(gateway: GatewayClient, **more: str) -> dict[str, str]:
    return {"gateway.urls": gateway.access.url, "startingOffsets": "earliest", **more}


def test_a_mirror_keeps_order_ids_and_bytes(
    spark: SparkSession, gateway: GatewayClient, own_server: Server, checkpoint: str
) -> None:
    """At another gateway; the last batch of the first run runs again, and more tasks are asked for."""
    raw = {"fields": [["a", "/w=="], ["a", "MQ=="]], "encoding": "base64"}
    publish(gateway, "a", [*({"fields": {"n": str(n)}} for n in range(500)), raw])
    publish(gateway, "b", [{"fields": {"n": str(n)}} for n in range(300)])
    target = GatewayAccess("other", own_server.url)
    asked = Mirror(
        checkpoint, source(gateway, subscribe="a,b", maxEntriesPerTrigger="400"), target, keep_ids=True
    )
    run(spark, asked)
    last = max(int(one.name) for one in (Path(checkpoint) / "commits").iterdir() if one.name.isdigit())
    assert last > 0
    (Path(checkpoint) / "commits" / str(last)).unlink()
    publish(gateway, "a", [{"fields": {"n": "500"}}])
    run(spark, Mirror(checkpoint, asked.source, target, keep_ids=True, tasks=5))
    with GatewayClient(target) as there:
        for stream in ("a", "b"):
            assert entries(there, stream) == entries(gateway, stream)


def test_a_mirror_begins_with_the_earliest_entry(
    spark: SparkSession, gateway: GatewayClient, checkpoint: str
) -> None:
    """A stream's reader begins with the latest, as Kafka's; a job that mirrors streams sends all of them."""
    publish(gateway, "whole", [{"fields": {"n": "1"}}])
    given = {"gateway.urls": gateway.access.url, "subscribe": "whole"}
    run(spark, Mirror(checkpoint, given, gateway.access, Targets.parse(["copy.whole"])))
    assert [one["fields"] for one in entries(gateway, "copy.whole")] == [{"n": "1"}]


def test_a_checkpoint_that_is_gone_is_refused(
    spark: SparkSession, gateway: GatewayClient, checkpoint: str
) -> None:
    """All of it would be sent again; where it says to begin, each entry is sent once."""
    publish(gateway, "gone", [{"fields": {"n": str(n)}} for n in range(3)])
    given = {"gateway.urls": gateway.access.url, "subscribe": "gone"}
    asked = Mirror(checkpoint, given, gateway.access, Targets.parse(["copy.gone"]))
    run(spark, asked)
    last = entries(gateway, "gone")[-1]["id"]
    shutil.rmtree(checkpoint)
    publish(gateway, "gone", [{"fields": {"n": "3"}}])
    with pytest.raises(OptionError, match=r"copy\.gone .* has had entries, .* --source startingOffsets="):
        run(spark, asked)
    assert not Path(checkpoint).exists()
    run(spark, replace(asked, source={**given, "startingOffsets": json.dumps({"gone": last})}))
    assert [one["fields"]["n"] for one in entries(gateway, "copy.gone")] == ["0", "1", "2", "3"]


def test_entries_are_chosen_changed_and_routed(
    spark: SparkSession, gateway: GatewayClient, checkpoint: str
) -> None:
    """By SQL over their fields; the rest of an entry stays as it was."""
    publish(
        gateway,
        "log",
        [
            {"fields": {"level": level, "text": f"t{n}", "secret": "x"}}
            for n, level in enumerate(("error", "info", "warning", "error"))
        ],
    )
    asked = Mirror(
        checkpoint,
        source(gateway, subscribe="log"),
        gateway.access,
        where="fields['level'] <> 'info'",
        route="concat('level.', fields['level'])",
        set_fields={"text": "upper(fields['text'])", "missing": "fields['nowhere']"},
        drop_fields=("secret",),
        orig_field="from",
    )
    run(spark, asked)
    ids = [one["id"] for one in entries(gateway, "log")]
    assert [one["fields"] for one in entries(gateway, "level.error")] == [
        {"level": "error", "text": "T0", "from": ids[0]},
        {"level": "error", "text": "T3", "from": ids[3]},
    ]
    assert [one["fields"]["text"] for one in entries(gateway, "level.warning")] == ["T2"]
    assert gateway.get("/v1/streams/log")["length"] == 4


def test_a_mirror_does_not_change_while_it_runs(
    spark: SparkSession, gateway: GatewayClient, checkpoint: str
) -> None:
    """A batch that runs again would hold other entries than what the target has of it."""
    publish(gateway, "fixed", [{"fields": {"n": "1"}}])
    given = source(gateway, subscribe="fixed")
    run(spark, Mirror(checkpoint, given, gateway.access, Targets.parse(["copy"])))
    with pytest.raises(OptionError, match="a mirror with another where"):
        run(spark, Mirror(checkpoint, given, gateway.access, Targets.parse(["copy"]), where="true"))


def test_a_pattern_that_takes_the_copies_too_sends_nothing(
    spark: SparkSession, gateway: GatewayClient, checkpoint: str
) -> None:
    """Which streams there are is known when a batch begins; the copies would be copied for ever."""
    publish(gateway, "the-orders", [{"fields": {"n": "1"}}])
    given = source(gateway, subscribePattern=".*-orders")
    with pytest.raises(StreamingQueryException, match="a stream would go to itself"):
        run(spark, Mirror(checkpoint, given, gateway.access, Targets.parse(["copy.{stream}"])))
    assert [one["name"] for one in gateway.list_streams()] == ["the-orders"]


def test_what_cannot_be_mirrored_is_refused(
    spark: SparkSession, gateway: GatewayClient, checkpoint: str
) -> None:
    """A stream into itself, and an expression that is none."""
    with pytest.raises(OptionError, match="would go to itself"):
        query(spark, Mirror(checkpoint, source(gateway, subscribe="s"), gateway.access))
    wrong = Mirror(
        checkpoint, source(gateway, subscribe="s"), gateway.access, Targets.parse(["x"]), where="fields[["
    )
    with pytest.raises(OptionError, match="does not understand"):
        query(spark, wrong)
