"""Effects: what a session asks its connection to do, in order. Also the limits of a session.

Knows: each effect and the session method that gets its result. Must never know: how an effect is performed.
"""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import UnsetType

from app.http.cursors import Place
from app.limits import EntryLimits
from app.live.leases import ConsumerKey
from engine.commands import Command, XReadGroup

Ref = str | int | UnsetType


class Effect(msgspec.Struct, frozen=True):
    """The base class of effects."""


class SendFrame(Effect, frozen=True):
    """Write these bytes; they deliver `entry_ids` to the consumer of subscription `key`.

    `code` is the error code, if the frame is an `error`.
    """

    data: bytes
    key: int = 0
    entry_ids: Sequence[int] = ()
    code: str = ""


class Submit(Effect, frozen=True):
    """Run commands in one turn, then call `done(token, replies)`; if `synced`, once they are on disk.

    With a `traceparent` there is one command, a publish that belongs to this trace.
    """

    token: int
    commands: Sequence[Command]
    synced: bool = False
    traceparent: bytes | None = None


class NoteRefusedEnd(Effect, frozen=True):
    """Have the audit log say that a publish was not allowed to close this stream."""

    stream: str
    code: str


class Authenticate(Effect, frozen=True):
    """Authenticate the token before any further frame, then call `on_principal`."""

    ref: Ref
    token: str


class RunCommand(Effect, frozen=True):
    """Run this Redis command before any further frame, then call `on_command_result`."""

    ref: Ref
    command: bytes


class Subscribe(Effect, frozen=True):
    """Follow these streams from their cursors, then call `on_subscribed` or `on_subscribe_refused`."""

    key: int
    streams: Mapping[str, Place]
    last: int | None


class FetchPage(Effect, frozen=True):
    """Take the next page of a stream that is ready, then call `on_page`."""

    key: int
    stream: str
    count_max: int
    bytes_max: int


class AcquireLease(Effect, frozen=True):
    """Lease a consumer; call `on_lease` when its previous reader has ended."""

    key: int
    consumer: ConsumerKey


class ReadGroup(Effect, frozen=True):
    """Read, which may block, then call `on_delivery`. `going_on`: the previous read delivered entries."""

    key: int
    command: XReadGroup
    going_on: bool = False


class Rest(Effect, frozen=True):
    """Wait a moment for the backend, then call `on_rested`."""

    key: int


class Unsubscribe(Effect, frozen=True):
    """End a subscription: its reads, and following its streams."""

    key: int


class Close(Effect, frozen=True):
    """Close the connection."""

    code: int
    reason: str


Effects = list[Effect]


class SessionLimits(msgspec.Struct, frozen=True):
    """Limits of one session: subscriptions, followed streams of all subscriptions, IDs in a frame, IDs in
    a frame that looks entries up, entries in a frame.
    """

    subscriptions_max: int
    streams_max: int
    ids_max: int
    lookups_max: int
    batch_max: int
    publications: EntryLimits
