"""What a conversation wants done: effects, in order; and what may be asked for.

Knows: each effect and the event that answers it. Must never know: how anything is done.
"""

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import UnsetType

from app.http.entry_bodies import EntryLimits
from app.live.in_flight import ConsumerKey
from engine.commands import Command, Cursor, XReadGroup

Ref = str | int | UnsetType


class Effect(msgspec.Struct, frozen=True):
    """The base of all: what is to be done, in this order."""


class SendFrame(Effect, frozen=True):
    """Write these bytes. `entry_ids` are delivered with them to the consumer of subscription `key`."""

    data: bytes
    key: int = 0
    entry_ids: Sequence[int] = ()


class Submit(Effect, frozen=True):
    """Run these commands as one turn, now; then `done(token, replies)`, if `synced` once it is on disk."""

    token: int
    commands: Sequence[Command]
    synced: bool = False


class RunCommand(Effect, frozen=True):
    """Run this Redis command, nothing else meanwhile; then `asked`."""

    ref: Ref
    command: bytes


class Subscribe(Effect, frozen=True):
    """Follow these streams from there; then `opened`, or `not_opened`."""

    key: int
    streams: Mapping[str, int | Cursor]
    last: int | None


class FetchPage(Effect, frozen=True):
    """Take the next page of a stream that is ready; then `took`."""

    key: int
    stream: str
    count_max: int
    bytes_max: int


class AcquireLease(Effect, frozen=True):
    """Be the only one who reads as this consumer, once whoever was has ended; then `owned`."""

    key: int
    consumer: ConsumerKey


class ReadGroup(Effect, frozen=True):
    """Read, waiting if need be; then `delivered`. `going_on` is behind what was just delivered."""

    key: int
    command: XReadGroup
    going_on: bool = False


class Unsubscribe(Effect, frozen=True):
    """The subscription has ended: end its waits, follow its streams no more."""

    key: int


class Close(Effect, frozen=True):
    """End the connection."""

    code: int
    reason: str


Effects = list[Effect]


class SessionLimits(msgspec.Struct, frozen=True):
    """What a conversation may ask for: subscriptions, streams of all of them, IDs, IDs of entries
    that are looked up, entries of one frame.
    """

    subscriptions_max: int
    streams_max: int
    ids_max: int
    lookups_max: int
    batch_max: int
    entries: EntryLimits
