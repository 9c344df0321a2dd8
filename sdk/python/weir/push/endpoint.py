"""One endpoint: how a webhook is sent to it, what its answer means, and when the next one may be sent.

Knows: HTTP, statuses, the state of an endpoint. Must never know: entries, the gateway.

    open ── 20 failures in a row ──► probing, one at a time ── none good for `pause_after` ──► paused
      ▲                                │ one is good
      └────────────────────────────────┘        429 and 503 with Retry-After: nothing is sent until then
"""

import asyncio
import contextlib
import random
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Final, Literal

import httpcore

from weir.push.addresses import GuardedBackend, RefusedAddressError, Resolve, resolve
from weir.push.config import Push
from weir.push.messages import Message

# Of an answer, which says nothing but its status.
ANSWER_BYTES_MAX: Final = 64 << 10
PROBING_FAILURES_MIN: Final = 20
# Between probes: an endpoint that is back has what waited soon.
PROBE_S_MAX: Final = 60.0
_KEEP_S: Final = 30.0
_AGENT: Final = "weir-push"

Kind = Literal["done", "gone", "later", "failed"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one try: `reason` for people and dead letters, `after_s` where it asks to wait."""

    kind: Kind
    reason: str
    after_s: float = 0.0


class Endpoint:
    """The endpoint of one push. `now_s` are the clocks: monotonic, and the wall's for signatures."""

    def __init__(
        self,
        push: Push,
        now_s: Callable[[], float],
        wall_s: Callable[[], float],
        *,
        resolver: Resolve = resolve,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.push = push
        self._now_s, self._wall_s = now_s, wall_s
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=tls or ssl.create_default_context(),
            max_connections=push.in_flight,
            keepalive_expiry=_KEEP_S,
            network_backend=GuardedBackend(push.allowed_networks, resolver),
        )
        self._probe = asyncio.Lock()
        # Failures in a row, and since when there was nothing else.
        self.failures = 0
        self._failing_since_s: float | None = None
        self._closed_until_s = 0.0

    async def close(self) -> None:
        """End all connections."""
        await self._pool.aclose()

    @property
    def is_probing(self) -> bool:
        """Whether one webhook at a time is sent, to see whether it is back."""
        return self.failures >= PROBING_FAILURES_MIN

    @property
    def is_given_up(self) -> bool:
        """Whether nothing was good for as long as it may take."""
        since_s = self._failing_since_s
        return since_s is not None and self._now_s() - since_s >= self.push.pause_after

    @property
    def state(self) -> str:
        """`open`, `waiting` or `probing`."""
        return "probing" if self.is_probing else "waiting" if self.wait_s else "open"

    @property
    def wait_s(self) -> float:
        """For how long nothing is sent."""
        return max(0.0, self._closed_until_s - self._now_s())

    async def send(self, message: Message, until_stopping: Callable[[], Awaitable[None]]) -> Outcome | None:
        """Send it when that may be. None where the program is to stop before."""
        turn = self._probe if self.is_probing else contextlib.nullcontext()
        async with turn:
            while self.wait_s:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(until_stopping(), self.wait_s)
                    return None
            outcome = await self.try_once(message)
            self._note(outcome)
            return outcome

    async def try_once(self, message: Message) -> Outcome:
        """Send it now."""
        url, body = self.push.url, message.body
        target = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        headers = {
            "Host": url.netloc.decode("ascii"),
            "Content-Length": str(len(body)),
            "User-Agent": _AGENT,
            **message.signed(self.push.secrets, int(self._wall_s())),
        }
        try:
            async with (
                asyncio.timeout(self.push.timeout),
                self._pool.stream("POST", target, headers=[*headers.items()], content=body) as answer,
            ):
                size = 0
                async for piece in answer.aiter_stream():
                    size += len(piece)
                    if size > ANSWER_BYTES_MAX:
                        break
                return self._of_answer(answer.status, dict(answer.headers))
        except TimeoutError:
            return Outcome("failed", "push timeout")
        except RefusedAddressError as error:
            return Outcome("failed", f"push refused: {error}")
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError) as error:
            return Outcome("failed", f"push network: {str(error) or type(error).__name__}")

    def _of_answer(self, status: int, headers: Mapping[bytes, bytes]) -> Outcome:
        reason = f"push {status}"
        if 200 <= status < 300:
            return Outcome("done", reason)
        if status == 410:
            return Outcome("gone", reason)
        named = {name.lower(): value for name, value in headers.items()}
        after_s = self._seconds(named.get(b"retry-after", b"").decode("latin-1"))
        if status in (429, 503) and after_s is not None:
            return Outcome("later", reason, min(after_s, self.push.backoff.max))
        return Outcome("failed", reason)

    def _seconds(self, after: str) -> float | None:
        """Seconds until then, of a number or a date; None for what is neither."""
        if after.isascii() and after.isdigit():
            return float(after)
        try:
            return max(0.0, parsedate_to_datetime(after).timestamp() - self._wall_s())
        except ValueError:
            return None

    def _note(self, outcome: Outcome) -> None:
        if outcome.kind == "later":
            self._closed_until_s = max(self._closed_until_s, self._now_s() + outcome.after_s)
        elif outcome.kind == "failed":
            self.failures += 1
            if self._failing_since_s is None:
                self._failing_since_s = self._now_s()
            if self.is_probing:
                pause_s = self.backoff_s(self.failures - PROBING_FAILURES_MIN + 1)
                self._closed_until_s = self._now_s() + min(pause_s, PROBE_S_MAX)
        else:
            self.forget()

    def forget(self) -> None:
        """Reset the failures: it has answered, or its group was paused and is to be tried after a resume."""
        self.failures, self._failing_since_s = 0, None

    def backoff_s(self, tries: int) -> float:
        """How long to wait after this number of tries. What failed together comes apart by the jitter."""
        jitter = self.push.jitter
        spread = random.uniform(1 - jitter, 1 + jitter)  # noqa: S311 - jitter
        return min(self.push.backoff.after(tries) * spread, self.push.backoff.max)
