"""Entries for later on a socket: the members are those of the query in HTTP."""

import httpx

from tests.app.sockets import SocketClient


def schedules(http: httpx.Client) -> list[str]:
    return [one["name"] for one in http.get("/v1/streams/s/schedules").json()["schedules"]]


def test_a_publish_with_a_delay_is_answered_with_its_schedules(
    client: SocketClient, http: httpx.Client
) -> None:
    entries = [{"fields": {"n": "1"}}, {"fields": {"n": "2"}}]
    answer = client.ask("publish", stream="s", entries=entries, delay_ms=60_000)
    assert (answer["op"], answer["count"], answer["duplicate"]) == ("ok", 2, False)
    assert schedules(http) == sorted(one["schedule"] for one in answer["scheduled"])


def test_a_publish_cancels_what_it_takes_the_place_of(client: SocketClient, http: httpx.Client) -> None:
    client.ask("publish", stream="s", fields={"n": "1"}, deliver_at="2035-01-01T00:00:00Z", schedule="a")
    assert schedules(http) == ["a"]
    instead = {"stream": "s", "fields": {"n": "2"}, "cancel_schedule": "a", "required": True}
    assert client.ask("publish", **instead)["cancelled"] is True
    assert client.ask("publish", **instead)["problem"]["code"] == "schedule_gone"
    assert schedules(http) == []


def test_a_delay_is_a_number(client: SocketClient) -> None:
    answer = client.ask(
        "publish", stream="s", fields={"n": "1"}, delay_ms=1, deliver_at="2035-01-01T00:00:00Z"
    )
    assert answer["problem"]["code"] == "invalid"


def test_of_the_entries_of_a_publish_some_are_for_later(client: SocketClient, http: httpx.Client) -> None:
    entries = [{"fields": {"n": "1"}}, {"fields": {"n": "2"}, "delay_ms": 60_000, "schedule": "a"}]
    answer = client.ask("publish", stream="s", entries=entries)
    assert (answer["op"], answer["count"], len(answer["ids"])) == ("ok", 1, 1)
    assert [(one["index"], one["schedule"]) for one in answer["scheduled"]] == [(1, "a")]
    assert schedules(http) == ["a"]
