"""Operations, declared by decorators as FastAPI's router has them, and found by the segments of a path.

Knows: that GET serves HEAD too, the shapes of paths.
Must never know: what an operation does, how it is served.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar, Unpack

from app.auth import Rule
from app.http.operations.binder import Endpoint
from app.http.operations.operation import Operation
from app.http.operations.options import Options

E = TypeVar("E", bound=Endpoint)

# What stands behind the slash of `/`.
_ROOT: Final = ("",)


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


class Found(NamedTuple):
    """What there is at a path: operations by their methods, and the names in it."""

    operations: Mapping[str, Operation]
    names: Mapping[str, str]


class RouteTable:
    """Operations by the shape of their paths, without pattern matching."""

    def __init__(self, routes: Sequence[Operation]) -> None:
        shapes: dict[str, _Shape] = {}
        for route in routes:
            shapes.setdefault(route.template, _Shape(route.template)).operations[route.method] = route
        # By the number of their segments and the last of them, None where it is a name.
        self._shapes: Final[dict[tuple[int, str | None], list[_Shape]]] = {}
        # Those whose last name is all that follows, by what stands before it.
        self._open: Final = [one for one in shapes.values() if one.is_open]
        for shape in shapes.values():
            if not shape.is_open:
                self._shapes.setdefault((len(shape.words), shape.words[-1]), []).append(shape)

    def find(self, segments: Sequence[str]) -> Found | None:
        """What there is, by the decoded segments of a path. A word goes before a name in its place, by any
        method.
        """
        segments = segments or _ROOT
        number, end = len(segments), segments[-1]
        for last in (end, None):
            for shape in self._shapes.get((number, last), ()):
                # Loops of C make no frames of Python.
                if [*map(segments.__getitem__, shape.places)] == shape.fixed:
                    names = dict(zip(shape.names, map(segments.__getitem__, shape.of_names), strict=True))
                    return Found(shape.operations, names)
        for shape in self._open:
            *start, _ = shape.words
            if number > len(start) and [*segments[: len(start)]] == start:
                (name,) = shape.names
                return Found(shape.operations, {name: "/".join(segments[len(start) :])})
        return None


class _Shape:
    """A path in segments: words, and None where a name stands; its operations by their methods."""

    __slots__ = ("fixed", "is_open", "names", "of_names", "operations", "places", "words")

    def __init__(self, template: str) -> None:
        self.is_open = template.endswith(":path}")
        pieces = template[1:].split("/")
        self.words = [None if piece.startswith("{") else piece for piece in pieces]
        # Where the words stand, and which they are; where the names stand, and what they are called.
        self.places = [place for place, word in enumerate(self.words) if word is not None]
        self.fixed = [word for word in self.words if word is not None]
        self.of_names = [place for place, word in enumerate(self.words) if word is None]
        self.names = [pieces[place][1:-1].removesuffix(":path") for place in self.of_names]
        self.operations: dict[str, Operation] = {}
