"""Calls endpoints declared with FastAPI's parameters: one validation for all text, one for the body.

Knows: FastAPI's markers, Pydantic, how errors of validation become refusals.
Must never know: an operation, ASGI, how bytes arrive.

FastAPI's own solver takes ten times as long. It still reads the same signatures, for the document. A
construct that is unknown here fails when the application is made.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    NotRequired,
    Required,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import orjson
from fastapi import Depends, params
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from starlette import requests
from typing_extensions import TypedDict

from app.errors import CODES, ErrorLocation, RefusalError, step
from app.http import media, query, strict_json
from app.http.models import Context, NameType, RequestModel
from app.http.request_bodies import BodyReading
from app.http.requests import Request
from app.http.strict_json import Number, Object
from app.settings import Settings

_EMPTY: Final = inspect.Parameter.empty
# Values have the names of parameters, which may differ from those in the request.
_BY_PARAMETER: Final = ConfigDict(validate_by_name=True, validate_by_alias=False, loc_by_alias=False)
# Longer ones are no whole numbers that anything here takes; as floats they cost nothing.
_DIGITS_MAX: Final = 20
_PLACES_MAX: Final = 20
# What is remembered of queries, by operation: a few hundred kB at most.
_QUERIES_MAX: Final = 256
_QUERY_BYTES_MAX: Final = 256
# An ID in a list takes a microsecond and a half: a larger body is read in a thread.
_INLINE_BYTES_MAX: Final = 64 << 10
# Of a body: its own members, an ID in a list, and what it says of a stream, with the name.
_MEMBERS_BYTES: Final = 64 << 10
_ID_BYTES: Final = 64
_STREAM_BYTES: Final = 4 << 10
# The argument of a body that says nothing.
_IGNORED: Final = ""


def request_of(request: requests.Request) -> Request:
    """Mark a parameter as the request. It is never called: the binder passes the request that it binds."""
    raise AssertionError(request)


RequestParameter = Annotated[Request, Depends(request_of)]


class Body:
    """A body that its own type reads. `Annotated[What, MyBody, Depends(request_of)]`: the argument is what is
    made of it by `reading`. `Annotated[MyBody, Depends(request_of)]`: it is of the type itself, which the
    endpoint asks to read.

    `content` describes it, by media type; `models` are what that refers to. One that is not `required` may be
    left out.
    """

    content: ClassVar[Mapping[str, Any]]
    required: ClassVar[bool] = True
    models: ClassVar[Sequence[type[BaseModel]]] = ()

    def __init__(self, request: Request) -> None:
        self.request = request

    @classmethod
    def reading(cls, request: Request, arguments: Mapping[str, Any]) -> BodyReading[Any] | None:  # noqa: ARG003 - for those that say it
        """How it is read, by the other arguments; None where the endpoint asks for it."""
        return None


class Binder:
    """Reads the arguments of one endpoint from requests. `path_names` are the parameters of its path; an
    operation that is `lenient` takes any query, since browsers and probes add parameters of their own; the
    body of one that is `bodiless` has no members.
    """

    _request: str | None = None
    # The one name in the query that may be given more than once.
    _repeated: str | None = None
    _body: tuple[str, type[BaseModel], object] | None = None
    _own_body: tuple[str, type[Body]] | None = None
    # The query, if it is one model. It is frozen, so equal queries share one: to read it takes 10 us.
    _asked: tuple[str, type[BaseModel], BaseModel] | None = None
    # Those that were read, under these settings.
    _queries: dict[bytes, BaseModel]
    _settings: Settings | None = None

    def __init__(
        self,
        endpoint: Callable[..., Any],
        path_names: frozenset[str],
        *,
        lenient: bool = False,
        bodiless: bool = False,
    ) -> None:
        self._lenient = lenient
        self._bodiless = bodiless
        self._names: list[str] = []  # in the path
        self._path: list[str] = []
        self._query: dict[str, str] = {}  # name in the request -> parameter
        self._headers: list[tuple[bytes, str]] = []
        self._places: dict[str, tuple[str, str]] = {}  # parameter -> kind and name of its place
        text: dict[str, Any] = {}
        hints = get_type_hints(endpoint, include_extras=True)
        for name, parameter in inspect.signature(endpoint).parameters.items():
            self._add(name, hints[name], parameter.default, path_names, text)
        if self._query and self._asked:
            raise TypeError("a query is one model or parameters, not both")
        self._known = tuple(self._asked[1].model_fields if self._asked else self._query)
        self._is_any_required = any(get_origin(kind) is Required for kind in text.values())
        # What is absent keeps the endpoint's default.
        kind = TypedDict("Text", text)  # type: ignore[misc]  # made of the signature
        kind.__pydantic_config__ = _BY_PARAMETER  # type: ignore[attr-defined]  # as Pydantic has it
        self._text = TypeAdapter(kind).validator.validate_python if text else None
        # For the document.
        self.has_text = bool(self._known or self._headers)
        self.has_body = self._body is not None or self._own_body is not None
        self.own_body = self._own_body[1] if self._own_body else None
        # The headers that are bound, in lower case.
        self.headers = frozenset(header for header, _ in self._headers)

    def _add(
        self,
        name: str,
        hint: Any,  # noqa: ANN401 - a type, perhaps annotated
        default: object,
        path_names: frozenset[str],
        text: dict[str, Any],
    ) -> None:
        """Note where a parameter comes from; `text` collects the types of those that are text."""
        base, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        mark = next((mark for mark in marks if isinstance(mark, params.Param | params.Depends)), None)
        own = next(
            (mark for mark in (base, *marks) if isinstance(mark, type) and issubclass(mark, Body)), None
        )
        is_model = isinstance(base, type) and issubclass(base, BaseModel)
        if base is Request:
            self._request = name
        elif isinstance(mark, params.Query) and is_model:
            self._asked = name, base, base.model_construct()
        elif is_model:
            self._body = name, base, default
        elif own is not None:
            self._own_body = name, own
        elif name in path_names and any(isinstance(mark, NameType) for mark in marks):
            # `app.http.common.paths` has checked each segment of a path as a name.
            self._names.append(name)
        else:
            presence = Required if default is _EMPTY else NotRequired
            text[name] = presence[hint]
            self._places[name] = self._place(name, mark, path_names)
            if get_origin(base) is list:
                assert self._repeated is None, "one parameter of an operation may be repeated"
                self._repeated = self._places[name][1]

    def _place(self, name: str, mark: object, path_names: frozenset[str]) -> tuple[str, str]:
        if name in path_names:
            self._path.append(name)
            return "parameter", name
        if isinstance(mark, params.Header):
            alias = mark.alias or name.replace("_", "-").title()
            self._headers.append((alias.lower().encode(), name))
            return "header", alias
        if mark is None or isinstance(mark, params.Query):
            alias = getattr(mark, "alias", None) or name
            self._query[alias] = name
            return "parameter", alias
        raise TypeError(f"{name}: {type(mark).__name__} is not known here")

    async def bind(self, request: Request, head: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments; `head` are those that `bind_head` has found. Raises the refusal of a wrong body."""
        arguments = {**head}
        reading = self._reading(request, arguments)
        if reading is not None:
            name, how = reading
            arguments[name] = await how.receive(request)
        return self._complete(request, arguments)

    def bind_now(self, request: Request, head: Mapping[str, Any], body: bytes) -> dict[str, Any]:
        """The same where the body is there. Raises NeedsTaskError where reading it takes long."""
        arguments, plan = {**head}, request.plan
        reading = plan.reading
        if reading is None or request.has_conditions:
            reading = self._reading(request, arguments)
            if not request.has_conditions:
                # It follows from the head.
                plan.reading = reading
        if reading is not None:
            name, how = reading
            arguments[name] = how.read_now(request, body)
        return self._complete(request, arguments)

    def _reading(self, request: Request, arguments: Mapping[str, Any]) -> tuple[str, BodyReading[Any]] | None:
        """Which argument is the body, and how it is read."""
        if self._body is not None:
            name, model, default = self._body
            return name, _reading(request, model, default)
        if self._bodiless:
            return _IGNORED, _reading(request, RequestModel)
        if self._own_body is not None:
            name, own = self._own_body
            how = own.reading(request, arguments)
            return None if how is None else (name, how)
        return None

    def _complete(self, request: Request, arguments: dict[str, Any]) -> dict[str, Any]:
        if self._bodiless:
            del arguments[_IGNORED]
        if self._own_body is not None and self._own_body[0] not in arguments:
            name, own = self._own_body
            arguments[name] = own(request)
        if self._request is not None:
            arguments[self._request] = request
        return arguments

    def bind_head(
        self, names: Mapping[str, str], text: bytes, headers: Mapping[bytes, bytes], settings: Settings
    ) -> dict[str, Any]:
        """The arguments in path, query and headers, the same for equal heads under the same settings. Raises
        the refusal of the first part that is wrong.
        """
        if settings is not self._settings:
            self._settings, self._queries = settings, {}
        asked = self._queries.get(text)
        given = {} if self._lenient or asked is not None else self._parse(text)
        arguments: dict[str, Any] = {name: names[name] for name in self._names}
        if self._text is not None:
            arguments |= self._bind_text(names, headers, given, Context(settings, is_text=True))
        if self._asked is not None:
            name, model, plain_query = self._asked
            if asked is None:
                asked = self._remember(text, bind_query(model, given, settings) if given else plain_query)
            arguments[name] = asked
        return arguments

    def _remember(self, text: bytes, asked: BaseModel) -> BaseModel:
        if len(text) <= _QUERY_BYTES_MAX:
            if len(self._queries) >= _QUERIES_MAX:
                self._queries.clear()
            self._queries[text] = asked
        return asked

    def _parse(self, text: bytes) -> Mapping[str, str | Sequence[str]]:
        if self._repeated is None:
            return query.parse(text, self._known) if text else {}
        given, repeated = query.parse_repeated(text, self._known, self._repeated)
        return {**given, self._repeated: repeated}

    def _bind_text(
        self,
        names: Mapping[str, str],
        headers: Mapping[bytes, bytes],
        given: Mapping[str, str | Sequence[str]],
        context: Context,
    ) -> dict[str, Any]:
        text: dict[str, str | Sequence[str]] = {name: names[name] for name in self._path}
        if self._query:
            for alias, value in given.items():
                text[self._query[alias]] = value
        for header, name in self._headers:
            if header in headers:
                text[name] = headers[header].decode("latin-1")
        if not text and not self._is_any_required:
            return {}
        assert self._text is not None, "there is text to bind"
        try:
            bound: dict[str, Any] = self._text(text, context=context)
        except ValidationError as error:
            raise _refusal(error, lambda where: self._places[str(where[0])]) from None
        return bound


Endpoint = Callable[..., Any]


def _reading(request: Request, model: type[BaseModel], default: object = _EMPTY) -> BodyReading[Any]:
    media.check_is_json(request.media_type.name, request.plan.method)
    settings = request.gateway.settings
    reader = partial(read_body, model=model, default=default, settings=settings)
    return BodyReading(reader, _INLINE_BYTES_MAX, bytes_max=_bytes_max(settings))


M = TypeVar("M", bound=BaseModel)


def bind_query(model: type[M], given: Mapping[str, object], settings: Settings) -> M:
    """The parameters of a query as a model. Raises the refusal of what is wrong."""
    context = Context(settings, is_text=True)
    try:
        bound: M = model.__pydantic_validator__.validate_python(given, context=context)
    except ValidationError as error:
        raise _refusal(error, lambda where: ("parameter", str(where[0]))) from None
    return bound


def _bytes_max(settings: Settings) -> int:
    """As many bytes as a body has members for, each of them written with escapes."""
    return _MEMBERS_BYTES + _ID_BYTES * settings.ids_max + _STREAM_BYTES * settings.request_streams_max


def read_body(body: bytes, *, model: type[BaseModel], default: object, settings: Settings) -> object:
    """The body's model; an empty body is the default, or an object without members."""
    if not body and default is not _EMPTY:
        return default
    # Two lists or objects of a client's making at most, with two values an item, and the members beside them.
    values_max = 4 * max(settings.ids_max, settings.request_streams_max) + 1_000
    if strict_json.exceeds(body, values_max):
        raise RefusalError("body_too_large", f"the body has more than {values_max} values")
    strict_json.expect_room(body, copies=2, strings=1, values=body.count(b","))
    value = _parse(body, settings.json_depth_max) if body else {}
    if value is None and default is not _EMPTY:
        # Clients that are made for Go send null for a body that is left out.
        return default
    try:
        return model.__pydantic_validator__.validate_python(value, context=Context(settings, is_text=False))
    except ValidationError as error:
        known = ", ".join(model.model_fields)
        raise _refusal(error, lambda where: ("pointer", _pointer(where)), known) from None


def _parse(body: bytes, depth_max: int) -> Any:  # noqa: ANN401 - JSON
    """The value. The careful reader takes what the fast one refuses or cannot prove to be plain."""
    if body.count(b"[") + body.count(b"{") <= depth_max:
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError:
            value = None
        # As many colons as members: no other object, and no member occurs twice.
        if isinstance(value, dict) and body.count(b":") == len(value):
            return value
        del value
    return plain(strict_json.parse(body, depth_max=depth_max), "")


def plain(value: object, pointer: str) -> Any:  # noqa: ANN401 - JSON
    """The value with dictionaries and numbers of Python's. Raises 422 for a member that occurs twice."""
    if isinstance(value, Object):
        twice = strict_json.repeated_name(value)
        if twice is not None:
            place = ErrorLocation("pointer", f"{pointer}/{step(twice)}", "the member occurs twice")
            raise RefusalError("invalid", f"{place.name}: {place.detail}", places=[place])
        return {name: plain(item, f"{pointer}/{step(name)}") for name, item in value}
    if isinstance(value, list):
        return [
            item if type(item) is str else plain(item, f"{pointer}/{at}") for at, item in enumerate(value)
        ]
    if isinstance(value, Number):
        is_whole = len(value) <= _DIGITS_MAX and value.removeprefix("-").isdigit()
        return int(value) if is_whole else float(value)
    return value


def _refusal(
    error: ValidationError, place_of: Callable[[tuple[int | str, ...]], tuple[Any, str]], known: str = ""
) -> RefusalError:
    """Every place that is wrong; the first one decides the code."""
    places, codes = [], []
    for problem in error.errors(include_url=False, include_input=False)[:_PLACES_MAX]:
        context = problem.get("ctx", {})
        where = (*problem["loc"], context["at"]) if "at" in context else problem["loc"]
        kind, name = place_of(where)
        # Those known are of the body, not of an object in it.
        of_body = known if len(where) == 1 else ""
        places.append(ErrorLocation(kind, name, _sentence(problem["type"], context, problem["msg"], of_body)))
        codes.append(problem["type"] if problem["type"] in CODES else "invalid")
    first = places[0]
    return RefusalError(codes[0], f"{first.name or 'the body'}: {first.detail}", places=places)


def _sentence(kind: str, context: Mapping[str, Any], message: str, known: str) -> str:
    if "hint" in context:
        return str(context["hint"])
    if kind == "literal_error":
        return f"it is one of {context['expected'].replace(' or ', ', ')}".replace("'", "")
    if kind == "extra_forbidden":
        return f"unknown member; known here: {known}" if known else "unknown member"
    if kind == "value_error":
        return str(context["error"])
    return _SENTENCES[kind].format(**context) if kind in _SENTENCES else message


_LONG_ENOUGH: Final = "its length is at least {min_length}"
_SHORT_ENOUGH: Final = "its length is at most {max_length}"
_SENTENCES: Final = {
    "missing": "it is missing",
    "bool_type": "it is true or false",
    "string_type": "it is a string",
    "string_unicode": "it is a string",
    "string_pattern_mismatch": "it matches {pattern}",
    "string_too_short": _LONG_ENOUGH,
    "string_too_long": _SHORT_ENOUGH,
    "too_short": _LONG_ENOUGH,
    "too_long": _SHORT_ENOUGH,
    "list_type": "it is a list",
    "dict_type": "it is a JSON object",
    "model_type": "it is a JSON object",
    "model_attributes_type": "it is a JSON object",
}


def _pointer(where: tuple[int | str, ...]) -> str:
    return "".join(f"/{step(str(part))}" for part in where)
