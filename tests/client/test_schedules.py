"""The Python client and its command line with entries for later."""

import time

import pytest

from tests.cli.command import weir
from weir import ApiError, Client, TimedEntry


def test_an_entry_comes_after_its_delay(url: str, stream: str) -> None:
    with Client(url) as client:
        given = client.publish_later(stream, {"n": 1}, delay_ms=20)
        assert given["schedule"].startswith("sch_")
        page = client.read_after(stream, "0", wait_ms=5_000)
        assert [entry.fields for entry in page.entries] == [{"n": "1"}]
        client.publish_later(stream, {"n": 2}, delay_ms=60_000, name="a")
        client.publish_later(stream, {"n": 3}, delay_ms=60_000, name="a")
        (one,) = client.list_schedules(stream)
        assert (one["name"], one["entry"]["fields"]) == ("a", {"n": "3"})


def test_of_a_batch_some_come_later(url: str, stream: str) -> None:
    with Client(url) as client:
        now: TimedEntry = {"fields": {"n": 1}}
        rows: list[TimedEntry] = [now, {"fields": {"n": b"\xff"}, "delay_ms": 60_000, "schedule": "a"}, now]
        given = client.publish_timed(stream, rows)
        assert given["ids"] == [entry.id for entry in client.entries(stream)]
        assert [(one["index"], one["schedule"]) for one in given["scheduled"]] == [(1, "a")]
        given = client.publish_timed(stream, [{"fields": {"n": 4}, "deliver_at": "2035-01-01T00:00:00Z"}])
        assert (given["ids"], len(given["scheduled"])) == ([], 1)


def test_a_schedule_set_at_each_start_keeps_its_time(url: str, stream: str) -> None:
    with Client(url) as client:
        first = client.schedule(stream, "nightly", {"n": 1}, cron="30 2 * * *", tz="Europe/Berlin")
        time.sleep(0.01)
        assert client.schedule(stream, "nightly", {"n": 1}, cron="30 2 * * *", tz="Europe/Berlin") == first
        assert client.get_schedule(stream, "nightly") == first
        with pytest.raises(ApiError) as refused:
            client.schedule(stream, "nightly", {"n": 1}, only_new=True, in_ms=1)
        assert refused.value.code == "schedule_exists"
        assert len(client.fire_schedule(stream, "nightly").ids) == 1
        assert client.cancel_schedule(stream, "nightly") is True
        assert client.cancel_schedule(stream, "nightly") is False
        assert client.get_schedule(stream, "nightly") is None


def test_a_schedule_is_paused_and_resumed(url: str, stream: str) -> None:
    with Client(url) as client:
        first = client.schedule(stream, "nightly", {"n": 1}, cron="@daily")
        assert client.pause_schedule(stream, "nightly")["next_at"] is None
        until = client.pause_schedule(stream, "nightly", until="2035-01-01T12:00:00Z")
        assert (until["paused_until"], until["next_at"]) == (
            "2035-01-01T12:00:00.000Z", "2035-01-02T00:00:00.000Z",
        )  # fmt: skip
        assert client.resume_schedule(stream, "nightly") == first
        assert client.schedule(stream, "nightly", {"n": 1}, cron="@daily", paused=True)["paused"] is True


def test_the_command_line_pauses_and_resumes(url: str, stream: str) -> None:
    """A pause is in the list; what goes with nothing is refused before anything is asked."""
    weir(url, "schedule", stream, "tick", "n=1", "--every", "90s")
    assert weir(url, "schedules", stream, "--pause", "tick").out == "paused until it is resumed\n"
    assert "every 90s, paused" in weir(url, "schedules", stream).out
    said = weir(url, "schedules", stream, "--pause", "tick", "--until", "2035-01-01T00:00:00Z")
    assert said.out.startswith("next at 2035-01-01T00:0")
    assert "paused until 2035-01-01T00:00:00.000Z" in weir(url, "schedules", stream).out
    assert weir(url, "schedules", stream, "--resume", "tick").out.startswith("next at 20")
    for wrong in (["--until", "2035-01-01T00:00:00Z"], ["--pause", "tick", "--resume", "tick"]):
        assert weir(url, "schedules", stream, *wrong).code == 2


def test_the_schedules_of_all_streams_are_listed(url: str, stream: str) -> None:
    """By the client and by the command line, where no stream is named; what needs one says so."""
    with Client(url) as client:
        for number, name in enumerate(("b", "a")):
            client.schedule(stream + name, "x", {"n": 1}, at=f"2034-01-0{number + 1}T00:00:00Z")
        mine = [one["stream"] for one in client.list_all_schedules() if one["stream"].startswith(stream)]
        assert mine == [stream + "b", stream + "a"]
    listed = weir(url, "schedules", "--json")
    assert [one["stream"] for one in listed.objects if one["stream"].startswith(stream)] == mine
    assert weir(url, "schedules").out.split()[:2] == ["stream", "name"]
    for wrong in (["--by", "name"], ["--cancel", "x"]):
        assert weir(url, "schedules", *wrong).code == 2


def test_a_publish_cancels_in_the_same_step(url: str, stream: str) -> None:
    with Client(url) as client:
        client.schedule(stream, "timeout", {"n": 1}, in_ms=60_000)
        client.publish(stream, {"paid": 1}, cancel_schedule="timeout", required=True)
        with pytest.raises(ApiError) as refused:
            client.publish(stream, {"paid": 1}, cancel_schedule="timeout", required=True)
        assert refused.value.code == "schedule_gone"
        assert list(client.list_schedules(stream, by="name")) == []


def test_the_command_line_sets_lists_fires_and_cancels(url: str, stream: str) -> None:
    said = weir(url, "schedule", stream, "tick", "n=1", "--every", "1m", "--count", "3")
    assert said.out.startswith("next at ")
    assert weir(url, "schedule", stream, "tick", "n=1", "--every", "1m", "--count", "3").out == said.out
    listed = weir(url, "schedules", stream).out
    assert "tick" in listed
    assert "every 1m" in listed
    assert weir(url, "schedules", stream, "--fire", "tick").out.strip().endswith("-0")
    assert weir(url, "schedules", stream, "--cancel", "tick").code == 0
    gone = weir(url, "schedules", stream, "--cancel", "tick")
    assert (gone.code, "has no schedule 'tick'" in gone.err) == (1, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--at, --in, --every, --cron"),
        (["--in", "1m", "--every", "1m"], "--at, --in, --every, --cron"),
        (["--every", "1m", "--tz", "Europe/Berlin"], "--tz"),
    ],
)
def test_the_command_line_names_its_own_options(url: str, stream: str, words: list[str], said: str) -> None:
    """Not the members that the API has; and nothing is scheduled."""
    refused = weir(url, "schedule", stream, "tick", "n=1", *words)
    assert (refused.code, said in refused.err) == (2, True)
    with Client(url) as client:
        assert [one["name"] for one in client.list_streams(prefix=stream)] == []
