"""The Python client of Weir, a stream gateway.

    from weir import Client

    with Client("http://127.0.0.1:8080") as client:
        client.publish("orders", {"order": 4711})
        for entry in client.tail("orders", after="0"):
            print(entry.id, entry.fields)

`Client` and `AsyncClient` offer the same; `Worker` runs a consumer of a group. The names are imported at
their first use: the command line starts without the libraries for HTTP.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weir._public import *  # noqa: F403 - what it imports


def __getattr__(name: str) -> Any:  # noqa: ANN401 - as every attribute
    # Modules have names in lower case; Python imports them itself.
    if name != "__all__" and (name.startswith("_") or name.islower()):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from weir import _public  # noqa: PLC0415

    if name == "__all__":
        return [one for one in vars(_public) if not one.startswith("_")]
    return getattr(_public, name)
