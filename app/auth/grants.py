"""Actions and grants: which actions are allowed on which streams, groups and consumers.

Knows: how a grant is written, when it allows something, when it covers another grant.
Must never know: tokens, requests, which operation needs which action.

    read:orders.*                                         actions and streams, the short form
    {"actions": ["consume"], "streams": "orders.*", "groups": "billing-*", "consumer": "w1"}     all of it
"""

import json
from collections.abc import Sequence
from enum import Enum, StrEnum
from functools import lru_cache
from typing import Annotated, Any, Final, NamedTuple, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
)

from app import names
from app.glob import Glob, literal
from engine import EngineError, Quota

ALL: Final = "*"
# A grant names streams by a pattern, which is matched at each first use of a stream.
PATTERN_CHARS_MAX: Final = 512
# Names with it are as long as other names, so it leaves room.
PREFIX_BYTES_MAX: Final = 128
RATE_MAX: Final = 1_000_000_000
BYTES_RATE_MAX: Final = 1 << 50
STREAMS_MAX: Final = 1_000_000_000
# Patterns that are kept read.
_PATTERNS_MAX: Final = 1_024


class Action(StrEnum):
    """What a grant allows on the streams that it names."""

    READ = "read"
    """Read entries, and look at streams, groups and consumers."""
    WRITE = "write"
    """Publish and delete entries."""
    CONSUME = "consume"
    """Read in groups, acknowledge, release and claim."""
    CLOSE = "close"
    """End streams for good. Who may manage a stream may close it; who may write may not."""
    MANAGE = "manage"
    """Create, change, trim and delete streams and groups."""
    ADMIN = "admin"
    """Operate the gateway: status, backups, rewrites, tokens."""
    ISSUE = "issue"
    """Pass the grant on: make tokens that it covers."""


class Access(Enum):
    """Routes that need no action of their own."""

    OPEN = "open"
    """No authorization: health, documents."""
    PER_COMMAND = "per command"
    """The handler authorises each command."""
    PER_TOKEN = "per token"  # noqa: S105 - the handler decides, there is no secret
    """Any token will do, or the handler authorises by what it allows."""
    PER_STREAM = "per stream"
    """The handler authorises each stream of the body."""


Rule = Action | Access

_OF_GROUPS: Final = frozenset((Action.CONSUME, Action.MANAGE))


# The consumer of a resource where a caller that names none would get at what any consumer holds.
ANY_CONSUMER: Final = ""


class Resource(NamedTuple):
    """What an action is about. Without a stream it is about all streams, or about the gateway itself. Without
    a consumer it is about what belongs to none: a grant is narrowed to its consumer where there is one, or
    `ANY_CONSUMER`.
    """

    stream: str | None = None
    group: str | None = None
    consumer: str | None = None


def _actions(value: object) -> object:
    """`*` stands for all actions."""
    return list(Action) if value in ([ALL], ALL) else value


Pattern = Annotated[str, Field(min_length=1, max_length=PATTERN_CHARS_MAX)]


def _check_prefix(prefix: str) -> str:
    """What names of streams begin with: of the same bytes as they. Raises ValueError."""
    try:
        # It may end with a slash, as of a folder.
        names.check_text(f"{prefix}x", "name with the prefix")
    except EngineError as error:
        raise ValueError(error.detail) from None
    if len(prefix.encode()) > PREFIX_BYTES_MAX:
        raise ValueError(f"a prefix has at most {PREFIX_BYTES_MAX} bytes")
    return prefix


Prefix = Annotated[str, Field(min_length=1, max_length=PREFIX_BYTES_MAX), AfterValidator(_check_prefix)]


class GrantRate(BaseModel):
    """The rate of a grant: a rate of 0 is no limit, a burst of 0 that of one second."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    requests_per_s: Annotated[int, Field(ge=0, le=RATE_MAX)] = 0
    requests_burst: Annotated[int, Field(ge=0, le=RATE_MAX)] = 0
    bytes_per_s: Annotated[int, Field(ge=0, le=BYTES_RATE_MAX)] = 0
    bytes_burst: Annotated[int, Field(ge=0, le=BYTES_RATE_MAX)] = 0


class Grant(BaseModel):
    """One permission. A token may do what any one of its grants allows.

    `streams` and `groups` are glob patterns. `groups` and `consumer` narrow what is done in groups, and leave
    reading and publishing alone. `origins` are the only web pages that may use it; programs are not pages.
    `rate` takes the place of the gateway's rate limits for all that the token does. With `streams_max` and
    `bytes_max` (0: no limit) the token neither makes more streams that match `streams` nor adds to them while
    they take more memory, by any of its grants. With a `prefix` the caller has only streams whose names begin
    with it; it neither writes nor sees the prefix, which is not part of `streams` either. Such a grant allows
    nothing that is about all streams.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    actions: Annotated[
        frozenset[Action],
        BeforeValidator(_actions),
        # The same schema for what comes and what goes.
        Field(min_length=1, json_schema_extra={"minItems": 1, "uniqueItems": True}),
        PlainSerializer(sorted, return_type=list[Action]),
    ]
    streams: Pattern = ALL
    groups: Pattern | None = None
    consumer: Pattern | None = None
    origins: tuple[str, ...] = ()
    rate: GrantRate | None = None
    streams_max: Annotated[int, Field(ge=0, le=STREAMS_MAX)] = 0
    bytes_max: Annotated[int, Field(ge=0, le=BYTES_RATE_MAX)] = 0
    prefix: Prefix | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a grant in either form. Raises ValueError, with a sentence."""
        return cls.from_value(text if not text.startswith("{") else _object(text))

    @classmethod
    def from_value(cls, value: object) -> Self:
        """A grant as a configuration file or a claim holds it: text, or an object. Raises ValueError."""
        if isinstance(value, str):
            actions, colon, streams = value.partition(":")
            if not colon:
                raise ValueError(
                    f"{value!r} is no grant: write ACTIONS:STREAMS, for example read,write:orders.*"
                )
            value = {"actions": [word.strip() for word in actions.split(",")], "streams": streams}
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "grant"
            raise ValueError(f"{value!r} is no grant: {where}: {first['msg']}") from None

    def allows(self, action: Action, resource: Resource) -> bool:
        """Whether it allows the action there."""
        if not self._has(action):
            return False
        if self.prefix is not None and resource.stream is None:
            return False
        if not _matches(self.streams, resource.stream):
            return False
        if resource.group is None:
            # What is done to a whole stream may destroy groups that the grant does not name.
            return self.groups is None or action not in _OF_GROUPS
        if self.groups is not None and not _matches(self.groups, resource.group):
            return False
        return self.consumer is None or resource.consumer in (None, self.consumer)

    def _has(self, action: Action) -> bool:
        """Whether the action is one of its own. Who manages all of a stream may also close it."""
        return action in self.actions or (
            action is Action.CLOSE and Action.MANAGE in self.actions and self.groups is None
        )

    @property
    def real_streams(self) -> str:
        """The pattern of its streams with the prefix."""
        return literal(self.prefix or "") + self.streams

    @property
    def has_quota(self) -> bool:
        """Whether it limits the streams that it names."""
        return bool(self.streams_max or self.bytes_max)

    def limits(self, other: "Grant") -> bool:
        """Whether its quota is as narrow as that of the other one, of the same streams or more."""
        return (
            _within(self.streams_max, other.streams_max)
            and _within(self.bytes_max, other.bytes_max)
            and _covers(self.real_streams, other.real_streams)
        )

    def may_share_streams(self, other: "Grant") -> bool:
        """Whether a stream may match both patterns: false only where their beginnings differ."""
        own, others = _glob(self.real_streams).prefix, _glob(other.real_streams).prefix
        return own.startswith(others) or others.startswith(own)

    def quota(self) -> Quota | None:
        """How much there may be of the streams that it names; None for any."""
        if not self.has_quota:
            return None
        return quota_of(self.real_streams, self.streams_max or None, self.bytes_max or None)

    def allows_page(self, origin: str) -> bool:
        """Whether a web page of this origin may use it."""
        return not self.origins or origin in self.origins

    def covers(self, other: "Grant") -> bool:
        """Whether it allows everything that the other one does, as far as the patterns show it. Rates and
        quotas hold for all of a token, and are not compared here.
        """
        if not all(map(self._has, other.actions)):
            return False
        if self.groups is not None and (other.groups is None or not _covers(self.groups, other.groups)):
            return False
        if self.origins and not (other.origins and set(other.origins) <= set(self.origins)):
            return False
        if not (other.prefix or "").startswith(self.prefix or ""):
            return False
        return (
            self.consumer in (None, other.consumer)
            # Of members that are not compared here nothing is known: the same is covered.
            and all(getattr(self, name) == getattr(other, name) for name in _NOT_COMPARED)
            and _covers(self.real_streams, other.real_streams)
        )

    def under(self, prefix: str) -> "Grant":
        """The grant as a caller with this prefix passes it on. Raises ValueError if both are too long."""
        if not prefix:
            return self
        return self.model_copy(update={"prefix": _check_prefix(prefix + (self.prefix or ""))})

    def within(self, prefix: str) -> "Grant":
        """The grant as a caller with this prefix sees it: the opposite of `under`."""
        if not prefix:
            return self
        assert self.prefix is not None, "it is of the same tenant"
        return self.model_copy(update={"prefix": self.prefix.removeprefix(prefix) or None})

    def describe(self) -> str | dict[str, Any]:
        """The shortest form that says all of it, for lists and files."""
        if self == Grant(actions=self.actions, streams=self.streams):
            actions = ALL if len(self.actions) == len(Action) else ",".join(sorted(self.actions))
            return f"{actions}:{self.streams}"
        return self.model_dump(mode="json", exclude_defaults=True)


def _object(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is no grant: {error}") from None


def _matches(pattern: str, name: str | None) -> bool:
    """Whether a name fits; only `*` allows what is about all names."""
    if pattern == ALL:
        return True
    return name is not None and _glob(pattern).matches(name.encode())


_COMPARED: Final = ("actions", "streams", "groups", "consumer", "origins", "prefix")
_OF_THE_TOKEN: Final = ("rate", "streams_max", "bytes_max")
_NOT_COMPARED: Final = [name for name in Grant.model_fields if name not in (*_COMPARED, *_OF_THE_TOKEN)]


def _within(limit: int, other: int) -> bool:
    """Whether one limit is at most the other; 0 is none."""
    return not other or 0 < limit <= other


def quota_of(pattern: str, streams_max: int | None, bytes_max: int | None) -> Quota:
    """A quota of the streams whose names match the pattern, as the engine has them."""
    glob = _glob(pattern)
    return Quota(
        pattern,
        # A character may be cut.
        glob.prefix.decode(errors="ignore"),
        lambda name: glob.matches(name.encode()),
        streams_max,
        bytes_max,
    )


def common_prefix(grants: Sequence[Grant]) -> str:
    """The prefix of all the grants of a caller, empty without one. Raises ValueError where they differ."""
    found = {grant.prefix or "" for grant in grants}
    if len(found) > 1:
        raise ValueError("all grants of a token have the same prefix, or none has one")
    return found.pop() if found else ""


def _covers(pattern: str, other: str) -> bool:
    """Whether every name that fits the other pattern fits this one; only `*` covers `*`, which is more."""
    if ALL in (pattern, other) or pattern == other:
        return pattern in (ALL, other)
    return _glob(pattern).covers(_glob(other))


_glob: Final = lru_cache(_PATTERNS_MAX)(lambda pattern: Glob(pattern.encode()))


def readable(grants: Sequence[Grant]) -> Sequence[Glob]:
    """The patterns of the streams that may be read: `*` alone where these are all."""
    patterns = {grant.streams for grant in grants if Action.READ in grant.actions}
    return [*map(_glob, {ALL} if ALL in patterns else patterns)]
