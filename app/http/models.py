"""What requests and answers are made of: base models, and the types of their values.

Knows: how an ID, a name, a whole number stand in JSON and in text, how each is validated and described.
Must never know: operations, statuses, how a request arrives.

A type validates and describes itself, so that the document cannot differ from what is enforced. A bound that
is the name of a setting is looked up in `Context.settings`; in the document it is `x-<keyword>-setting` until
`openapi.document` resolves it.

Validators raise PydanticCustomError, whose type is the refusal's code; `at` in its context is the index of a
list's item, or the name of an object's member, which Pydantic does not know.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, get_type_hints, overload

import msgspec
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationInfo,
    create_model,
)
from pydantic_core import PydanticCustomError, PydanticUseDefault, core_schema

from app import names
from app.errors import RefusalError
from app.http import cursors, media, projection, query
from app.http.cursors import CursorForm, Place
from app.settings import Settings
from engine import EngineError, ids
from engine.commands.types import Cursor
from engine.name_rules import NAME_BYTES_MAX, RESERVED

# JavaScript's Number.MAX_SAFE_INTEGER: above it neighbouring integers become one.
INTEGER_MAX: Final = (1 << 53) - 1
NAME_CHARACTERS: Final = r"[^\u0000-\u001f\u007f-\u009f]"
NOT_MISLEADING: Final = rf"(?!{RESERVED}|(?:[^/]+/)*\.{{0,2}}(?:/|$))"
NAME_PATTERN: Final = f"^{NOT_MISLEADING}{NAME_CHARACTERS}+$"
ID_PATTERN: Final = "[0-9]{1,20}(-[0-9]{1,20})?"

_DEFAULTS: Final = Settings.model_construct()
_WHOLE: Final = re.compile(r"-?[0-9]{1,19}")
_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}
NAME_SCHEMA: Final[dict[str, Any]] = {
    "type": "string",
    "minLength": 1,
    "maxLength": NAME_BYTES_MAX,
    "pattern": NAME_PATTERN,
}
_ID_SCHEMA: Final[dict[str, object]] = {
    "type": "string",
    "format": "entry-id",
    "pattern": f"^{ID_PATTERN}$",
}
_CURSORS: Final = {"$": Cursor.LATEST, ">": Cursor.NEW}
_ID_HINT: Final = "it is an ID, '<ms>-<seq>' or '<ms>'"


class Context(NamedTuple):
    """What validation depends on: the settings, and whether values are text (of paths, queries, headers)."""

    settings: Settings
    is_text: bool


class RequestModel(BaseModel):
    """A JSON object of a request: closed, and without coercion. A member that is null was not given, unless
    the operation says what null means.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    # Of a patch, where null takes something away: members that cannot be taken away refuse it.
    is_patch: ClassVar[bool] = False

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:  # noqa: ANN401 - pydantic's
        schema = handler(source)
        if cls.is_patch:
            return schema
        fields: Any = handler.resolve_ref_schema(schema)
        while fields["type"] != "model-fields":
            fields = fields["schema"]
        for field in fields["fields"].values():
            optional = field["schema"]
            if optional["type"] == "default" and optional["schema"]["type"] != "nullable":
                given = core_schema.nullable_schema(optional["schema"])
                optional["schema"] = core_schema.no_info_after_validator_function(_default_for_null, given)
        return schema


def _default_for_null(value: object) -> object:
    if value is None:
        raise PydanticUseDefault
    return value


class QueryModel(BaseModel):
    """Several parameters of a query, for operations that share them. What goes with what is a validator."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ResponseModel(msgspec.Struct):
    """A JSON object of an answer: open, so that it can grow. It is described and written by one class."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:  # noqa: ANN401 - pydantic's
        return handler(described(cls))

    def json(self) -> bytes:
        """Its text."""
        return _ENCODER.encode(self)


@cache
def described(answer: type[ResponseModel] | type[BaseModel]) -> type[BaseModel]:
    """A model with the members of an answer, for the document; any other as it is."""
    if issubclass(answer, BaseModel):
        return answer
    types = get_type_hints(answer, include_extras=True)
    members: dict[str, Any] = {
        member.name: (types[member.name], ... if member.required else Field(default=None))
        for member in msgspec.structs.fields(answer)
    }
    return create_model(answer.__name__, __doc__=answer.__doc__, __module__=answer.__module__, **members)


def _plain(model: object) -> object:
    """What a member is written as that is a model of what is kept: a grant."""
    assert isinstance(model, BaseModel), "members are plain values, other answers, or what is kept"
    return model.model_dump(mode="json")


_ENCODER: Final = msgspec.json.Encoder(enc_hook=_plain)


# The default of an answer's member that is left out where there is nothing to say; it is never null.
ABSENT: Final[Any] = msgspec.UNSET


def raw(texts: Iterable[bytes]) -> Any:  # noqa: ANN401 - stands for a list of answers
    """A list in an answer whose items are there as JSON texts: they are not encoded again."""
    return msgspec.Raw(b"[%b]" % b",".join(texts))


def absent() -> Any:  # noqa: ANN401 - the default of a member of any type
    """The default of a request's member that need not be given, and is never null."""
    return Field(default=None)


def wrong(hint: str, code: str = "invalid", at: int | str | None = None) -> PydanticCustomError:
    """The error of a value, or of its item or member `at`; `hint` says what it should be."""
    # The hint is a value of the template: braces in it mean nothing.
    return PydanticCustomError(code, "{hint}", {"hint": hint} if at is None else {"hint": hint, "at": at})


class _Type:
    """The annotation of a value that one function validates and one schema describes."""

    def __init__(self, validate: Callable[[Any, ValidationInfo], object], **schema: object) -> None:
        self.validate = validate
        self.schema = schema

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> Any:  # noqa: ANN401
        return core_schema.with_info_plain_validator_function(self.validate)

    def __get_pydantic_json_schema__(self, core: object, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return dict(self.schema)


def _context(info: ValidationInfo) -> Context:
    context: Context = info.context  # type: ignore[assignment]  # the binder always passes one
    return context


def _bound(keyword: str, most: int | str) -> dict[str, Any]:
    if isinstance(most, int):
        return {keyword: most}
    return {keyword: getattr(_DEFAULTS, most), f"x-{keyword}-setting": most}


# ---- numbers and flags


class Whole(_Type):
    """A whole number in [least, most]; `most` may be the name of a setting. In JSON `5.0` is one too."""

    def __init__(self, least: int = 0, most: int | str = INTEGER_MAX, **schema: object) -> None:
        super().__init__(self._whole, type="integer", minimum=least, **_bound("maximum", most), **schema)
        self.least = least
        self.most = most

    def _whole(self, value: object, info: ValidationInfo) -> int:
        context = _context(info)
        most = self.most if isinstance(self.most, int) else getattr(context.settings, self.most)
        number = _number(value, is_text=context.is_text)
        if number is None or not self.least <= number <= most:
            raise wrong(f"it is a whole number between {self.least} and {most}")
        return number


def _number(value: object, *, is_text: bool) -> int | None:
    if isinstance(value, str):
        return int(value) if is_text and _WHOLE.fullmatch(value) else None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _flag(value: object, info: ValidationInfo) -> bool:
    found = _FLAGS.get(value) if _context(info).is_text and isinstance(value, str) else value
    if not isinstance(found, bool):
        raise wrong("it is true or false")
    return found


def _base64(value: object, info: ValidationInfo) -> bool:
    if not isinstance(value, str) or value.lower() != "base64":
        raise wrong("the only encoding is base64")
    return True


Flag = Annotated[bool, _Type(_flag, type="boolean")]
Base64Flag = Annotated[bool, _Type(_base64, type="string", enum=["base64"])]
"""Of headers that name an encoding: true."""
Count = Annotated[int, Whole()]
Milliseconds = Annotated[int, Whole()]
"""Of answers and of bodies."""


def _text(
    read: Callable[[str], object], hint: str = "it is text"
) -> Callable[[object, ValidationInfo], object]:
    """A value that `read` takes from text; of anything else `hint` says what it should be."""

    def validate(value: object, info: ValidationInfo) -> object:
        if not isinstance(value, str):
            raise wrong(hint)
        try:
            return read(value)
        except RefusalError as refusal:
            raise wrong(refusal.places[0].detail, refusal.code) from None

    return validate


FieldNames = Annotated[
    Sequence[str],
    _Type(
        _text(projection.parse, "it is the names of fields between commas"),
        type="string",
        pattern="^[^,]+(,[^,]+)*$",
    ),
]
"""`a,b`: names of fields between commas, each once."""


# ---- names and IDs


def check_name(value: object, what: str, at: str | None = None) -> str:
    """A name. Raises the error of a value that is none."""
    if not isinstance(value, str):
        raise wrong(f"it is a {what}, a string", at=at)
    try:
        return names.check_text(value, what)
    except EngineError as refusal:
        raise wrong(refusal.detail, refusal.code, at) from None


class NameType(_Type):
    """The name of a stream, a group or a consumer."""

    def __init__(self, what: str) -> None:
        super().__init__(
            self._name,
            **NAME_SCHEMA,
            description=(
                "1 to 512 bytes of UTF-8 without control characters; between slashes (`%2F` in paths) "
                f"nothing is empty, `.` or `..`; not beginning with `{RESERVED}`"
            ),
        )
        self.what = what

    def _name(self, value: object, info: ValidationInfo) -> str:
        return check_name(value, self.what)


StreamName = Annotated[str, NameType("stream name")]
GroupName = Annotated[str, NameType("group name")]
ConsumerName = Annotated[str, NameType("consumer name")]
ScheduleName = Annotated[str, NameType("schedule name")]


class StreamNames(_Type):
    """A list of at least one stream name and at most `most`, each once."""

    def __init__(self, most: int) -> None:
        super().__init__(
            self._names, type="array", minItems=1, maxItems=most, uniqueItems=True, items=NAME_SCHEMA
        )
        self.most = most

    def _names(self, value: object, info: ValidationInfo) -> list[str]:
        names = [check_name(one, "stream name") for one in value] if isinstance(value, list) else []
        if not 1 <= len(names) <= self.most or len({*names}) < len(names):
            raise wrong(f"it is given once for each stream, 1 to {self.most} times")
        return names


def _id(value: object, at: int | str | None = None) -> int:
    if not isinstance(value, str):
        raise wrong(_ID_HINT, at=at)
    parsed = ids.parse(value)
    if parsed is None:
        raise wrong(_ID_HINT, "malformed_id", at)
    return parsed


def _entry_id(value: object, info: ValidationInfo) -> int:
    return _id(value)


def _start(value: object, info: ValidationInfo) -> int | Cursor:
    return Cursor.LATEST if value == "$" else _id(value)


EntryId = Annotated[
    int,
    _Type(
        _entry_id,
        **_ID_SCHEMA,
        description="`<ms>-<seq>`, two unsigned 64-bit numbers",
        examples=["1526919030474-55"],
    ),
]
"""An ID as the engine has it."""


def _range_bound(*, upper: bool) -> _Type:
    which = "`+` (the default)" if upper else "`-` (the default)"
    return _Type(
        _text(partial(query.bound, upper=upper), "it is '-', '+', an ID, or '(' and an ID"),
        type="string",
        format="entry-bound",
        pattern=rf"^([-+]|\(?{ID_PATTERN})$",
        description=f"{which}, an ID, or `(` and an ID for an exclusive bound",
    )


Bound = Annotated[int, _range_bound(upper=False)]
UpperBound = Annotated[int, _range_bound(upper=True)]
"""The ends of a range, as the smallest and the largest ID that it includes."""


_A_TIME: Final = "it is a time, a string"


def _time_bound(*, upper: bool) -> _Type:
    return _Type(_text(partial(query.day_bound, upper=upper), _A_TIME), type="string", format="date-time")


TimeBound = Annotated[int, _time_bound(upper=False)]
UpperTimeBound = Annotated[int, _time_bound(upper=True)]
"""The first ID at or after a time (RFC 3339) or in a day (a date alone, UTC), and the last one at or before
it, or in it.
"""


Moment = Annotated[
    int,
    _Type(
        _text(query.time_ms, _A_TIME), type="string", format="date-time", examples=["2026-01-31T12:00:00Z"]
    ),
]
"""A time (RFC 3339) in milliseconds since 1970, rounded up; never negative."""

Start = Annotated[
    int | Cursor,
    _Type(
        _start,
        type="string",
        format="entry-cursor",
        pattern=rf"^(\$|{ID_PATTERN})$",
        description="`$` (what is there now), `0` or an ID: read what comes after it",
    ),
]


def _after(value: object, info: ValidationInfo) -> Place:
    if value == "$":
        return Place(Cursor.LATEST)
    return _place(value)


def _place(value: object, at: str | None = None) -> Place:
    if not isinstance(value, str):
        raise wrong(cursors.HINT, at=at)
    parsed = cursors.parse(value)
    if parsed is None:
        raise wrong(cursors.HINT, "malformed_id", at)
    return parsed


_CURSOR_PATTERN: Final = rf"{ID_PATTERN}(\.{cursors.GENERATION_PATTERN})?"
After = Annotated[
    Place,
    _Type(
        _after,
        type="string",
        format="entry-cursor",
        pattern=rf"^(\$|{_CURSOR_PATTERN})$",
        description="`$` (what is there now), `0`, an ID or a cursor that was given: read what comes after",
    ),
]

GivenCursor = Annotated[
    Place,
    _Type(
        lambda value, _: _place(value),
        type="string",
        format="entry-cursor",
        pattern=f"^{_CURSOR_PATTERN}$",
        description="`0`, an ID or a cursor that was given: read what comes after it",
    ),
]
"""As `After`, where nothing can come later."""

CursorFormat = Annotated[
    CursorForm,
    Field(
        description="`generation`: cursors are `<id>.<generation>`, which tells a stream from another one "
        "that has its name later"
    ),
]

CursorText = Annotated[
    str,
    Field(
        pattern=f"^{_CURSOR_PATTERN}$",
        description="a cursor: an ID; with `cursor=generation`, `<id>.<generation>`",
        examples=["1526919030474-55"],
        json_schema_extra={"format": "entry-cursor"},
    ),
]
"""A cursor in an answer."""

IdText = Annotated[
    str,
    Field(
        pattern=f"^{ID_PATTERN}$",
        description="`<ms>-<seq>`, two unsigned 64-bit numbers",
        examples=["1526919030474-55"],
        json_schema_extra={"format": "entry-id"},
    ),
]
"""An ID in an answer."""

NameText = Annotated[
    str,
    Field(min_length=1, max_length=NAME_BYTES_MAX, json_schema_extra={"pattern": NAME_PATTERN}),
]
"""A name in an answer."""


GAP_REASON: Final = (
    "`trimmed`; `failover`: the backend's server failed, and the one that took over lacks the last entries; "
    "`ahead`: the cursor is above the stream's last ID; `deleted`, `expired`: there is no such stream any "
    "more; `recreated`, `replaced`: another stream has the name; `restored`: from a backup. There may be "
    "others: each is a gap"
)


class Gap(ResponseModel):
    """Entries after the cursor are not there to be read; `lost` is null where it is unknown.

    Without a `reason` they were removed from the front (`trimmed`, where cursors have generations). Where
    there is a `next` it is the cursor to go on from.
    """

    requested: IdText
    first_available: IdText
    lost: int | None
    reason: Annotated[str, Field(description=GAP_REASON, examples=["recreated"])] = ABSENT
    next: CursorText = ABSENT


def _header(read: Callable[[bytes], object]) -> Callable[[object, ValidationInfo], object]:
    """A header's value, by the grammar in `media`."""
    return _text(lambda value: read(value.encode("latin-1")))


IfMatch = Annotated[
    int | Literal["*"],
    _Type(
        _header(media.if_match),
        type="string",
        format="entry-etag",
        pattern=rf'^(\*|"{ID_PATTERN}")$',
    ),
]
"""The ID in quotation marks that the last entry is to have, or `*`."""

EntityTags = Annotated[
    Sequence[bytes] | Literal["*"],
    _Type(
        _header(media.entity_tags),
        type="string",
        format="entity-tags",
        pattern=r'^(\*|(W/)?"[!#-+\--~]*"( *, *(W/)?"[!#-+\--~]*")*)$',
    ),
]
"""The tags of the representations that a change may start from, or `*`."""

_KEY_SCHEMA: Final[dict[str, object]] = {
    "type": "string",
    "minLength": 1,
    "maxLength": media.IDEMPOTENCY_KEY_BYTES_MAX,
    "pattern": "^[!-~]([ -~]*[!-~])?$",
}
IdempotencyKey = Annotated[str, _Type(_header(media.idempotency_key), **_KEY_SCHEMA)]
Producer = Annotated[str, _Type(_header(media.producer), **_KEY_SCHEMA)]
"""Who publishes in chunks."""


class _Ids(_Type):
    """At least one ID and at most as many as a setting says, each once in the order of their first place."""

    def __init__(self, most: str) -> None:
        super().__init__(
            self._ids,
            type="array",
            minItems=1,
            **_bound("maxItems", most),
            items=_ID_SCHEMA,
        )
        self.most = most

    def _ids(self, value: object, info: ValidationInfo) -> list[int]:
        if not isinstance(value, list) or not value:
            raise wrong("it is a list of at least one ID")
        most = getattr(_context(info).settings, self.most)
        if len(value) > most:
            raise wrong(f"one request names at most {most} IDs: send several requests")
        found = query.entry_ids(value) or [_id(one, at) for at, one in enumerate(value)]
        return list(dict.fromkeys(found))


Ids = Annotated[list[int], _Ids("ids_max")]
LookedUpIds = Annotated[list[int], _Ids("lookups_max")]
"""Of entries that are looked up one by one."""


class _ByStream(_Type):
    """An object: the name of each stream with a value, for as many streams as a request may name."""

    def __init__(self, validate: Callable[[object, str], object], least: int = 0, **schema: object) -> None:
        super().__init__(
            self._by_stream,
            type="object",
            **({"minProperties": least} if least else {}),
            **_bound("maxProperties", "request_streams_max"),
            propertyNames=NAME_SCHEMA,
            additionalProperties=schema,
        )
        self.least = least
        self.value = validate

    def _by_stream(self, value: object, info: ValidationInfo) -> dict[str, object]:
        if not isinstance(value, dict) or len(value) < self.least:
            raise wrong("it is an object: the name of each stream with its cursor")
        most = _context(info).settings.request_streams_max
        if len(value) > most:
            raise wrong(f"one request names at most {most} streams")
        return {check_name(name, "stream name", name): self.value(one, name) for name, one in value.items()}


IdsByStream = Annotated[dict[str, int], _ByStream(_id, **_ID_SCHEMA)]
"""Streams, each with an ID."""


def _cursor(value: object, at: str) -> Place:
    if not isinstance(value, str):
        raise wrong("a cursor is a string: an ID, '0' or '$', for a group '>' or an ID", at=at)
    return Place(_CURSORS[value]) if value in _CURSORS else _place(value, at)


CursorsByStream = Annotated[
    dict[str, Place],
    _ByStream(
        _cursor,
        least=1,
        type="string",
        pattern=f"^([$>]|{_CURSOR_PATTERN})$",
        description="an ID, `0`, `$` or a cursor that was given; with `group` `>` or an ID",
    ),
]
"""At least one stream, each with a cursor: what to read after it, for a group `>` too."""


@overload
def capped(value: int) -> int: ...
@overload
def capped(value: int | None) -> int | None: ...
def capped(value: int | None) -> int | None:
    """A number as JSON shows it."""
    return None if value is None else min(value, INTEGER_MAX)
