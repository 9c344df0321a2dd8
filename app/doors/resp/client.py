"""One client as the commands see it: who it is, what it has said about itself, what it has begun.

Knows: identity, protocol, the commands queued by MULTI, what CLIENT LIST shows.
Must never know: bytes, sockets, how a command runs.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from app.auth import UNAUTHENTICATED, Action, Principal, Resource
from app.auth.principal import NAME_CONSUMER
from app.auth.rate_limiter import caller_of
from app.doors.resp.transaction import Transaction, Watched
from app.redis.request import CommandRequest
from app.redis.rights import needed
from app.redis.runs import stream_of
from app.redis.wire import Protocol
from engine import EngineError, Quota

NOAUTH: Final = "NOAUTH Authentication required."


class RespClient:
    """The state of one connection. `principal` is None until AUTH, where tokens are needed."""

    __slots__ = (
        "_added_by",
        "_added_key",
        "_added_to",
        "address",
        "created_s",
        "id",
        "last_command",
        "last_used_s",
        "library",
        "library_version",
        "local_address",
        "name",
        "principal",
        "protocol",
        "refusals",
        "subscriptions",
        "transaction",
        "watched",
    )

    def __init__(self, number: int, address: str, local_address: str, now_s: float) -> None:
        self.id = number
        self.address = address
        self.local_address = local_address
        self.created_s = self.last_used_s = now_s
        self.principal: Principal | None = None
        # How often it was refused while it was not known.
        self.refusals = 0
        self.protocol: Protocol = 2
        self.name = b""
        self.library = b""
        self.library_version = b""
        self.last_command = b"NULL"
        # What was queued since MULTI, None outside of a transaction.
        self.transaction: Transaction | None = None
        self.watched = Watched()
        # The last name under which it could add, as whom, and the stream.
        self._added_key = b""
        self._added_by: Principal | None = None
        self._added_to: str | None = None
        # The number of its subscriptions.
        self.subscriptions: Callable[[], int] = lambda: 0

    def forget(self) -> None:
        """RESET: as newly connected, but for its number."""
        self.protocol, self.name = 2, b""
        self.end_transaction()

    def end_transaction(self) -> None:
        """Nothing is queued and watched any more."""
        self.transaction = None
        self.watched.streams.clear()

    @property
    def is_subscriber(self) -> bool:
        """Whether it has subscriptions."""
        return self.subscriptions() > 0

    @property
    def user(self) -> str:
        """What ACL WHOAMI answers."""
        return "default" if self.principal is None else user_of(self.principal)

    @property
    def prefix(self) -> str:
        """What its names of streams begin with in the engine."""
        return "" if self.principal is None else self.principal.prefix

    @property
    def host(self) -> str:
        """The address without the port; the path of a Unix socket."""
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def caller(self) -> str:
        """For whom its shares are counted: its address until it is known."""
        return caller_of(self.principal or UNAUTHENTICATED, self.host)

    @property
    def quotas(self) -> Sequence[Quota]:
        """Those of its grants."""
        return () if self.principal is None else self.principal.quotas

    def refusal_of(self, parsed: CommandRequest) -> EngineError | None:
        """NOPERM, or None where the client may run the command."""
        found = (
            self._refusal(action, resource, parsed.name)
            for action, resource in needed(parsed, self.principal or UNAUTHENTICATED)
        )
        return next((refusal for refusal in found if refusal is not None), None)

    def stream_to_add_to(self, key: bytes) -> str | None:
        """The stream of this name, remembered for the next XADD; None where the client may not add to it."""
        if key != self._added_key or self.principal is not self._added_by:
            stream = stream_of(key)
            if stream is None or self._refusal(Action.WRITE, Resource(stream), "xadd") is not None:
                return None
            self._added_key, self._added_by, self._added_to = key, self.principal, stream
        return self._added_to

    def refusal_of_watch(self, streams: Iterable[str]) -> EngineError | None:
        """NOPERM, or None where the client may WATCH these streams."""
        found = (self._refusal(Action.READ, Resource(stream), "watch") for stream in streams)
        return next((refusal for refusal in found if refusal is not None), None)

    def _refusal(self, action: Action, resource: Resource, command: str) -> EngineError | None:
        principal = self.principal
        if principal is None:
            return EngineError("unauthenticated", NOAUTH)
        if principal.may(action, resource):
            return None
        if principal.has_to_name_consumer(action, resource):
            return EngineError("forbidden", f"NOPERM {NAME_CONSUMER}")
        if resource.stream is not None and principal.may_somewhere(action):
            return EngineError("forbidden", "NOPERM No permissions to access a key")
        return EngineError(
            "forbidden", f"NOPERM User {self.user} has no permissions to run the '{command}' command"
        )

    @property
    def may_see_everything(self) -> bool:
        """Whether facts about all streams may be shown."""
        return self.may(Action.READ, Resource())

    def may(self, action: Action, resource: Resource) -> bool:
        """Whether it may do this."""
        return self.principal is not None and self.principal.may(action, resource)

    def may_see(self, stream: str) -> bool:
        """Whether the stream's name may be shown."""
        return self.principal is not None and self.principal.may_see(stream)


def user_of(principal: Principal) -> str:
    """The name of a caller as a user of Redis: a token's ID, a JWT's subject."""
    kind, colon, name = principal.name.partition(":")
    return name if colon else "default" if kind == "anonymous" else kind
