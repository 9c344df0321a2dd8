"""Peers that stop reading, flood, or close while something comes for them."""

import contextlib
import itertools
import json
import struct
import threading
import time

import httpx
import pytest

from tests.app.sockets import Raw, masked, talking
from tests.app.websocket.group_calls import WORK, add, frames_of, pending, publish_megabytes, resident_bytes
from tests.server import Server
from tests.waiting import until


@pytest.mark.paired
def test_a_reader_that_stalls_is_gone_and_nobody_notices(impatient: Server) -> None:
    """With 4004, at no more than 2 MiB; the others get everything meanwhile. What never left for a stalled
    consumer goes back at once.
    """
    with (
        httpx.Client(base_url=impatient.url, timeout=30) as http,
        talking(impatient) as good,
        contextlib.ExitStack() as open_sockets,
    ):
        publish_megabytes(http, 4)
        good.ask("subscribe", sub="t", streams={"s": "$"})
        assert good.next()["op"] == "caught_up"
        stalled = [open_sockets.enter_context(Raw(impatient.port, receive_bytes=64 << 10)) for _ in range(10)]
        before = resident_bytes(impatient)
        began = time.monotonic()
        for number, raw in enumerate(stalled):
            raw.handshake()
            if number:
                raw.send("subscribe", sub="t", streams={"s": "0"})
            else:
                raw.send("consume", sub="w", consumer="c", credit=1_000, batch_max=20, **WORK)
        latency_s = []
        grown = 0
        while time.monotonic() - began < 2:
            sent = time.monotonic()
            add(http, "s", 1)
            good.entries(1)
            latency_s.append(time.monotonic() - sent)
            grown = max(grown, resident_bytes(impatient) - before)
            time.sleep(0.05)
        assert grown < len(stalled) * (2 << 20)
        assert sorted(latency_s)[len(latency_s) * 99 // 100] < 0.25
        held = len(pending(http))
        assert held
        until(lambda: len([1 for owner, _ in pending(http) if owner is None]) > 0, "given back")
        owned = [count for owner, count in pending(http) if owner == "c"]
        released = [count for owner, count in pending(http) if owner is None]
        assert set(owned) <= {1}
        assert set(released) == {0}
        codes = {raw.close_code() for raw in stalled}
        assert codes <= {4004, -1}


@pytest.mark.alone
@pytest.mark.parametrize(
    "flood",
    [masked(0x9, b"x" * 20), masked(0xA, b""), masked(0x0, b"", fin=False), masked(0x0, b" ", fin=False)],
    ids=["pings", "pongs", "empty fragments", "fragments of a byte"],
)
def test_a_flood_ends_and_nobody_notices(patient: Server, flood: bytes) -> None:
    """4005 for who floods; others are answered in time, and memory stays where it is."""
    before = resident_bytes(patient)
    with Raw(patient.port) as raw, httpx.Client(base_url=patient.url) as http:
        raw.handshake()
        raw.write(0x1, b"{", fin=False)
        ended = threading.Event()

        def pour() -> None:
            try:
                while not ended.is_set():
                    raw.socket.sendall(flood * 4_096)
            except OSError:
                pass
            ended.set()

        pouring = threading.Thread(target=pour)
        pouring.start()
        latency_s = []
        for _ in range(100):
            began = time.monotonic()
            assert http.get("/healthz/live").status_code == 200
            latency_s.append(time.monotonic() - began)
        assert ended.wait(15), "the flood was let go on"
        pouring.join()
        assert sorted(latency_s)[98] < 0.25
        assert raw.close_code() in (4005, -1)
    assert resident_bytes(patient) - before < 32 << 20


def test_entries_for_a_stalled_socket_do_not_gather(patient: Server) -> None:
    """Many of its consumers waited for entries when it stopped reading: a few are given theirs, the others'
    go back. Once it reads again everything comes, once.
    """
    value = "x" * 900_000
    streams = [f"s{number}" for number in range(20)]
    with httpx.Client(base_url=patient.url, timeout=30) as http, Raw(patient.port, 4 << 10) as raw:
        raw.handshake()
        for stream in streams:
            raw.send("consume", sub=stream, consumer="c", **WORK | {"stream": stream})
            next(frames_of(raw, "caught_up"))
        raw.send("subscribe", sub="t", streams={"t": "$"})
        next(frames_of(raw, "caught_up"))
        for _ in range(5):
            add(http, "t", value)
        ids = [(stream, *add(http, stream, value)) for stream in streams]

        def owners() -> list[str | None]:
            found = [http.get(f"/v1/streams/{stream}/groups/g/pending?count=9").json() for stream in streams]
            return [row["consumer"] for one in found for row in one["pending"]]

        until(lambda: len(owners()) == len(streams) and owners().count("c") <= 2, "given back", 5)
        got = itertools.islice(frames_of(raw, "entries"), 5 + len(streams))
        seen = [(one["sub"], entry["id"]) for one in got for entry in one["entries"] if one["sub"] != "t"]
        assert sorted(seen) == sorted(ids)


@pytest.mark.paired
def test_history_for_a_stalled_socket_does_not_gather(patient: Server) -> None:
    """However many subscriptions begin with it at once; once the socket reads, each gets all of it."""
    count = 60
    with httpx.Client(base_url=patient.url, timeout=30) as http, Raw(patient.port, 4 << 10) as raw:
        for _ in range(2):
            add(http, "s", "x" * 900_000)
        raw.handshake()
        before = resident_bytes(patient)
        subs = [f"t{number}" for number in range(count)]
        wanted = [{"op": "subscribe", "sub": sub, "streams": {"s": "0"}} for sub in subs]
        raw.socket.sendall(b"".join(masked(0x1, json.dumps(one).encode()) for one in wanted))
        time.sleep(2)
        assert resident_bytes(patient) - before < 12 << 20
        got = itertools.islice(frames_of(raw, "entries"), 2 * count)
        seen = [one["sub"] for one in got for _ in one["entries"]]
        assert sorted(seen) == sorted(2 * subs)


def test_what_meets_a_close_goes_back(server: Server, http: httpx.Client) -> None:
    """A consumer says goodbye while an entry comes for it: what it has not seen is the group's again, as if
    it had never been delivered.
    """
    unseen = []
    with Raw(server.port) as publisher:
        publisher.handshake()
        for number in range(10):
            stream = f"s{number}"
            with Raw(server.port) as raw:
                raw.handshake()
                raw.send("consume", sub="w", consumer="c", **WORK | {"stream": stream})
                while b'"caught_up"' not in raw.read()[1]:
                    pass
                publisher.send("publish", ref=1, stream=stream, fields={"n": 1})
                raw.write(0x8, struct.pack(">H", 1000))
                while (frame := raw.read())[0] == 0x1 and b'"entries"' not in frame[1]:
                    pass
                while b'"ok"' not in publisher.read()[1]:
                    pass
                if frame[0] != 0x1:
                    unseen.append(stream)
    assert unseen, "every entry was faster than the close that came with it"

    def rows() -> list[tuple[str | None, int]]:
        found = [http.get(f"/v1/streams/{stream}/groups/g/pending?count=9").json() for stream in unseen]
        return [(row["consumer"], row["delivery_count"]) for one in found for row in one["pending"]]

    until(lambda: ("c", 1) not in rows(), "given back")
    assert set(rows()) <= {(None, 0)}


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        (b"\x81\xff" + struct.pack(">Q", 50 << 20) + bytes(4), 1009),
        (masked(0x1, b"\xff\xfe"), 1007),
        (masked(0x9) * 3_000, 4005),
    ],
    ids=["too long", "not UTF-8", "a flood"],
)
def test_what_comes_behind_our_close_goes_back(
    server: Server, http: httpx.Client, ending: bytes, code: int
) -> None:
    """The peer was sent a close frame, and stays: new entries are not kept for it."""
    with Raw(server.port) as raw:
        raw.handshake()
        raw.send("consume", sub="w", consumer="c", **WORK)
        while b'"caught_up"' not in raw.read()[1]:
            pass
        raw.socket.sendall(ending)
        assert raw.close_code() == code
        add(http, "s", *range(5))
        add(http, "s", *range(5))
        until(lambda: ("c", 1) not in pending(http), "given back at once", 1.5)
        assert set(pending(http)) <= {(None, 0)}
