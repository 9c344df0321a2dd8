"""What callers may be allowed to do.

Knows: what each action means. Must never know: which route or command needs which action.
"""

from enum import Enum, StrEnum


class Action(StrEnum):
    """What a grant allows on the streams that it names."""

    READ = "read"
    """Read entries, and look at streams, groups and consumers."""
    WRITE = "write"
    """Publish, trim and delete entries."""
    CONSUME = "consume"
    """Read in groups, acknowledge, release and claim."""
    MANAGE = "manage"
    """Create, change and delete streams and groups."""
    ADMIN = "admin"
    """Operate the gateway: status, backups, rewrites, tokens."""


class Access(Enum):
    """Routes that need no action of their own."""

    OPEN = "open"
    """No authorization: health, documents."""
    PER_COMMAND = "per command"
    """The handler authorises each command."""
    PER_STREAM = "per stream"
    """The handler authorises each stream of the body."""


Rule = Action | Access
