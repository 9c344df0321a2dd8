"""The end of a stream in a gateway of several processes: readers of each front end with it."""

import contextlib
import http.client
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fronts.processes import CONNECTIONS, Fronted
from tests.server import call


def test_readers_of_all_fronts_end_with_a_stream(tmp_path: Path) -> None:
    """Tails and long-polls over connections of their own; what was closed stays so over a kill of all."""
    with Fronted(tmp_path / "data", "--fsync", "always") as server:
        add = {"id": "5-0", "fields": {"n": "1"}}
        assert call(server, "POST", "/v1/streams/s/entries", add)[0] == 201

        def tail(_: int) -> str:
            address = ("127.0.0.1", server.port)
            with contextlib.closing(http.client.HTTPConnection(*address, timeout=30)) as line:
                line.request("GET", "/v1/streams/s/tail?after=0")
                return line.getresponse().read().decode()

        def poll(_: int) -> object:
            return call(server, "GET", "/v1/streams/s/entries?after=5-0&wait=20000")[1]

        with ThreadPoolExecutor(2 * CONNECTIONS) as pool:
            tails = [pool.submit(tail, number) for number in range(CONNECTIONS)]
            polls = [pool.submit(poll, number) for number in range(CONNECTIONS)]
            last = {"reason": "done", "entry": {"id": "5-1", "fields": {"n": "2"}}}
            assert call(server, "POST", "/v1/streams/s/close", last)[0] == 200
            ends = [one.result(30) for one in tails]
            pages = [json.dumps(one.result(30)) for one in polls]
        assert all('"id":"5-1"' in one and "event: closed\n" in one for one in ends)
        assert all('"5-1"' in one and '"closed": true' in one for one in pages)
        server.kill_all()
        server.start()
        status, problem = call(server, "POST", "/v1/streams/s/entries", {"fields": {"n": "3"}})
        assert (status, problem["code"]) == (409, "stream_closed")
