"""Everything that `from weir import …` offers.

Knows: where each name is defined. Must never know: what it does.
"""

from weir._async_client import AsyncClient, AsyncGroup
from weir._calls import (
    AddOptions,
    ConsumerInfo,
    GroupInfo,
    NackMode,
    PendingEntry,
    References,
    StreamInfo,
)
from weir._client import Client, Group
from weir.entries import Entry, Fields, Gap, Page, Published, Value
from weir.errors import (
    ApiError,
    AuthenticationError,
    ConflictError,
    ConnectionClosedError,
    ConsumerReplacedError,
    ForbiddenError,
    FullError,
    GapError,
    InternalError,
    InvalidNameError,
    InvalidRequestError,
    NoAnswerError,
    NotAGatewayError,
    NotFoundError,
    RateLimitedError,
    StaleProducerError,
    UnavailableError,
    WeirError,
)
from weir.worker import Delivery, Worker

__all__ = [
    "AddOptions",
    "ApiError",
    "AsyncClient",
    "AsyncGroup",
    "AuthenticationError",
    "Client",
    "ConflictError",
    "ConnectionClosedError",
    "ConsumerInfo",
    "ConsumerReplacedError",
    "Delivery",
    "Entry",
    "Fields",
    "ForbiddenError",
    "FullError",
    "Gap",
    "GapError",
    "Group",
    "GroupInfo",
    "InternalError",
    "InvalidNameError",
    "InvalidRequestError",
    "NackMode",
    "NoAnswerError",
    "NotAGatewayError",
    "NotFoundError",
    "Page",
    "PendingEntry",
    "Published",
    "RateLimitedError",
    "References",
    "StaleProducerError",
    "StreamInfo",
    "UnavailableError",
    "Value",
    "WeirError",
    "Worker",
]
