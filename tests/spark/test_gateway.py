"""The pipeline's connection to a gateway, over a link with chosen answers."""

import pickle
from collections.abc import Callable
from pathlib import Path

import httpx
import orjson
import pytest

from pyspark_weir.clock import monotonic_s
from pyspark_weir.errors import DataLoss, OptionError, PipelineError, RefusedError, Unavailable
from pyspark_weir.gateway import GatewayAccess, GatewayClient, PlanQuery

URL = "http://127.0.0.1:8080"
SECRET = "s3cret-token"

Answerer = Callable[[httpx.Request], httpx.Response]


def problem(status: int, code: str, **more: object) -> httpx.Response:
    return httpx.Response(status, json={"code": code, "detail": f"about {code}", **more})


class Link:
    """Answers one after the other, the last one from then on; an exception is raised. Keeps the requests."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.requests: list[httpx.Request] = []
        self._answers = list(answers)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def opened(
    link: Answerer, *, retry_timeout_ms: int = 5_000, token_file: str | None = None, url: str = URL
) -> GatewayClient:
    access = GatewayAccess("g0", url, token_file=token_file, retry_timeout_ms=retry_timeout_ms)
    return GatewayClient(access, transport=httpx.MockTransport(link))


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(f"{SECRET}\n")
    return str(path)


class TestTryingAgain:
    def test_a_gateway_that_starts_late_is_waited_for(self) -> None:
        link = Link(
            httpx.ConnectError("refused"), problem(503, "starting"), httpx.Response(200, json={"a": 1})
        )
        with opened(link) as gateway:
            assert gateway.get("/v1") == {"a": 1}
        assert len(link.requests) == 3

    def test_an_answer_that_broke_off_is_asked_for_again(self) -> None:
        link = Link(httpx.ReadError("reset"), httpx.Response(502), httpx.Response(200, json={}))
        with opened(link) as gateway:
            assert gateway.get("/v1") == {}

    def test_a_fault_in_the_gateway_is_repeated_where_that_is_safe(self) -> None:
        link = Link(problem(500, "internal"), httpx.Response(200, json={"a": 1}))
        with opened(link) as gateway:
            assert gateway.get("/v1") == {"a": 1}
        link = Link(problem(500, "internal"))
        with opened(link) as gateway, pytest.raises(RefusedError, match="internal"):
            gateway.post("/v1/publish", {"streams": {"s": [{"fields": {"a": "b"}}]}})
        assert len(link.requests) == 1

    def test_retry_after_is_kept(self) -> None:
        slow = httpx.Response(429, headers={"retry-after": "1"}, json={"code": "rate_limited", "detail": "d"})
        link = Link(slow, httpx.Response(200, json={}))
        clocked: list[float] = []
        with opened(link) as gateway:
            clocked.append(monotonic_s())
            gateway.get("/v1")
            clocked.append(monotonic_s())
        assert clocked[1] - clocked[0] >= 1

    def test_a_retry_after_beyond_the_patience_is_not_waited_for(self) -> None:
        link = Link(httpx.Response(429, headers={"retry-after": "3600"}, json={"detail": "later"}))
        with opened(link) as gateway, pytest.raises(Unavailable, match="later"):
            gateway.get("/v1")
        assert len(link.requests) == 1

    def test_patience_ends(self) -> None:
        link = Link(httpx.ConnectError("[Errno 111] Connection refused"))
        with (
            opened(link, retry_timeout_ms=300) as gateway,
            pytest.raises(Unavailable, match=r"GET /v1/x at g0.*connection refused.*retryTimeoutMs"),
        ):
            gateway.get("/v1/x")
        assert len(link.requests) > 1

    def test_no_patience_is_one_attempt(self) -> None:
        link = Link(httpx.ConnectError("refused"), httpx.Response(200, json={}))
        with opened(link, retry_timeout_ms=0) as gateway, pytest.raises(Unavailable):
            gateway.get("/v1")
        assert len(link.requests) == 1

    @pytest.mark.parametrize(
        ("status", "code"), [(401, "unauthenticated"), (403, "forbidden"), (404, "no_stream")]
    )
    def test_what_cannot_change_by_itself_is_told_at_once(self, status: int, code: str) -> None:
        link = Link(problem(status, code))
        with (
            opened(link) as gateway,
            pytest.raises(RefusedError, match=f"WEIR_REFUSED.*about {code}") as raised,
        ):
            gateway.get("/v1/x")
        assert len(link.requests) == 1
        assert (raised.value.status, raised.value.problem) == (status, code)
        assert "GET /v1/x at g0" in str(raised.value)

    def test_what_may_have_been_done_is_not_done_twice(self) -> None:
        link = Link(httpx.ReadTimeout("slow"))
        with opened(link) as gateway, pytest.raises(Unavailable):
            gateway.post("/v1/publish", {"streams": {"s": [{"fields": {"a": "b"}}]}})
        assert len(link.requests) == 1

    def test_what_never_arrived_is_sent_again(self) -> None:
        stored = {"streams": {"s": {"first_id": "1-0", "last_id": "1-0", "count": 1}}, "duplicate": False}
        link = Link(httpx.ConnectError("refused"), httpx.Response(201, json=stored))
        with opened(link) as gateway:
            assert gateway.post("/v1/publish", {"streams": {"s": [{"fields": {"a": "b"}}]}}) == stored

    def test_a_keyed_publish_is_sent_again_with_the_same_headers_and_body(self) -> None:
        stored = {"streams": {"s": {"first_id": "1-0", "last_id": "1-0", "count": 1}}, "duplicate": True}
        link = Link(httpx.ReadTimeout("slow"), httpx.Response(201, json=stored))
        with opened(link) as gateway:
            headers = {"weir-producer": "spark/q/0", "weir-epoch": "3", "weir-chunk": "1"}
            body = {"streams": {"s": [{"fields": {"a": "b"}}]}}
            assert gateway.post("/v1/publish", body, headers=headers, repeatable=True) == stored
        first, second = link.requests
        assert first.content == second.content
        for request in (first, second):
            assert request.headers["weir-producer"] == "spark/q/0"
            assert (request.headers["weir-epoch"], request.headers["weir-chunk"]) == ("3", "1")


class TestSecrets:
    def test_the_token_of_a_file_is_sent_and_shown_nowhere(self, token_file: str) -> None:
        link = Link(problem(403, "forbidden"))
        gateway = opened(link, token_file=token_file)
        with gateway, pytest.raises(RefusedError) as raised:
            gateway.get("/v1")
        assert link.requests[0].headers["authorization"] == f"Bearer {SECRET}"
        shown = (
            f"{gateway!r} {gateway.access!r} {raised.value!r} {raised.value} {pickle.dumps(gateway.access)!r}"
        )
        assert SECRET not in shown

    def test_a_token_that_was_changed_meanwhile_is_read_again(self, token_file: str) -> None:
        answers = [
            httpx.Response(200, json={}),
            problem(401, "unauthenticated"),
            httpx.Response(200, json={}),
        ]
        link = Link(*answers)
        with opened(link, token_file=token_file) as gateway:
            gateway.get("/v1")
            Path(token_file).write_text("another")
            gateway.get("/v1")
        sent = [request.headers["authorization"] for request in link.requests]
        assert sent[-1] == "Bearer another"

    def test_a_token_that_is_not_good_is_tried_once(self, token_file: str) -> None:
        link = Link(problem(401, "unauthenticated"))
        with opened(link, token_file=token_file) as gateway, pytest.raises(RefusedError, match="still good"):
            gateway.get("/v1")
        assert len(link.requests) == 1

    def test_an_open_connection_cannot_be_pickled(self) -> None:
        with opened(Link(httpx.Response(200))) as gateway, pytest.raises(TypeError, match="access"):
            pickle.dumps(gateway)

    def test_the_token_of_the_environment_is_looked_up_where_it_is_used(self) -> None:
        access = GatewayAccess("g0", URL, token_env="WEIR_TOKEN_OF_TEST")
        assert access.token({"WEIR_TOKEN_OF_TEST": SECRET}) == SECRET
        with pytest.raises(OptionError, match=r"tokenEnv WEIR_TOKEN_OF_TEST.*not set"):
            access.token({})

    @pytest.mark.parametrize("content", ["", "two words", "a\nb", "ü"])
    def test_a_file_without_one_token_is_refused_without_showing_it(
        self, tmp_path: Path, content: str
    ) -> None:
        path = tmp_path / "token"
        path.write_text(content)
        with pytest.raises(OptionError, match="one token") as raised:
            GatewayAccess("g0", URL, token_file=str(path)).token()
        assert not content or content not in str(raised.value).replace(str(path), "")

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(OptionError, match=r"tokenFile .*absent.*No such file"):
            GatewayAccess("g0", URL, token_file=str(tmp_path / "absent")).token()

    def test_a_url_with_a_password_is_refused_without_showing_it(self) -> None:
        with pytest.raises(OptionError, match="tokenFile") as raised:
            GatewayAccess("g0", f"http://me:{SECRET}@127.0.0.1:1")
        assert SECRET not in str(raised.value)

    def test_a_refusal_for_want_of_a_token_says_how_to_give_one(self) -> None:
        link = Link(problem(401, "unauthenticated"))
        with opened(link) as gateway, pytest.raises(RefusedError, match="tokenFile or tokenEnv"):
            gateway.get("/v1")


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8080", "ftp://h", "http://", "http://h/?a=b", "http://h:99999999"]
)
def test_what_is_no_url_of_a_gateway_is_refused(url: str) -> None:
    with pytest.raises(OptionError, match=r"gateway\.urls"):
        GatewayAccess("g0", url)


@pytest.mark.parametrize(
    "error",
    [
        OptionError("x"),
        DataLoss("x"),
        Unavailable("x"),
        RefusedError("x", status=409, problem="stale_epoch", members={"epoch": 4}),
        PipelineError("WEIR_X", "x"),
    ],
)
def test_an_error_survives_a_pickle(error: PipelineError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), again.__dict__) == (str(error), error.__dict__)
    assert str(error).startswith(f"{error.code}: ")


class TestCalls:
    def test_a_plan_is_asked_for_in_one_request_and_read_whole(self) -> None:
        member = {
            "after": "1-0", "end": "9-0", "count": 8, "bytes": 800, "first": "1-0", "last": "10-0",
            "removed_upto": "0-0", "max_deleted_id": "0-0", "generation": "ab", "durable": "9-0", "lag": 9,
            "cuts": ["5-0"],
        }  # fmt: skip
        link = Link(httpx.Response(200, json={"streams": {"s": member}, "missing": ["t"]}))
        query = PlanQuery(
            {"s": "1-0", "t": "0-0"}, end={"s": "9-0"}, max_entries=8, durable_only=True, wait_ms=50
        )
        with opened(link) as gateway:
            planned = gateway.plan(query)
        assert orjson.loads(link.requests[0].content) == {
            "streams": {"s": "1-0", "t": "0-0"}, "end": {"s": "9-0"}, "max_entries": 8, "durable_only": True,
            "wait": 50,
        }  # fmt: skip
        assert planned.missing == {"t"}
        assert (planned.streams["s"].cuts, planned.streams["s"].lag) == (("5-0",), 9)

    def test_planning_nothing_asks_nothing(self) -> None:
        link = Link(problem(422, "invalid"))
        with opened(link) as gateway:
            assert gateway.plan(PlanQuery({})).streams == {}
        assert link.requests == []

    def test_a_page_takes_its_position_from_the_headers(self) -> None:
        columns = {"ms": [1], "seq": [0], "n": [1], "kd": ["a"], "k": [0], "v": ["b"]}
        headers = {
            "weir-next-id": "1-0",
            "weir-more": "true",
            "weir-generation": "ab",
            "weir-removed-upto": "0-5",
        }
        link = Link(httpx.Response(200, json=columns, headers=headers))
        with opened(link) as gateway:
            page = gateway.page("a b", after="0-0", end="9-9", fields=["a"], fail_on_gap=True)
        request = link.requests[0]
        assert request.url.raw_path == b"/v1/streams/a%20b/entries?after=0-0&end=9-9&fields=a&on_gap=fail"
        assert request.headers["accept"].startswith("application/vnd.weir.columns+json")
        assert (page.next_id, page.more, page.generation, page.removed_upto) == ("1-0", True, "ab", "0-5")
        assert (list(page.ms), page.base64, len(page)) == ([1], False, 1)

    def test_lists_are_read_to_their_end(self) -> None:
        link = Link(
            httpx.Response(200, json={"streams": [{"name": "a"}], "next": "a"}),
            httpx.Response(200, json={"streams": [{"name": "b"}], "next": None}),
        )
        with opened(link) as gateway:
            assert [one["name"] for one in gateway.list_streams()] == ["a", "b"]
        assert "after=a" in str(link.requests[1].url)

    @pytest.mark.parametrize("name", ["", ".", "..", "a//b", "a/..", "a/"])
    def test_what_would_be_another_path_is_no_name(self, name: str) -> None:
        with (
            opened(Link(httpx.Response(200))) as gateway,
            pytest.raises(OptionError, match="is not a stream name"),
        ):
            gateway.stream(name)

    def test_a_missing_stream_has_no_groups(self) -> None:
        with opened(Link(problem(404, "no_stream"))) as gateway:
            assert gateway.stream("s") is None
            assert list(gateway.groups("s")) == []
            assert list(gateway.consumers("s", "g")) == []
            assert list(gateway.pending("s", "g", 9)) == []

    def test_what_answers_without_json_is_no_gateway(self) -> None:
        with (
            opened(Link(httpx.Response(200, text="<html>"))) as gateway,
            pytest.raises(RefusedError, match="no gateway"),
        ):
            gateway.get("/v1")


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HTTP_PROXY", raising=False)
