"""`weir doctor`: whether the gateway can be used from here.

Knows: what can be wrong between a client and its gateway, and how findings look.
Must never know: which calls are repeated.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final, Literal

import typer

from weir.cli import options, output
from weir.durations import format_ms

if TYPE_CHECKING:
    from weir import Client

# Ages and times of entries are by the gateway's clock, `--since 5m` by this machine's.
_clock_ms_max: Final = 2_000
_hello_s_max: Final = 10.0
_memory_warning: Final = 0.9


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One check: `wrong` needs a remedy, a `warning` may."""

    check: str
    state: Literal["ok", "warning", "wrong"]
    detail: str


def doctor(
    *,
    as_json: options.Json = False,
    url: options.Url = options.DEFAULT_URL,
    token_file: options.TokenFile = None,
    ca: options.Ca = None,
) -> None:
    """Check the gateway from this machine: versions, clocks, memory, log, WebSocket and limits.

    Nothing is changed. Exit code 1 where something is wrong.
    """
    from weir.cli.gateway import connect

    with connect(url, token_file, ca) as client:
        found = list(examine(client))
    output.rows([asdict(one) for one in found], ("check", "state", "detail"), as_json=as_json)
    if any(one.state == "wrong" for one in found):
        raise typer.Exit(1)


def examine(
    client: "Client", now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
) -> Iterator[Diagnosis]:
    """What the checks find; the first one only, where the gateway does not answer."""
    from weir._http import parse_response
    from weir.errors import WeirError

    def look(status: dict[str, Any]) -> list[Diagnosis]:
        return [
            _gateway(client.url, status, failing),
            _versions(status["version"]),
            _clock(response.headers.get("date"), sent_ms, received_ms),
            _memory(status["memory"]),
            _log(status),
        ]

    sent_ms = now_ms()
    try:
        response = client.send("GET", "/v1/status")
        received_ms = now_ms()
        failing = _failing(client)
        found = parse_response(response, look)
    except WeirError as error:
        yield Diagnosis("gateway", "wrong", str(error))
        return
    yield from found
    yield _websocket(client)


def _failing(client: "Client") -> list[str]:
    """What needs an operator though the gateway is ready, a full disk for instance."""
    from weir._http import parse_response
    from weir.errors import UnavailableError

    def listed(ready: dict[str, list[str]]) -> list[str]:
        return ready.get("failing", [])

    try:
        return parse_response(client.send("GET", "/healthz/ready"), listed)
    except UnavailableError:
        return []


def _gateway(url: str, status: dict[str, Any], failing: list[str]) -> Diagnosis:
    if status["status"] != "ready":
        return Diagnosis("gateway", "wrong", f"{url} is not ready: {status['status']}")
    if failing:
        return Diagnosis("gateway", "wrong", f"{url} is ready and needs an operator: {', '.join(failing)}")
    return Diagnosis("gateway", "ok", f"{url}: ready for {format_ms(status['uptime_ms'])}")


def _versions(gateway: str) -> Diagnosis:
    client = metadata.version("weir-client")
    same = gateway.split(".")[:2] == client.split(".")[:2]
    return Diagnosis("versions", "ok" if same else "warning", f"gateway {gateway}, weir-client {client}")


def _clock(date: str | None, sent_ms: int, received_ms: int) -> Diagnosis:
    """The gateway names its time in whole seconds, at some moment between the request and the answer."""
    if date is None:
        return Diagnosis("clock", "warning", "the answer has no Date")
    gateway_ms = round(parsedate_to_datetime(date).timestamp() * 1_000)
    earliest, latest = gateway_ms - received_ms, gateway_ms + 999 - sent_ms
    apart = max(earliest, -latest, 0)
    if apart <= _clock_ms_max:
        return Diagnosis("clock", "ok", f"within {format_ms(_clock_ms_max)} of the gateway's")
    word = "behind" if earliest > 0 else "ahead of"
    return Diagnosis("clock", "wrong", f"at least {format_ms(apart)} {word} the gateway's: set one of them")


def _memory(memory: dict[str, Any]) -> Diagnosis:
    used, most = memory["used_bytes"], memory["bytes_max"]
    if most is None:
        return Diagnosis("memory", "ok", f"{_mib(used)} used, no limit")
    state: Literal["ok", "warning", "wrong"] = "ok"
    if memory["full"]:
        state = "wrong"
    elif used > _memory_warning * most:
        state = "warning"
    return Diagnosis("memory", state, f"{_mib(used)} of {_mib(most)} used")


def _log(status: dict[str, Any]) -> Diagnosis:
    log, durability = status["log"], status["durability"]
    if log is None:
        return Diagnosis("log", "ok", f"kept by {status['backend']}, {durability['answers']}")
    if log["failure"] is not None:
        return Diagnosis("log", "wrong", f"takes no writes until a restart: {log['failure']}")
    stored = log.get("stored_bytes")
    beside = f" and {_mib(stored)} of cold entries" if stored else ""
    return Diagnosis("log", "ok", f"{_mib(log['bytes'])}{beside}, fsync {durability['fsync']}")


def _websocket(client: "Client") -> Diagnosis:
    """Proxies that pass requests may still break WebSockets; the first frame holds the limits."""
    from websockets.exceptions import WebSocketException
    from websockets.sync.client import connect
    from websockets.typing import Subprotocol

    connection = client.connection
    endpoint = connection.endpoint("/v1/ws", {})
    target = endpoint.copy_with(scheme="wss" if endpoint.scheme == "https" else "ws")
    headers = {name: value for name, value in connection.headers().items() if name == "authorization"}
    try:
        with connect(
            str(target),
            subprotocols=[Subprotocol("weir.v1")],
            additional_headers=headers,
            open_timeout=_hello_s_max,
            ssl=connection.tls if target.scheme == "wss" else None,
            proxy=True if connection.options["trust_env"] else None,
        ) as socket:
            hello = json.loads(socket.recv(_hello_s_max))
    except (OSError, WebSocketException) as error:
        return Diagnosis("websocket", "wrong", str(error) or type(error).__name__)
    limits = hello["limits"]
    return Diagnosis(
        "websocket",
        "ok",
        f"entries of {_mib(limits['entry_bytes_max'])}, {limits['batch_entries_max']:,} a publish",
    )


def _mib(count: int) -> str:
    return f"{count / (1 << 20):,.1f} MiB"
