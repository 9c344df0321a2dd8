"""The names of one tenant, and the names that the engine has for them.

Knows: the prefix, and what stands in the place of a name that is not the tenant's.
Must never know: commands, replies.
"""

from typing import Final

from engine import EngineError, errors
from engine.name_rules import NAME_BYTES_MAX, RESERVED, is_name

# Shown for a stream of others, as where an operator lets a group write its dead letters elsewhere. No stream
# has this name.
OUTSIDE: Final = "/"
# Stands between the prefix and a tenant's key: no key of a client contains it.
_KEY_SEPARATOR: Final = "\x1f"


class TenantNames:
    """Adds the tenant's prefix to names, and takes it away."""

    def __init__(self, prefix: str) -> None:
        self.prefix: Final = prefix
        self.prefix_bytes: Final = prefix.encode()

    def add(self, name: str) -> str:
        """The engine's name of a stream. Raises `invalid_name` where it is too long, or Weir's own."""
        full = self.prefix + name
        if full.startswith(RESERVED):
            raise errors.invalid_name("stream name")
        if len(full.encode()) > NAME_BYTES_MAX:
            detail = f"a stream name has at most {NAME_BYTES_MAX - len(self.prefix_bytes)} bytes here"
            raise EngineError("invalid_name", f"ERR invalid name: {detail}", detail)
        return full

    def add_to_key(self, key: str) -> str:
        """The engine's name of a key that belongs to no stream."""
        return f"{self.prefix}{_KEY_SEPARATOR}{key}"

    def has(self, full: str) -> bool:
        """Whether the tenant can use the stream of this name in the engine."""
        # A stream of others may leave what no request can use: "acme" and "acme/orders" leave "/orders".
        return full.startswith(self.prefix) and is_name(full[len(self.prefix) :].encode())

    def strip(self, full: str) -> str:
        """The tenant's name of a stream of the engine."""
        return full[len(self.prefix) :] if self.has(full) else OUTSIDE


class RecordedNames(TenantNames):
    """Remembers what it was asked for: `added` has the tenant's names by those of the engine."""

    def __init__(self, prefix: str) -> None:
        super().__init__(prefix)
        self.added: dict[str, str] = {}

    def add(self, name: str) -> str:
        full = super().add(name)
        self.added[full] = name
        return full

    def add_to_key(self, key: str) -> str:
        full = super().add_to_key(key)
        self.added[full] = key
        return full
