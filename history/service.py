"""The service: pages of an archive over HTTP, for gateways that have its token.

Knows: routes, the token, limits, what an answer says to caches. Must never know: how a page is found.

    GET /v1/streams/{stream}/entries?generation=…&after=…    GET /healthz    GET /metrics

It changes nothing in the archive. Where a file that its version counts on is gone, it reads a later version.
"""

import asyncio
import hashlib
import hmac
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import logs
from app.archived.asking import BUSY_WAIT_S_MAX, DEADLINE, Answered, Asked
from app.errors import RefusalError, problem, problem_headers
from engine import Clock, ids
from history.archive import Archive, Snapshot
from history.budget import Share
from history.cache import FileCache
from history.reader import Found, Wanted, read_page
from pyspark_weir.errors import ArchiveDamagedError, PipelineError
from pyspark_weir.table.log import storage_failures
from pyspark_weir.table.ranges import StreamKey
from pyspark_weir.table.root import ArchiveRoot

# Pages under way; a gateway asks for two at a time for each of its callers.
_FETCHES_MAX: Final = 64
# What a page is counted as before it has entries.
_PAGE_BYTES_MIN: Final = 1 << 20
_DEADLINE_S: Final = 30.0
# Versions to read before a missing file is missing.
_ATTEMPTS_MAX: Final = 3
# Readers that are known to go on, by where their last pages ended.
_ENDS_MAX: Final = 1_000
# Between looks at the token's file.
_TOKEN_S: Final = 1.0
# Who asks has to have the token, and a page loses what is deleted later: a cache asks about it each time.
_REVALIDATED: Final = "private, no-cache"


class Metrics:
    """The figures of one service, and their text for Prometheus."""

    def __init__(self, cache: FileCache) -> None:
        self._registry = CollectorRegistry()
        own = self._registry
        self.requests = Counter(
            "weir_history_requests", "Pages asked for, by status", ["status"], registry=own
        )
        self.entries = Counter("weir_history_entries", "Entries sent", registry=own)
        self.seconds = Histogram("weir_history_request_seconds", "Time to answer a page", registry=own)
        self.version = Gauge("weir_history_table_version", "Version of the table that is read", registry=own)
        own.register(_Cached(cache))

    def text(self) -> bytes:
        """As Prometheus reads it."""
        return generate_latest(self._registry)


class _Cached:
    """What the cache counts itself."""

    def __init__(self, cache: FileCache) -> None:
        self._groups = cache.groups

    def collect(self) -> Iterator[Metric]:
        """The figures of row groups; the registry calls it."""
        found, read = "Row groups that were encoded already", "Row groups that were read and encoded"
        yield CounterMetricFamily("weir_history_groups_found", found, self._groups.hits)
        yield CounterMetricFamily("weir_history_groups_read", read, self._groups.misses)
        ahead = "Those of them that were read before a reader asked for them"
        yield CounterMetricFamily("weir_history_groups_read_ahead", ahead, self._groups.ahead)
        size = "Bytes of encoded row groups that are kept"
        yield GaugeMetricFamily("weir_history_cache_bytes", size, self._groups.bytes)


class History:
    """One archive, as pages. `read_token` gives the token, which is empty where everybody may ask; it is read
    again when another one is presented. Raises what that raises.
    """

    def __init__(
        self, root: ArchiveRoot, clock: Clock, read_token: Callable[[], str], cache_bytes: int
    ) -> None:
        self.cache = FileCache(root, cache_bytes)
        self.archive = Archive(root, clock, self.cache.retain)
        self.metrics = Metrics(self.cache)
        self.clock = clock
        self._read_token = read_token
        self._token = read_token()
        # Not before is it read again.
        self._token_due_s = 0.0
        self._turns = asyncio.Semaphore(_FETCHES_MAX)
        # Where pages ended with more behind them: who begins there reads one page after the other.
        self._ends: OrderedDict[tuple[StreamKey, bool, int], None] = OrderedDict()

    def app(self) -> Starlette:
        """The application."""
        routes = [
            Route("/v1/streams/{stream:path}/entries", self._entries),
            Route("/healthz", self._health),
            Route("/metrics", self._metrics),
        ]
        return Starlette(routes=routes, middleware=[Middleware(_Unkept)])

    def close(self) -> None:
        """Read nothing more."""
        self.archive.close()
        self.cache.close()

    async def _entries(self, request: Request) -> Response:
        began = self.clock.monotonic()
        try:
            response = await self._answer(request)
        except RefusalError as refusal:
            response = _refuse(refusal)
            if refusal.kind.status >= 500:
                logs.get().warning("no page", code=refusal.code, reason=refusal.detail)
        self.metrics.requests.labels(str(response.status_code)).inc()
        self.metrics.seconds.observe(self.clock.monotonic() - began)
        return response

    async def _answer(self, request: Request) -> Response:
        await self._check_token(request)
        asked = Asked.of(request.path_params["stream"], dict(request.query_params))
        with ExitStack() as room:
            page = room.enter_context(self.cache.budget.page())
            try:
                async with asyncio.timeout(_deadline_s(request)), self._turn(page):
                    found = await self._page(asked, page)
            except TimeoutError:
                raise _unavailable("the archive did not answer in time") from None
            response = self._respond(request, asked, found)
            page.send()
            response.kept = room.pop_all()
            return response

    @asynccontextmanager
    async def _turn(self, page: Share) -> AsyncIterator[None]:
        """Be one of the pages under way. Raises RefusalError."""
        try:
            async with asyncio.timeout(BUSY_WAIT_S_MAX):
                await page.take(_PAGE_BYTES_MIN)
                await self._turns.acquire()
        except TimeoutError:
            detail = f"{_FETCHES_MAX} pages are being read, or as many as --cache-mb has room for: try again"
            raise RefusalError("history_busy", detail) from None
        try:
            yield
        finally:
            self._turns.release()

    def _respond(self, request: Request, asked: Asked, found: Answered) -> "_Page":
        body, headers = found.body(asked), found.headers()
        # What the archive's end cut grows: it is not kept.
        if found.more or found.covered >= asked.high:
            tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
            headers |= {"etag": tag, "cache-control": _REVALIDATED}
            if request.headers.get("if-none-match") == tag:
                return _Page(status_code=304, headers=headers)
        self.metrics.entries.inc(found.number)
        return _Page(body, media_type="application/json", headers=headers)

    async def _check_token(self, request: Request) -> None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if not self._token or (scheme.lower() == "bearer" and self._is_token(token)):
            return
        await self._look_at_token()
        if scheme.lower() != "bearer" or not self._is_token(token):
            raise RefusalError(
                "unauthenticated", "the history of streams is for gateways that have its token"
            )

    async def _look_at_token(self) -> None:
        """Its file may hold another one by now; what is no token leaves the one that is known."""
        now_s = self.clock.monotonic()
        if now_s < self._token_due_s:
            return
        self._token_due_s = now_s + _TOKEN_S
        try:
            self._token = await asyncio.to_thread(self._read_token) or self._token
        except Exception as error:  # noqa: BLE001 - pages are answered as before
            logs.get().warning("the token was not read again", reason=str(error))

    def _is_token(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self._token.encode())

    # ---- pages

    async def page(self, asked: Asked) -> Answered:
        """The entries that are asked for, of one version of the archive. Raises RefusalError."""
        with self.cache.budget.page() as page:
            await page.take(_PAGE_BYTES_MIN)
            return await self._page(asked, page)

    async def _page(self, asked: Asked, page: Share) -> Answered:
        key = StreamKey(asked.gateway, asked.stream, asked.generation)
        with self._failures():
            snapshot = await self.archive.snapshot(key, asked.high)
            for _attempt in range(_ATTEMPTS_MAX):
                self.metrics.version.set(snapshot.version)
                try:
                    return await self._read(snapshot, key, asked, page)
                except ArchiveDamagedError:
                    fresh = await self.archive.refresh()
                    if fresh.version == snapshot.version:
                        raise
                    snapshot = fresh
        raise _unavailable(f"{self.archive.root.url}: files are replaced faster than they are read")

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Raises `history_unavailable` for what the archive, its disk or its store refuses."""
        try:
            with storage_failures():
                yield
        except PipelineError as error:
            raise _unavailable(f"{self.archive.root.url}: {error.sentence}") from None

    async def _read(self, snapshot: Snapshot, key: StreamKey, asked: Asked, page: Share) -> Answered:
        wanted = Wanted(key, asked.low, asked.high, asked.number, asked.bytes_max, asked.reverse)
        goes_on = self._goes_on(wanted)
        if asked.reverse:
            found = await read_page(self.archive, self.cache, snapshot, wanted, page, goes_on=goes_on)
            self._note_end(wanted, found)
            return Answered(*found, covered=asked.low)
        after, missing_upto = max(asked.low - 1, 0), None
        if after and key not in snapshot.known:
            missing_upto = await self._unknown_upto(snapshot, key, after, asked.high, page)
        while (span := snapshot.span(key, after)) is not None and after < asked.high:
            if span.after > after:
                after = span.after
                missing_upto = min(after, asked.high)
            high = min(asked.high, span.upto)
            part = wanted._replace(low=after + 1, high=high)
            found = await read_page(self.archive, self.cache, snapshot, part, page, goes_on=goes_on)
            self._note_end(wanted, found)
            if found.number or high == asked.high:
                covered = found.last if found.more else high
                return Answered(*found, covered=covered, missing_upto=missing_upto)
            after = high
        return Answered(b"", 0, 0, 0, more=False, covered=after, missing_upto=missing_upto)

    def _goes_on(self, wanted: Wanted) -> bool:
        """Whether a page begins where another one has ended."""
        end = wanted.key, wanted.reverse, wanted.high + 1 if wanted.reverse else wanted.low - 1
        if end not in self._ends:
            return False
        del self._ends[end]
        return True

    def _note_end(self, wanted: Wanted, found: Found) -> None:
        if found.more:
            self._ends[wanted.key, wanted.reverse, found.last] = None
            if len(self._ends) > _ENDS_MAX:
                self._ends.popitem(last=False)

    async def _unknown_upto(
        self, snapshot: Snapshot, key: StreamKey, after: int, high: int, page: Share
    ) -> int | None:
        """Up to where nothing says whether there was anything after a cursor that comes before the first
        archived entry: older versions did not note what a stream had lost before it was archived.
        """
        first = self.archive.firsts.get(key)
        if first is None:
            wanted = Wanted(key, 1, ids.ID_MAX, 1, 1)
            found = await read_page(self.archive, self.cache, snapshot, wanted, page)
            if not found.number:
                return None
            # What is archived later comes after it.
            first = self.archive.note_first(key, found.first)
        return min(first - 1, high) if after < first - 1 else None

    # ---- beside them

    async def _health(self, _: Request) -> Response:
        try:
            with self._failures():
                snapshot = await self.archive.snapshot()
        except RefusalError as refusal:
            return _refuse(refusal)
        return Response(b'{"status":"ok","version":%d}\n' % snapshot.version, media_type="application/json")

    async def _metrics(self, request: Request) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")


class _Page(Response):
    """A page, whose room is `kept` until the client has taken it."""

    kept = ExitStack()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.kept:
            head = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            await send(head)
            await send({"type": "http.response.body", "body": self.body, "more_body": True})
            # Once the client has taken most of it.
            await send({"type": "http.response.body"})


class _Unkept:
    """No cache keeps an answer that does not say otherwise, whichever it is."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def say(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).setdefault("cache-control", "no-store")
            await send(message)

        await self._app(scope, receive, say)


def _deadline_s(request: Request) -> float:
    text = request.headers.get(DEADLINE, "")
    return min(int(text) / 1000, _DEADLINE_S) if text.isascii() and text.isdigit() else _DEADLINE_S


def _unavailable(detail: str) -> RefusalError:
    return RefusalError("history_unavailable", detail)


def _refuse(refusal: RefusalError) -> Response:
    headers = {name.decode(): value.decode() for name, value in problem_headers(refusal)}
    return Response(problem(refusal, ""), refusal.kind.status, headers, media_type="application/problem+json")
