"""A consumer's place in a group of each of its streams: how the groups are made, and what is said of them.

Knows: that a stream or its group can be missing, paused, made anew, or of another order.
Must never know: what the consumer holds, how its entries come.
"""

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from weir._async_client import AsyncClient, AsyncGroup
from weir.entries import Gap
from weir.errors import (
    ForbiddenError,
    GroupDeletedError,
    InvalidValueError,
    NotFoundError,
    StreamDeletedError,
    describe_gap,
)

log: Final = logging.getLogger("weir.worker")


@dataclass(eq=False)
class Membership:
    """One consumer of one group, of a stream or of several. `start` is where a group that is created begins;
    after `claim_min_idle_ms` others' entries are taken over (None: never).
    """

    client: AsyncClient
    streams: Sequence[str]
    group: str
    consumer: str
    start: str
    claim_min_idle_ms: int | None
    # Of the group, where it is to have one.
    order: Mapping[str, object]
    on_gap: Callable[[Gap], None] | None
    # Of which streams the group delivers nothing, as far as this consumer knows.
    _paused: set[str] = field(default_factory=set)

    @cached_property
    def groups(self) -> list[AsyncGroup]:
        """That of each stream."""
        return [self.client.group(stream, self.group) for stream in self.streams]

    @property
    def stream(self) -> str:
        """The first one."""
        return self.streams[0]

    @property
    def is_paused(self) -> bool:
        """Whether it knows that its group is paused, of any stream."""
        return bool(self._paused)

    def note_paused(self, stream: str, *, paused: bool) -> None:
        """The group of a stream delivers nothing, or again: said once in the log."""
        if paused != (stream in self._paused):
            self._paused ^= {stream}
            what = "is paused: nothing comes until it is resumed" if paused else "was resumed"
            log.warning("group %s of %s %s", self.group, stream, what)

    def gap(self, gap: Gap, stream: str) -> None:
        """Entries of the stream were removed before the group had read them."""
        if self.on_gap is not None:
            self.on_gap(gap)
        else:
            sentence = describe_gap(stream, gap.requested, gap.lost, gap.reason)
            log.warning("group %s: %s", self.group, sentence)

    async def make_groups(self) -> None:
        """Have the group of each stream, in its order. Raises InvalidValueError for one that is there with
        another order, ApiError.
        """
        for stream in self.streams:
            await self.make_group(stream, self.start)

    async def make_group(self, stream: str, start: str) -> None:
        """The same of one stream."""
        found = await self.client.group(stream, self.group).ensure(start=start, **self.order)
        if any(found.get(name) != value for name, value in self.order.items()):
            by, most = found.get("ordered_by"), found.get("in_flight_per_key")
            there = f"ordered_by={by!r}, in_flight_per_key={most}" if by else "no order"
            remedy = "leave the order to it, or change it first"
            raise InvalidValueError(f"the group {self.group!r} of {stream!r} is there with {there}: {remedy}")

    async def name_missing(self, error: NotFoundError) -> tuple[str, NotFoundError]:
        """What is gone, and of which stream: gateways also say `no_group` where the stream is missing."""
        if isinstance(error, StreamDeletedError | GroupDeletedError):
            return self.stream, error
        for stream in self.streams:
            with contextlib.suppress(ForbiddenError):
                if await self.client.get_stream(stream) is None:
                    return stream, StreamDeletedError(stream)
        for group in self.groups[:-1]:
            try:
                await group.info()
            except NotFoundError:
                return group.stream, GroupDeletedError(group.stream, self.group)
            except ForbiddenError:
                continue
        return self.streams[-1], GroupDeletedError(self.streams[-1], self.group)
