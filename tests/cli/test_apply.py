"""`weir apply`: what a file says is there afterwards, and a second time changes nothing."""

from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import weir
from tests.waiting import until
from weir import Client
from weir.paths import group_path

FILE = """
prefix = "PREFIX"

[streams."PREFIX/orders"]
retention = {max_age = "7d", max_bytes = "2g", keep_unarchived = false}

[streams."PREFIX/orders".groups.billing]
ack_timeout = "30s"
dead_letter = {stream = "PREFIX/orders:dead", max_deliveries = 5}

[streams."PREFIX/orders".groups.audit]
start = "$"
max_age = "1d"

[streams."PREFIX/orders".schedules.nightly]
cron = "30 2 * * *"
tz = "Europe/Berlin"
until = 2035-01-01T00:00:00+01:00
missed = "once"
fields = {job = "report", of = "ü"}

[streams."PREFIX/orders".schedules.over]
at = 2020-01-01T00:00:00Z
fields = {job = "long ago"}

[streams."PREFIX/jobs"]
retention = {acknowledged = true}

[streams."PREFIX/jobs".schedules.tick]
every = "1h"
expires_in = "10m"
missed = "skip"
fields = {job = "tick"}

[streams."PREFIX/bare"]
"""


@pytest.fixture
def file(tmp_path: Path, stream: str) -> Path:
    found = tmp_path / "streams.toml"
    found.write_text(FILE.replace("PREFIX", stream))
    return found


def state(url: str, stream: str) -> dict[str, Any]:
    """All that a file can say, and how often a group or schedule was made anew."""
    with Client(url) as client:
        return {
            one["name"].removeprefix(stream): (
                one["generation"],
                one["retention"],
                list(client.list_groups(one["name"])),
                list(client.list_schedules(one["name"])),
            )
            for one in client.list_streams(prefix=stream)
        }


def test_a_file_is_applied_once(url: str, stream: str, file: Path) -> None:
    shown = weir(url, "apply", str(file), "--diff")
    assert shown.code == 1
    assert state(url, stream) == {}
    done = weir(url, "apply", str(file))
    assert (done.code, done.out, done.err) == (0, shown.out, "")
    assert len(done.lines) == 7
    applied = state(url, stream)
    again = weir(url, "apply", str(file), "--prune")
    assert (again.code, again.out) == (0, "nothing to change\n")
    assert weir(url, "apply", str(file), "--diff", "--json").lines == []
    assert state(url, stream) == applied
    _, retention, groups, schedules = applied["/orders"]
    assert (retention["max_age_ms"], retention["max_bytes"]) == (7 * 86_400_000, 2 << 30)
    assert [(one["name"], one["ack_timeout_ms"], one["max_age_ms"]) for one in groups] == [
        ("audit", None, 86_400_000),
        ("billing", 30_000, None),
    ]
    assert groups[1]["dead_letter"] == {"stream": f"{stream}/orders:dead", "max_deliveries": 5}
    assert [(one["name"], one["tz"], one["entry"]["fields"]) for one in schedules] == [
        ("nightly", "Europe/Berlin", {"job": "report", "of": "ü"})
    ]
    _, retention, _, (tick,) = applied["/jobs"]
    assert (retention["max_len"], retention["keep_unacknowledged"]) == (0, True)
    assert (tick["every_ms"], tick["expires_in_ms"], tick["missed"]) == (3_600_000, 600_000, "skip")


def test_what_was_changed_elsewhere_is_set_back(url: str, stream: str, file: Path) -> None:
    """Positions stay; what the file leaves out of a policy is off, and a stream's retention as it is."""
    weir(url, "apply", str(file))
    with Client(url) as client:
        orders = f"{stream}/orders"
        client.update_stream(orders, retention={"max_age_ms": None, "keep_unarchived": True})
        client.update_stream(f"{stream}/bare", retention={"max_len": 5})
        policy = {"ack_timeout_ms": 5, "max_age_ms": 7}
        client.call("PATCH", group_path(orders, "billing"), body=policy)
        client.schedule(orders, "nightly", {"job": "other"}, cron="30 2 * * *", tz="Europe/Berlin")
        before = {name: found[0] for name, found in state(url, stream).items()}
        # What is kept no more might go by size.
        done = weir(url, "apply", str(file), "--json", "--yes")
        assert [one["change"].partition(stream)[0] for one in done.objects] == [
            'set the retention of "',
            'set the group billing of "',
            'set the schedule nightly of "',
        ]
        assert "max_age - → 7d, keep_unarchived yes → no" in done.objects[0]["change"]
        assert "ack_timeout 5ms → 30s, max_age 7ms → -" in done.objects[1]["change"]
        assert weir(url, "apply", str(file)).out == "nothing to change\n"
        assert {name: found[0] for name, found in state(url, stream).items()} == before


def test_what_would_remove_entries_is_asked_for(url: str, stream: str, tmp_path: Path) -> None:
    file = tmp_path / "streams.toml"
    file.write_text(f'[streams."{stream}"]\nretention = {{max_len = 1}}\n')
    with Client(url) as client:
        client.publish_batch(stream, [{"n": 1}, {"n": 2}, {"n": 3}])
        shown = weir(url, "apply", str(file), "--diff", "--json")
        assert [one["lost"] for one in shown.objects] == ["remove 2 entries at once"]
        refused = weir(url, "apply", str(file))
        assert refused.code == 2
        assert "remove 2 entries at once" in refused.err
        assert len(list(client.entries(stream))) == 3
        assert weir(url, "apply", str(file), "--yes").code == 0
        until(lambda: len(list(client.entries(stream))) == 1, "limits are kept within a second or two")


def test_pruning_deletes_what_is_not_named_and_asks(url: str, stream: str, file: Path) -> None:
    """Under the prefix alone; streams of dead letters are named by their groups."""
    weir(url, "apply", str(file))
    with Client(url) as client:
        before = state(url, stream)
        orders = f"{stream}/orders"
        client.publish(f"{stream}/orders:dead", {"n": 1})
        client.publish(f"{stream}/old", {"n": 1})
        client.schedule(f"{stream}/old", "x", {"n": 1}, in_ms=3_600_000)
        client.publish(orders, {"n": 1})
        client.group(orders, "extra").ensure(start="0")
        client.group(orders, "extra").read("c")
        client.schedule(orders, "extra", {"n": 1}, every_ms=3_600_000)
        outside = f"outside {stream}"
        client.publish(outside, {"n": 1})
        assert weir(url, "apply", str(file)).out == "nothing to change\n"
        refused = weir(url, "apply", str(file), "--prune")
        assert refused.code == 2
        for lost in (
            '/old" with 1 entry, 0 groups',
            "group extra of",
            "1 pending entry",
            "schedule extra of",
        ):
            assert lost in refused.err, refused.err
        assert client.get_stream(f"{stream}/old") is not None
        assert len(weir(url, "apply", str(file), "--prune", "--yes").lines) == 3
        left = state(url, stream)
        assert left.pop("/orders:dead")
        assert [(name, found[0], found[3]) for name, found in left.items()] == [
            (name, found[0], found[3]) for name, found in before.items()
        ]
        assert client.get_stream(outside) is not None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[streams", "Expected"),
        ("[stream.a]", "stream: unknown; there are prefix, streams"),
        ("streams = 1", "streams: a table is wanted"),
        ('[streams."a//b"]', "not a stream name"),
        ('prefix = "x"\n[streams.a]', "streams.a: its name does not begin with"),
        (
            "[streams.a]\nretention = {max_length = 1}",
            "streams.a.retention.max_length: unknown; there are max_len",
        ),
        (
            "[streams.a]\nretention = {max_len = true}",
            "streams.a.retention.max_len: a whole number is wanted",
        ),
        ("[streams.a]\nretention = {max_len = -1}", "streams.a.retention.max_len: it is at least 0"),
        ("[streams.a]\nretention = {max_bytes = '1 GB'}", "no size such as 64kb"),
        ("[streams.a]\nretention = {acknowledged = true, keep_unacknowledged = false}", "keeps what is"),
        ("[streams.a.groups.g]\nack_timeout = '5'", "streams.a.groups.g.ack_timeout: '5' is no duration"),
        ("[streams.a.groups.g]\nack_timeout = 5", "streams.a.groups.g.ack_timeout: a text is wanted"),
        ("[streams.a.groups.g]\ndead_letter = {max_deliveries = 1}", "dead_letter: it names a stream"),
        ("[streams.a.schedules.s]\ncron = '* * * * *'", "streams.a.schedules.s: fields are wanted"),
        ("[streams.a.schedules.s]\nfields = {a = 'b'}", "one of at, every and cron"),
        ("[streams.a.schedules.s]\nfields = {}\nevery = '1m'", "at least one field"),
        ("[streams.a.schedules.s]\nfields = {a = 1}\nevery = '1m'", "schedules.s.fields.a: a text is wanted"),
        ("[streams.a.schedules.s]\nfields = {a = 'b'}\nevery = '1m'\ntz = 'UTC'", "tz is for cron alone"),
        ("[streams.a.schedules.s]\nfields = {a = 'b'}\nat = 2035-01-01T00:00:00", "a time has a zone"),
        ("[streams.a.schedules.s]\nfields = {a = 'b'}\nin = '1m'", "schedules.s.in: unknown"),
    ],
)
def test_a_file_that_is_wrong_changes_nothing(url: str, tmp_path: Path, text: str, sentence: str) -> None:
    """The sentence names the place."""
    file = tmp_path / "streams.toml"
    file.write_text(f"[streams.'never made']\n{text}\n" if text.startswith("[streams.") else text)
    done = weir(url, "apply", str(file))
    assert done.code == 2
    assert sentence in " ".join(done.err.split()), done.err
    with Client(url) as client:
        assert client.get_stream("never made") is None


def test_what_the_gateway_refuses_is_said_with_what_was_done(url: str, stream: str, tmp_path: Path) -> None:
    """What came before it stays, and the next time goes on."""
    file = tmp_path / "streams.toml"
    file.write_text(f'[streams."{stream}".schedules.s]\ncron = "61 * * * *"\nfields = {{a = "b"}}\n')
    done = weir(url, "apply", str(file))
    assert done.code == 1
    assert done.lines == [f'create the stream "{stream}"']
    assert "cron" in done.err
    missing = weir(url, "apply", str(tmp_path / "none.toml"))
    assert (missing.code, "No such file" in missing.err) == (2, True)
