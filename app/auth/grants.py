"""Grants: which actions are allowed on which streams, groups and consumers.

Knows: how a grant is written, when it allows something, when it covers another grant.
Must never know: tokens, requests, which operation needs which action.

    read:orders.*                                         actions and streams, the short form
    {"actions": ["consume"], "streams": "orders.*", "groups": "billing-*", "consumer": "w1"}     all of it
"""

import json
from functools import lru_cache
from typing import Annotated, Any, Final, NamedTuple, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from app.auth.actions import Action
from app.glob import Glob

ALL: Final = "*"
# A grant names streams by a pattern, which is matched at each first use of a stream.
PATTERN_CHARS_MAX: Final = 512
# Patterns that are kept read.
_PATTERNS_MAX: Final = 1_024
_OF_GROUPS: Final = frozenset((Action.CONSUME, Action.MANAGE))


class Resource(NamedTuple):
    """What an action is about. Without a stream it is about all streams, or about the gateway itself."""

    stream: str | None = None
    group: str | None = None
    consumer: str | None = None


def _actions(value: object) -> object:
    """`*` stands for all actions."""
    return list(Action) if value in ([ALL], ALL) else value


Pattern = Annotated[str, Field(min_length=1, max_length=PATTERN_CHARS_MAX)]


class Grant(BaseModel):
    """One permission. A token may do what any one of its grants allows.

    `streams` and `groups` are glob patterns. `groups` and `consumer` narrow what is done in groups, and leave
    reading and publishing alone. `origins` are the only web pages that may use it; programs are not pages.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    actions: Annotated[frozenset[Action], BeforeValidator(_actions), Field(min_length=1)]
    streams: Pattern = ALL
    groups: Pattern | None = None
    consumer: Pattern | None = None
    origins: tuple[str, ...] = ()

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
        if action not in self.actions:
            return False
        if not _matches(self.streams, resource.stream):
            return False
        if resource.group is None:
            # What is done to a whole stream may destroy groups that the grant does not name.
            return self.groups is None or action not in _OF_GROUPS
        if self.groups is not None and not _matches(self.groups, resource.group):
            return False
        return self.consumer is None or resource.consumer in (None, self.consumer)

    def allows_page(self, origin: str) -> bool:
        """Whether a web page of this origin may use it."""
        return not self.origins or origin in self.origins

    def describe(self) -> str | dict[str, Any]:
        """The shortest form that says all of it, for lists and files."""
        if self.groups is None and self.consumer is None and not self.origins:
            actions = ALL if len(self.actions) == len(Action) else ",".join(sorted(self.actions))
            return f"{actions}:{self.streams}"
        return self.model_dump(mode="json", exclude_defaults=True) | {"actions": sorted(self.actions)}


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


_glob: Final = lru_cache(_PATTERNS_MAX)(lambda pattern: Glob(pattern.encode()))
