"""The operations of the fast path, found by the segments of a path.

Knows: the shapes of paths. Must never know: what an operation does, how it is served.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from app.http.operations.operation import Operation


class RouteTable:
    """The operations of the fast path by the shape of their paths, without pattern matching. What it does not
    find is FastAPI's to route.
    """

    def __init__(self, routes: Sequence[Operation]) -> None:
        self._routes: Final[dict[tuple[str, int, str], list[_Shape]]] = {}
        for route in routes:
            if route.fast:
                shape = _Shape(route)
                key = route.method, len(shape.words), shape.words[-1] or ""
                self._routes.setdefault(key, []).append(shape)

    def find(self, method: str, segments: Sequence[str]) -> tuple[Operation, Mapping[str, str]] | None:
        """The operation of a request, by the decoded segments of its path, and its names."""
        if not segments:
            return None
        for shape in self._routes.get((method, len(segments), segments[-1]), ()):
            if all(
                word is None or word == segment for word, segment in zip(shape.words, segments, strict=True)
            ):
                return shape.route, {name: segments[place] for name, place in shape.names}
        return None


class _Shape:
    """A route's path in segments: words, and None where a name stands."""

    __slots__ = ("names", "route", "words")

    def __init__(self, route: Operation) -> None:
        self.route = route
        pieces = route.template[1:].split("/")
        self.words = [None if piece.startswith("{") else piece for piece in pieces]
        self.names = [(piece[1:-1], place) for place, piece in enumerate(pieces) if piece.startswith("{")]
