"""How a call is sent from a thread, generated from `_async_sending.py`: `make client`.

Knows: connections, repetitions, what a lost answer means. Must never know: which operations there are.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx

from weir import _calls
from weir._cursors import Cursors
from weir._features import refuses_consumer
from weir._http import (
    CONNECT_S_MAX,
    Call,
    CallOptions,
    ConnectionOptions,
    Token,
    Verify,
    as_is,
    check_events,
    parse_response,
    parse_url,
    refusal,
    tls_context,
    unanswered,
)
from weir._retrying import Outage, Retries
from weir._sse import SILENCE_S_MAX, Tail
from weir.errors import ApiError, ClientClosedError, NoAnswerError, NotAGatewayError, NotFoundError

T = TypeVar("T")
DEFAULT_URL = "http://127.0.0.1:8080"
# What a tail is answered that comes back to the end of closed streams.
NO_CONTENT = 204


class Sender:
    """The connections to one gateway, and what goes over them."""

    def __init__(
        self,
        url: str | None = None,
        *,
        token: Token = None,
        timeout_s: float = 60.0,
        retry_s: float | None = 60.0,
        verify: Verify = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        where = parse_url(url or os.environ.get("WEIR_URL") or DEFAULT_URL)
        self.connection = ConnectionOptions(where, token, timeout_s, retry_s, tls_context(verify))
        # Whether the gateway can be used at the moment; two lines are logged of one that could not be.
        self.outage = Outage(self.url)
        self._cursors = Cursors()
        # What the gateway says that it knows; None is to be asked.
        self._features: frozenset[str] | None = None
        self._transport = transport
        self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; calls raise ClientClosedError from then on."""
        if not self.is_closed:
            self._http.close()

    @property
    def url(self) -> str:
        """The gateway's base URL."""
        return str(self.connection.url)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._pool.is_closed

    def _open(self) -> None:
        self._pool = httpx.Client(transport=self._transport, **self.connection.options)
        self._process = os.getpid()

    @property
    def _http(self) -> httpx.Client:
        if self.is_closed:
            raise ClientClosedError
        # A forked process would read answers to its parent on the connections that it has inherited.
        if self._process != os.getpid():
            self._open()
        return self._pool

    def call(self, method: str, path: str, **options: Unpack[CallOptions]) -> Any:  # noqa: ANN401 - JSON
        """Any operation of the HTTP API: the JSON of its answer, None where it has none (204).

        `client.call("POST", "/v1/admin/rewrite", repeatable=True)`. `path` is what follows the
        gateway's URL; `weir.paths` writes names into it. Repeated calls and errors are as of all methods.
        """
        return parse_response(self.send(method, path, **options), as_is)

    def send(self, method: str, path: str, **options: Unpack[CallOptions]) -> httpx.Response:
        """The same; the successful answer as it is, with its headers, read wholly.

        All calls but `tail` are sent by this one: a subclass that overrides it sees every call.
        """
        call = Call.of(method, path, options)
        retries = self._retries(repeatable=call.repeatable, repeat_faults=call.repeat_faults)
        while True:
            sent = self._cursors.apply(call)
            try:
                response = self._send_once(sent)
            except (ApiError, NoAnswerError) as error:
                if not self._cursors.note(error, sent):
                    time.sleep(retries.pause_s(error))
            else:
                self.outage.end()
                return response

    def _call(self, call: Call[T]) -> T:
        """Send an operation of `_calls.py`; what its answer holds."""
        return parse_response(self.send(call.method, call.path, **call.options), call.parse)

    def _find(self, call: Call[T]) -> T | None:
        """The same; None where what it names is not there."""
        try:
            return self._call(call)
        except NotFoundError:
            return None

    def _each(self, page_after: Callable[[str | None], Call[tuple[list[T], str | None]]]) -> Iterator[T]:
        """What all pages hold."""
        after = None
        while True:
            page, after = self._call(page_after(after))
            yield from page
            if after is None:
                return

    def _call_naming(self, feature: str, consumer: str | None, call: Callable[[str | None], Call[T]]) -> T:
        """Send an operation that names a consumer; without it, to a gateway that does not know that."""
        named = consumer if consumer is not None and self._knows(feature) else None
        try:
            return self._call(call(named))
        except ApiError as error:
            if named is None or not refuses_consumer(error):
                raise
            self._features = frozenset()
            return self._call(call(None))

    def _knows(self, feature: str) -> bool:
        """Whether the gateway says that it knows this: asked once, and again after a lost connection."""
        known = self._features
        if known is None:
            try:
                known = self._features = self._call(_calls.features())
            except (ApiError, NotAGatewayError):
                # Not every proxy lets that through. What the gateway does not know it refuses.
                return True
        return feature in known

    def _send_once(self, call: Call[Any]) -> httpx.Response:
        request = self.connection.request(self._http, call)
        try:
            response = self._http.send(request)
        except httpx.RequestError as error:
            # Another version may be there next time.
            self._features = None
            raise unanswered(error, self.connection.url, repeatable=call.repeatable) from error
        if response.is_success:
            return response
        raise refusal(response, repeatable=call.repeatable)

    def _retries(self, *, repeatable: bool, repeat_faults: bool = False) -> Retries:
        retry_s = self.connection.retry_s
        return Retries(retry_s, self.outage, repeatable=repeatable, repeat_faults=repeat_faults)

    @contextmanager
    def _events(self, tail: Tail) -> Iterator[Iterator[bytes]]:
        """The body of the tail's next connection, once there is one."""
        response = self._connect(tail)
        try:
            if response.status_code == NO_CONTENT:
                tail.end()
            else:
                check_events(response)
            yield response.iter_raw()
        finally:
            response.close()

    def _connect(self, tail: Tail) -> httpx.Response:
        retries = self._retries(repeatable=True)
        while True:
            sent = self._cursors.apply(tail.request())
            try:
                response = self._connect_once(sent)
            except (ApiError, NoAnswerError) as error:
                if not self._cursors.note(error, sent):
                    time.sleep(retries.pause_s(error))
            else:
                self.outage.end()
                return response

    def _connect_once(self, call: Call[None]) -> httpx.Response:
        request = self._http.build_request(
            "GET",
            self.connection.endpoint(call.path, call.query),
            headers={**self.connection.headers(), **call.headers, "accept-encoding": "identity"},
            timeout=httpx.Timeout(SILENCE_S_MAX, connect=CONNECT_S_MAX),
        )
        try:
            response = self._http.send(request, stream=True)
            if response.is_success:
                return response
            response.read()
        except httpx.RequestError as error:
            raise unanswered(error, self.connection.url, repeatable=True) from error
        raise refusal(response, repeatable=True)
