"""What an operation declares beside its signature.

Knows: the options and their types. Must never know: what is made of them.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypedDict

from pydantic import BaseModel

from app.errors import RefusalError
from app.gateway import Gateway
from app.http.asks import Ask
from app.http.models import ResponseModel
from app.http.requests import Request
from app.http.responses import Response

Json = dict[str, Any]
Handler = Callable[[Request], Awaitable[Response]]


class Options(TypedDict, total=False):
    """What an operation declares beside its signature.

    `model` describes the answer, `status` is its status, `also` are further statuses of the same answer.
    `refusals` are the codes of its own, beside those that every operation of its kind may answer with.
    `writes`: it changes something; it takes `Prefer: durability=fsync` and answers `Weir-Durability`.
    `prefer`: what else Prefer may say. `raw`: what plain requests with these names and
    headers ask, whose bodies are read together. `hidden`: not described.
    `offers` are the media types of its answers where server-sent events are among them; `end` makes the
    answer to an EventSource of a refusal that will pass.
    `forms` answer instead where Accept asks for their media types, which the document leaves out.
    `body` replaces the description of the request's body, `answers` that of the successful answer;
    `described` are the models that it refers to.
    `refused` is the shape of some answers with status 400 beside the problem. `bodiless`: it takes no body,
    or an object without members. `conditional`: its answer has an ETag; it is 304 where If-None-Match
    names that. `audited`: the audit log has it, as those that need `manage` or `admin`; this is its action.
    `central`: with fronts, the engine's process runs it, which alone knows what it is about.
    """

    model: type[Any] | None
    status: int
    also: Mapping[int, str]
    refusals: Sequence[str]
    writes: bool
    prefer: str
    raw: Callable[[Mapping[str, str], Mapping[bytes, bytes], Gateway], Ask | None]
    hidden: bool
    offers: Sequence[str]
    end: Callable[[RefusalError], Response]
    forms: Mapping[str, Handler]
    headers: Mapping[str, str]
    body: Json
    answers: Json
    described: Sequence[type[ResponseModel] | type[BaseModel]]
    refused: type[ResponseModel]
    bodiless: bool
    conditional: bool
    audited: str
    central: bool
