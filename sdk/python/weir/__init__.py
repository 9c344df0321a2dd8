"""The Python client of Weir, a stream gateway.

    from weir import Client

    with Client("http://127.0.0.1:8080") as client:
        client.publish("orders", {"order": 4711})
        for entry in client.tail("orders", after="0"):
            print(entry.id, entry.fields)

`Client` and `AsyncClient` offer the same; `Worker` runs a consumer of a group.
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
