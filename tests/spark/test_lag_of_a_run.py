"""What is left after a batch is the gateway's own count, and a group shows there how far a run has come."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import httpx
import pytest

from pyspark_weir.gateway import GatewayAccess
from pyspark_weir.offsets import Position
from pyspark_weir.progress import BatchProgress, LagReporter, StreamLag
from tests.server import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("gateway") / "weir-data") as server:
        for stream in ("a", "b"):
            entries = [{"id": f"{one}-0", "fields": {"n": str(one)}} for one in range(1, 11)]
            httpx.post(f"{server.url}/v1/publish", json={"streams": {stream: entries}}).raise_for_status()
        yield server


def _batch(rows: int = 3, **ends: str) -> BatchProgress:
    places = {f"g0/{stream}": Position(last, "gen") for stream, last in ends.items()}
    return BatchProgress(query="q", batch=0, rows=rows, duration_ms=1, time="", ends=places)


def _group(server: Server, stream: str, group: str) -> httpx.Response:
    return httpx.get(f"{server.url}/v1/streams/{stream}/groups/{group}")


def test_what_is_left_is_counted_over_all_streams(server: Server) -> None:
    """A stream that does not exist yet holds nothing."""
    with LagReporter((GatewayAccess("g0", server.url),)) as lag:
        assert lag.report(_batch(a="3-0", b="10-0")).left == 7
        assert lag.report(_batch(a="0-0", b="0-0", later="0-0")).left == 20


def test_each_stream_has_its_lag(server: Server) -> None:
    """In entries, as a group's in the API, and in ms between the first of them and the last."""
    with LagReporter((GatewayAccess("g0", server.url),)) as lag:
        found = lag.report(_batch(a="3-0", b="10-0", later="0-0")).lag
        assert found == {"g0/a": StreamLag(7, 6), "g0/b": StreamLag(0, 0)}
        assert lag.known == found, "for the summary"


def test_a_mirror_group_shows_how_far_a_run_has_come(server: Server) -> None:
    """Made where it is missing, with the lag that the run has."""
    with LagReporter((GatewayAccess("g0", server.url),), "spark") as lag:
        lag.report(_batch(a="4-0", later="0-0"))
        group = _group(server, "a", "spark").json()
        assert (group["last_delivered_id"], group["lag"]) == ("4-0", 6)
        lag.report(_batch(a="9-0"))
        group = _group(server, "a", "spark").json()
        assert (group["last_delivered_id"], group["lag"]) == ("9-0", 1)
    assert _group(server, "b", "spark").status_code == 404
    assert httpx.get(f"{server.url}/v1/streams/later").status_code == 404, "no stream is made for it"


def test_more_streams_than_a_call_may_name_are_counted(server: Server) -> None:
    """In as many calls as it takes."""
    many = {f"none{number}": "0-0" for number in range(1_500)}
    with LagReporter((GatewayAccess("g0", server.url),)) as lag:
        assert lag.report(_batch(3, a="3-0", b="10-0", **many)).left == 7


class _Deleting(ThreadingHTTPServer):
    """Stands before a gateway, and deletes the stream `gone` there before each plan."""

    daemon_threads = True

    def __init__(self, url: str) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.behind = url

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Passing(BaseHTTPRequestHandler):
    server: _Deleting

    def do_GET(self) -> None:
        self._pass(b"")

    def do_POST(self) -> None:
        httpx.delete(f"{self.server.behind}/v1/streams/gone")
        self._pass(self.rfile.read(int(self.headers["content-length"])))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as it is called there
        """Nothing."""

    def _pass(self, body: bytes) -> None:
        kind = {"content-type": "application/json"} if body else {}
        answer = httpx.request(self.command, self.server.behind + self.path, content=body, headers=kind)
        self.send_response(answer.status_code)
        self.send_header("content-type", answer.headers["content-type"])
        self.send_header("content-length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)


def test_a_stream_that_goes_while_its_group_is_moved_is_passed_over(server: Server) -> None:
    """Between the two calls that it takes."""
    entry = [{"id": "1-0", "fields": {"n": "1"}}]
    httpx.post(f"{server.url}/v1/publish", json={"streams": {"gone": entry}}).raise_for_status()
    with _Deleting(server.url) as before, LagReporter((GatewayAccess("g0", before.url),), "spark") as lag:
        Thread(target=before.serve_forever, daemon=True).start()
        assert lag.report(_batch(gone="0-0")).left == 0
        before.shutdown()
    assert _group(server, "gone", "spark").status_code == 404


def test_a_gateway_that_is_away_costs_a_figure_and_nothing_else(server: Server) -> None:
    """The batch is done, even if the gateway does not know it."""
    with LagReporter((GatewayAccess("g0", "http://127.0.0.1:1"),), "spark") as lag:
        assert lag.report(_batch(a="3-0")).left is None
    with LagReporter(()) as lag:
        assert lag.report(_batch(a="3-0")).left is None


def test_nobody_is_asked_while_nothing_comes(server: Server) -> None:
    """Spark reports every ten seconds that nothing has come; some sources every time they look."""
    with LagReporter((GatewayAccess("g0", server.url),)) as lag:
        assert lag.report(_batch(rows=0, a="3-0")).left == 7
        assert lag.report(_batch(rows=0, a="3-0")).left is None
        assert lag.report(_batch(rows=1, a="4-0")).left == 6
        assert lag.report(_batch(rows=1)).left is None
