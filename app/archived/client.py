"""Pages of the service of history, as the gateway fetches them: a few at a time for each caller.

Knows: HTTP to the service, its token, how its refusals become the gateway's. Must never know: engines, which
pages a read needs.
"""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final
from urllib.parse import quote

import httpx
import msgspec

from app import logs
from app.archived.asking import BUSY_WAIT_S_MAX, DEADLINE, Answered, Asked
from app.metrics.counters import Counters
from app.settings import Settings, SettingsError, read_named_file
from engine import Clock, EngineError, Reader

# Pages of one caller that are fetched at a time.
FETCHES_MAX: Final = 2
# Others know sooner that the service does not answer than a request may take.
_CONNECT_S_MAX: Final = 5.0
_CONNECTIONS_MAX: Final = 64
# What an entry takes as JSON, by its bytes, and what a page has beside its entries.
_ENTRY_FACTOR: Final = 6
_BESIDE_BYTES: Final = 64 << 10


class HistoryClient:
    """The service that the settings name, which are read once. Raises SettingsError."""

    def __init__(self, settings: Settings, clock: Clock, counters: Counters) -> None:
        self._clock = clock
        self._counters = counters
        self.gateway = settings.history_gateway
        self._url = settings.history_url.rstrip("/")
        self._timeout_s = settings.request_s_max
        # One entry is in a page, however long it is.
        self._beside_bytes = settings.entry_bytes_max * _ENTRY_FACTOR + _BESIDE_BYTES
        self._settings = settings
        self._token = self._read_token()
        self._client: httpx.AsyncClient | None = None
        self._fetches: Counter[str] = Counter()
        # Whether the last page did not come.
        self.is_away = False
        # Readers wait here for one of their caller's fetches to end.
        self._free = asyncio.Condition()

    async def fetch(self, asked: Asked, reader: Reader) -> Answered:
        """A page. Raises EngineError `history_busy`, `history_unavailable`."""
        begun_s = self._clock.monotonic()
        try:
            found = await self._fetch(asked, reader)
        except EngineError as refused:
            self._counters.history_fetches[refused.code.removeprefix("history_")] += 1
            if refused.code == "history_unavailable":
                self._note(refused.detail)
            raise
        self._note("")
        self._counters.history_fetches["ok"] += 1
        self._counters.history_fetch_seconds.observe(self._clock.monotonic() - begun_s)
        return found

    def _note(self, reason: str) -> None:
        """Log that no page comes, and that one has come again: once each."""
        if bool(reason) == self.is_away:
            return
        self.is_away = bool(reason)
        if reason:
            remedy = "see whether `weir history serve` runs where history_url says, and what it logs"
            logs.get().error("history cannot be read", reason=reason, remedy=remedy)
        else:
            logs.get().warning("history can be read again")

    async def _fetch(self, asked: Asked, reader: Reader) -> Answered:
        async with self._turn(reader):
            try:
                async with asyncio.timeout(self._timeout_s):
                    answer = await self._send(asked)
                    if answer.status_code == httpx.codes.UNAUTHORIZED and await self._has_another_token():
                        answer = await self._send(asked)
            except (httpx.HTTPError, TimeoutError) as error:
                reason = str(error) or type(error).__name__
                raise _unavailable(
                    f"the service of history at {self._url} does not answer: {reason}"
                ) from None
        if answer.status_code == httpx.codes.OK:
            try:
                return Answered.of(answer.content, answer.headers).checked(asked)
            except (KeyError, ValueError) as error:
                raise _unavailable(f"{self._url} is no service of history: {error!r}") from None
        raise self._refusal(answer)

    def _read_token(self) -> str:
        settings = self._settings
        return read_named_file(settings, "history_token_file") if settings.history_token_file else ""

    async def _has_another_token(self) -> bool:
        """Whether the file holds another one than was sent."""
        before = self._token
        with suppress(SettingsError):
            self._token = await asyncio.to_thread(self._read_token)
        return self._token != before

    @asynccontextmanager
    async def _turn(self, reader: Reader) -> AsyncIterator[None]:
        caller = reader.caller
        wait_s = None if reader.follows else min(BUSY_WAIT_S_MAX, self._timeout_s)
        try:
            async with asyncio.timeout(wait_s), self._free:
                await self._free.wait_for(lambda: self._fetches[caller] < FETCHES_MAX)
                self._fetches[caller] += 1
        except TimeoutError:
            detail = f"{FETCHES_MAX} pages of history are being read for this caller: try again in a moment"
            raise EngineError("history_busy", f"BUSY {detail}", detail) from None
        try:
            yield
        finally:
            self._fetches[caller] -= 1
            if not self._fetches[caller]:
                del self._fetches[caller]
            async with self._free:
                self._free.notify_all()

    async def _send(self, asked: Asked) -> httpx.Response:
        if self._client is None:
            self._client = httpx.AsyncClient(
                limits=httpx.Limits(max_connections=_CONNECTIONS_MAX),
                timeout=httpx.Timeout(self._timeout_s, connect=min(self._timeout_s, _CONNECT_S_MAX)),
            )
        headers = {DEADLINE: str(math.ceil(self._timeout_s * 1000))}
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        url = f"{self._url}/v1/streams/{quote(asked.stream, safe='')}/entries"
        parameters, bytes_max = asked.parameters(), asked.bytes_max + self._beside_bytes
        async with self._client.stream("GET", url, params=parameters, headers=headers) as answer:
            parts, size = [], 0
            async for part in answer.aiter_bytes():
                size += len(part)
                if size > bytes_max:
                    raise httpx.DecodingError(
                        f"it sends more than the {bytes_max} bytes that a page may have"
                    )
                parts.append(part)
        return httpx.Response(answer.status_code, headers=_plain(answer.headers), content=b"".join(parts))

    def _refusal(self, answer: httpx.Response) -> EngineError:
        try:
            problem = msgspec.json.decode(answer.content, type=dict[str, object])
        except msgspec.DecodeError:
            problem = {}
        code, detail = problem.get("code"), str(problem.get("detail", f"status {answer.status_code}"))
        if code == "history_busy":
            return EngineError("history_busy", f"BUSY {detail}", detail)
        if code == "unauthenticated":
            detail = "the token in history_token_file is not the one that the service was started with"
        return _unavailable(f"the service of history at {self._url}: {detail}")

    async def close(self) -> None:
        """Fetch no more."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


def _plain(headers: httpx.Headers) -> list[tuple[str, str]]:
    """Those of a body that was decoded."""
    coded = ("content-encoding", "content-length", "transfer-encoding")
    return [(name, value) for name, value in headers.multi_items() if name.lower() not in coded]


def _unavailable(detail: str) -> EngineError:
    return EngineError("history_unavailable", f"TRYAGAIN {detail}", detail)
