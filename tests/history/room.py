"""A gateway, the archive of its streams, and the service that reads it.

Knows: how they are put together. Must never know: what is tested with them.
"""

from collections.abc import Sequence
from pathlib import Path

import httpx

from pyspark_weir.table.root import ArchiveRoot
from tests.history.archiving import Archiver, published
from tests.history.served import Served
from tests.server import Server

STREAM = "orders"


class Room:
    """A gateway, the archive of its streams, and the service that reads it."""

    def __init__(
        self,
        folder: Path,
        root: ArchiveRoot | None = None,
        settings: Sequence[str] = (),
        *,
        is_old: bool = False,
    ) -> None:
        root = root or ArchiveRoot.of(folder / "archive")
        storage = [word for name, value in root.options.items() for word in ("--storage", f"{name}={value}")]
        self.served = Served(root.url, *storage, log=folder / "served.log")
        given = [word for one in (f"history_url={self.served.url}", *settings) for word in ("--set", one)]
        self.gateway = Server(folder / "weir-data", *given).start()
        self.archiver = Archiver(root, self.gateway.url, is_old=is_old)
        self.http = httpx.Client(base_url=self.gateway.url, timeout=30)

    def close(self) -> None:
        """End all of it."""
        self.http.close()
        self.archiver.close()
        self.served.kill()
        self.gateway.kill()

    def publish(self, *values: str) -> list[str]:
        """Into the one stream."""
        return published(self.gateway.url, STREAM, values)

    def page(self, **query: object) -> httpx.Response:
        """A page of it."""
        return self.http.get(f"/v1/streams/{STREAM}/entries", params=query)  # type: ignore[arg-type]

    def ids(self, **query: object) -> list[str]:
        """The IDs of a page."""
        answer = self.page(**query)
        assert answer.status_code == 200, answer.text
        return [one["id"] for one in answer.json()["entries"]]
