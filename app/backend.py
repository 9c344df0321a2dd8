"""The backend that the settings name: its addresses, how it is reached, what its writes promise.

Knows: the forms of its URL, which `settings` has checked, what is logged of it.
Must never know: what is sent there.
"""

import re
import ssl
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote

from app import logs
from app.logs import FullLog
from app.settings import Settings, SettingsError, read_named_file
from engine import Clock
from engine.cluster import (
    Address,
    BackendDurability,
    BackendHealth,
    ClusterTopology,
    SentinelTopology,
    ServerAccess,
    Standalone,
    Topology,
    Trouble,
    parse_durability,
)

# The ports of a server and of a Sentinel whose URL names none.
_PORT: Final = 6379
_SENTINEL_PORT: Final = 26_379
_MAY_LOSE: Final = "a fail-over may lose acknowledged writes: a replica that lacks them may take over"
_REMEDY_OF_SPARE: Final = (
    "set backend_durability to replicated:N, where N is the number of replicas that may take over, or keep "
    "the others from it (cluster-replica-no-failover yes, or replica-priority 0 under Sentinel)"
)
_URL: Final = re.compile(r"([^:]+)://(?:([^/@]+)@)?(.*)")
_SERVER: Final = re.compile(r"(?:\[(?P<v6>[^\]]+)\]|(?P<host>[^:]+))(?::(?P<port>\d+))?")


def read_access(settings: Settings) -> ServerAccess:
    """How the backend is reached. Reads files: raises SettingsError."""
    scheme, user, rest = _parts(settings.backend)
    is_encrypted = scheme.startswith("rediss")
    tls = _trust(settings.backend_ca) if is_encrypted else None
    database = int(rest.partition("/")[2] or 0) if scheme in {"redis", "rediss"} else 0
    password = read_named_file(settings, "backend_password_file") if settings.backend_password_file else ""
    mode = b"cluster" if scheme.endswith("+cluster") else b"standalone"
    return ServerAccess(user, password, tls, database, mode)


def _trust(authorities: str) -> ssl.SSLContext:
    """TLS with these authorities, those of the system if it is empty."""
    try:
        return ssl.create_default_context(cafile=authorities or None)
    except OSError as error:
        raise SettingsError(f"backend_ca: {authorities}: {error.strerror or error}") from None


def durability_of(settings: Settings) -> BackendDurability:
    """What an answer to a write promises: more than one server has it where one may take another's place."""
    has_many = "+cluster:" in settings.backend or "+sentinel:" in settings.backend
    default = "replicated:1" if has_many else "memory"
    return parse_durability(settings.backend_durability or default)


def make_topology(settings: Settings, access: ServerAccess) -> Topology:
    """The servers of the backend. Raises ValueError."""
    scheme, _, rest = _parts(settings.backend)
    timeout_s, durability = settings.backend_timeout_ms / 1000, durability_of(settings)
    if scheme == "redis+unix":
        return Standalone(Address(path=rest), access, timeout_s, durability)
    servers, _, path = rest.partition("/")
    port = _SENTINEL_PORT if scheme.endswith("+sentinel") else _PORT
    addresses = [_address(server, port) for server in servers.split(",")]
    if scheme.endswith("+cluster"):
        return ClusterTopology(addresses, access, timeout_s, durability)
    if scheme.endswith("+sentinel"):
        return SentinelTopology(addresses, path, access, timeout_s, durability)
    return Standalone(addresses[0], access, timeout_s, durability)


def log_health(health: BackendHealth, clock: Clock, on_outage: Callable[[bool], None]) -> None:
    """Log each trouble of the backend, and its end. `on_outage` is called when an outage is logged, or its
    end.
    """
    kept = {
        Trouble.OUTAGE: FullLog(
            clock.monotonic,
            full="the backend cannot be used: requests that need it get 503 backend_unavailable",
            room="the backend can be used again",
            remedy="do what the reason says: the gateway goes on by itself once the backend can be used",
        ),
        Trouble.FULL: FullLog(
            clock.monotonic,
            full="the backend has no memory left: writes get 507 memory_full; reads, acks and trims go on",
            room="the backend has memory again: writes go on",
            remedy="acknowledge, trim or delete; or raise maxmemory at the server",
        ),
        Trouble.UNKEPT_PROMISE: FullLog(
            clock.monotonic,
            full="writes will be refused: no server can confirm them as backend_durability asks",
            room="the backend can confirm writes again",
            remedy="connect replicas, or ask for less: backend_durability=memory promises one copy",
        ),
    }

    def log(trouble: Trouble, reason: str | None) -> None:
        if trouble is Trouble.SPARE_REPLICA:
            if reason is not None:
                logs.get().warning(_MAY_LOSE, reason=reason, remedy=_REMEDY_OF_SPARE)
            return
        kept[trouble].change({} if reason is None else {"reason": reason}, is_full=reason is not None)
        if trouble is Trouble.OUTAGE:
            on_outage(reason is not None)

    health.on_change = log


def _parts(url: str) -> tuple[str, str, str]:
    """Scheme, user, and what is behind it: servers or a path."""
    match = _URL.fullmatch(url)
    assert match is not None, "the settings have checked it"
    return match[1], unquote(match[2] or ""), match[3]


def _address(text: str, default_port: int) -> Address:
    match = _SERVER.fullmatch(text)
    assert match is not None, "the settings have checked it"
    return Address(match["v6"] or match["host"], int(match["port"] or default_port))
