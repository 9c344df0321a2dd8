"""The operations of one resource, declared by decorators as FastAPI's router has them.

Knows: that GET serves HEAD too. Must never know: how an operation is served.
"""

from collections.abc import Callable
from typing import TypeVar, Unpack

from app.auth import Rule
from app.http.operations.binder import Endpoint
from app.http.operations.operation import Operation
from app.http.operations.options import Options

E = TypeVar("E", bound=Endpoint)


class Router:
    """The operations of one resource."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.operations: list[Operation] = []

    def get(self, path: str, rule: Rule, **options: Unpack[Options]) -> Callable[[E], E]:
        """Serve GET and HEAD of `path`."""
        return self._add("GET", path, rule, options)

    def post(self, path: str, rule: Rule, **options: Unpack[Options]) -> Callable[[E], E]:
        """Serve POST of `path`."""
        return self._add("POST", path, rule, options)

    def put(self, path: str, rule: Rule, **options: Unpack[Options]) -> Callable[[E], E]:
        """Serve PUT of `path`."""
        return self._add("PUT", path, rule, options)

    def patch(self, path: str, rule: Rule, **options: Unpack[Options]) -> Callable[[E], E]:
        """Serve PATCH of `path`."""
        return self._add("PATCH", path, rule, options)

    def delete(self, path: str, rule: Rule, **options: Unpack[Options]) -> Callable[[E], E]:
        """Serve DELETE of `path`."""
        return self._add("DELETE", path, rule, options)

    def _add(self, method: str, path: str, rule: Rule, options: Options) -> Callable[[E], E]:
        def add(endpoint: E) -> E:
            self.operations.append(Operation(method, path, rule, endpoint, self.tag, options))
            if method == "GET":
                hidden: Options = {**options, "hidden": True}
                self.operations.append(Operation("HEAD", path, rule, endpoint, self.tag, hidden))
            return endpoint

        return add
