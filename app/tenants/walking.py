"""Values with other names in the fields that hold names of streams, by the marks of their types.

Knows: the forms of types in commands and replies. A type is compiled once, from its annotations.
Must never know: which types there are, how a name is renamed.
"""

import types
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter, is_
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import replace

from app.tenants.tenant_names import TenantNames
from engine.name_marks import Mark

# The value itself where it has nothing to rename.
Rename = Callable[[Any, TenantNames], Any]
# How a type is renamed, of how it would be by its fields.
Rule = Callable[[Rename], Rename]


class _Field(NamedTuple):
    name: str
    rename: Rename


class Renames:
    """Renames a value by its type: fields with a mark, and types with a rule of their own."""

    def __init__(self, marked: Mapping[Mark, Rename], own: Mapping[type, Rule]) -> None:
        self._marked = marked
        self._own = own
        self._found: dict[type, Rename | None] = {}

    def of(self, kind: type) -> Rename | None:
        """How values of a class are renamed, None for one that holds no names."""
        if kind not in self._found:
            by_fields = self._of_fields(kind)
            rule = self._own.get(kind)
            self._found[kind] = by_fields if rule is None else rule(by_fields or _same)
        return self._found[kind]

    def _of_fields(self, kind: Any) -> Rename | None:  # noqa: ANN401 - a class
        is_struct = issubclass(kind, msgspec.Struct)
        names: Sequence[str] = kind.__struct_fields__ if is_struct else getattr(kind, "_fields", ())
        hints = get_type_hints(kind, include_extras=True) if names else {}
        found = [(name, self._of_hint(hints[name])) for name in names]
        fields = [_Field(name, rename) for name, rename in found if rename is not None]
        return _changing(fields, replace if is_struct else kind._replace) if fields else None

    def _of_hint(self, hint: Any) -> Rename | None:  # noqa: ANN401 - a type, or a form of typing
        origin, inner = get_origin(hint), get_args(hint)
        if origin is Annotated:
            mark = next((one for one in inner[1:] if isinstance(one, Mark)), None)
            return self._of_hint(inner[0]) if mark is None else self._marked[mark]
        if origin in (Union, types.UnionType):
            return self._of_union(inner)
        if origin is tuple and inner[-1] is not Ellipsis:
            return _each_place([self._of_hint(one) for one in inner])
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return _each_key(self._of_hint(inner[0]))
        if isinstance(origin, type) and issubclass(origin, Collection):
            return _each(self._of_hint(inner[0]))
        return self.of(hint) if isinstance(hint, type) else None

    def _of_union(self, kinds: Sequence[Any]) -> Rename | None:
        """Of what may be None, or of several classes."""
        found = [(kind, rename) for kind in kinds if (rename := self._of_hint(kind)) is not None]
        if not found:
            return None
        if {*kinds} == {found[0][0], types.NoneType}:
            rename = found[0][1]
            return lambda value, names: None if value is None else rename(value, names)
        by_class = dict(found)
        assert all(isinstance(kind, type) for kind in by_class), "a value says by its class which it is"
        return lambda value, names: by_class.get(type(value), _same)(value, names)


def _same(value: Any, _: TenantNames) -> Any:  # noqa: ANN401 - any value
    return value


def _changing(fields: Sequence[_Field], change: Callable[..., Any]) -> Rename:
    if len(fields) == 1:
        return _changing_one(*fields[0], change)

    def rename_fields(value: Any, names: TenantNames) -> Any:  # noqa: ANN401 - of this class
        changed = dict[str, Any]()
        for field in fields:
            old = getattr(value, field.name)
            new = field.rename(old, names)
            if new is not old:
                changed[field.name] = new
        return change(value, **changed) if changed else value

    return rename_fields


def _changing_one(name: str, rename: Rename, change: Callable[..., Any]) -> Rename:
    """The same of one field: entries that are delivered have one."""
    get = attrgetter(name)

    def rename_field(value: Any, names: TenantNames) -> Any:  # noqa: ANN401 - of this class
        old = get(value)
        new = rename(old, names)
        return value if new is old else change(value, **{name: new})

    return rename_field


def _each(rename: Rename | None) -> Rename | None:
    if rename is None:
        return None

    def rename_each(values: Sequence[Any], names: TenantNames) -> Sequence[Any]:
        found = [rename(value, names) for value in values]
        return values if all(map(is_, found, values)) else found

    return rename_each


def _each_key(rename: Rename | None) -> Rename | None:
    if rename is None:
        return None
    return lambda values, names: {rename(key, names): value for key, value in values.items()}


def _each_place(renames: Sequence[Rename | None]) -> Rename | None:
    if not any(renames):
        return None

    def rename_places(values: tuple[Any, ...], names: TenantNames) -> tuple[Any, ...]:
        return tuple(
            value if rename is None else rename(value, names)
            for rename, value in zip(renames, values, strict=True)
        )

    return rename_places
