"""Pages of the service of history, as the gateway fetches them: a few at a time for each caller.

Knows: HTTP to the service, its token, how its refusals become the gateway's. Must never know: engines, which
pages a read needs.
"""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import quote

import httpx
import msgspec

from app.archived.asking import DEADLINE, Answered, Asked
from app.metrics.counters import Counters
from app.settings import Settings, read_named_file
from engine import Clock, EngineError, Reader

# Pages of one caller that are fetched at a time.
FETCHES_MAX: Final = 2
# Others know sooner that the service does not answer than a request may take.
_CONNECT_S_MAX: Final = 5.0
_CONNECTIONS_MAX: Final = 64


class HistoryClient:
    """The service that the settings name, which are read once. Raises SettingsError."""

    def __init__(self, settings: Settings, clock: Clock, counters: Counters) -> None:
        self._clock = clock
        self._counters = counters
        self.gateway = settings.history_gateway
        self._url = settings.history_url.rstrip("/")
        self._timeout_s = settings.request_s_max
        token = read_named_file(settings, "history_token_file") if settings.history_token_file else ""
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._client: httpx.AsyncClient | None = None
        self._fetches: Counter[str] = Counter()
        # Readers that follow wait here for one of their caller's fetches to end.
        self._free = asyncio.Condition()

    async def fetch(self, asked: Asked, reader: Reader) -> Answered:
        """A page. Raises EngineError `history_busy`, `history_unavailable`."""
        begun_s = self._clock.monotonic()
        try:
            found = await self._fetch(asked, reader)
        except EngineError as refused:
            self._counters.history_fetches[refused.code.removeprefix("history_")] += 1
            raise
        self._counters.history_fetches["ok"] += 1
        self._counters.history_fetch_seconds.observe(self._clock.monotonic() - begun_s)
        return found

    async def _fetch(self, asked: Asked, reader: Reader) -> Answered:
        async with self._turn(reader):
            try:
                answer = await self._send(asked)
            except httpx.HTTPError as error:
                reason = str(error) or type(error).__name__
                raise _unavailable(
                    f"the service of history at {self._url} does not answer: {reason}"
                ) from None
        if answer.status_code == httpx.codes.OK:
            try:
                return Answered.of(answer.content, answer.headers)
            except (KeyError, ValueError) as error:
                raise _unavailable(f"{self._url} is no service of history: {error!r}") from None
        raise self._refusal(answer)

    @asynccontextmanager
    async def _turn(self, reader: Reader) -> AsyncIterator[None]:
        caller = reader.caller
        if reader.follows:
            async with self._free:
                await self._free.wait_for(lambda: self._fetches[caller] < FETCHES_MAX)
        elif self._fetches[caller] >= FETCHES_MAX:
            detail = f"{FETCHES_MAX} pages of history are being read for this caller: try again in a moment"
            raise EngineError("history_busy", f"BUSY {detail}", detail)
        self._fetches[caller] += 1
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
                headers=self._headers,
                limits=httpx.Limits(max_connections=_CONNECTIONS_MAX),
                timeout=httpx.Timeout(self._timeout_s, connect=min(self._timeout_s, _CONNECT_S_MAX)),
            )
        deadline_ms = {DEADLINE: str(math.ceil(self._timeout_s * 1000))}
        url = f"{self._url}/v1/streams/{quote(asked.stream, safe='')}/entries"
        return await self._client.get(url, params=asked.parameters(), headers=deadline_ms)

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


def _unavailable(detail: str) -> EngineError:
    return EngineError("history_unavailable", f"TRYAGAIN {detail}", detail)
