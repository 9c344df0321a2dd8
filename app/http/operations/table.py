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
        shapes: dict[str, _Shape] = {}
        for route in routes:
            shapes.setdefault(route.template, _Shape(route.template)).routes[route.method] = route
        # By the number of their segments and the last of them, None where it is a name.
        self._shapes: Final[dict[tuple[int, str | None], list[_Shape]]] = {}
        # Those whose last name is all that follows, by what stands before it.
        self._open: Final = {tuple(one.words[:-1]): one for one in shapes.values() if one.is_open}
        for shape in shapes.values():
            if not shape.is_open:
                self._shapes.setdefault((len(shape.words), shape.words[-1]), []).append(shape)

    def find(self, method: str, segments: Sequence[str]) -> tuple[Operation, Mapping[str, str]] | None:
        """The operation of a request, by the decoded segments of its path, and its names."""
        if not segments:
            return None
        # A word in a path goes before a name in its place, by any method.
        for last in (segments[-1], None):
            for shape in self._shapes.get((len(segments), last), ()):
                if all(
                    word is None or word == segment
                    for word, segment in zip(shape.words, segments, strict=True)
                ):
                    route = shape.routes.get(method)
                    if route is None or not route.fast:
                        return None
                    return route, {name: segments[place] for name, place in shape.names}
        return self._find_open(method, segments)

    def _find_open(self, method: str, segments: Sequence[str]) -> tuple[Operation, Mapping[str, str]] | None:
        for shape in self._open.values():
            start = len(shape.words) - 1
            rest = segments[start:]
            if not rest or list(segments[:start]) != shape.words[:-1]:
                continue
            route, ((name, _),) = shape.routes.get(method), shape.names
            # A slash within a segment is no slash between two.
            is_served = route is not None and route.fast and not any("/" in one for one in rest)
            return (route, {name: "/".join(rest)}) if route is not None and is_served else None
        return None


class _Shape:
    """A path in segments: words, and None where a name stands; its operations by their methods."""

    __slots__ = ("is_open", "names", "routes", "words")

    def __init__(self, template: str) -> None:
        self.is_open = template.endswith(":path}")
        pieces = template[1:].split("/")
        self.words = [None if piece.startswith("{") else piece for piece in pieces]
        self.names = [
            (piece[1:-1].removesuffix(":path"), place)
            for place, piece in enumerate(pieces)
            if piece.startswith("{")
        ]
        self.routes: dict[str, Operation] = {}
