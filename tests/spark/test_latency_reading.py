"""Jobs that count ask the gateway for the fields that they look at, where fields can be asked for."""

import pytest

from pyspark_weir.jobs.reading import projection, with_defaults
from pyspark_weir.options import source_options
from pyspark_weir.schema import checked

SOURCE = {"gateway.urls": "http://127.0.0.1:1", "subscribe": "s"}


def test_only_the_fields_that_are_looked_at_are_asked_for() -> None:
    """Each once, as a schema that the data source takes for fields."""
    schema = projection(SOURCE, ["user", "at", "user", "a.b"])
    assert schema is not None
    assert schema.names == ["_stream", "_ms", "_ts", "a.b", "at", "user"]
    assert checked(source_options(SOURCE), schema) == (schema, "columns")


@pytest.mark.parametrize("fields", [[], ["_id"], ["a,b"], [" a"], ["a "], [""], ["User", "user"]])
def test_fields_that_cannot_be_asked_for_come_with_all_others(fields: list[str]) -> None:
    """A name that would mean something else as a column or in a list."""
    assert projection(SOURCE, [*fields]) is None


@pytest.mark.parametrize("name", ["fieldsFormat", "COLUMNS", "relation"])
def test_how_the_user_wants_entries_read_wins(name: str) -> None:
    """Options compare without regard to case."""
    assert projection({**SOURCE, name: "map"}, ["user"]) is None
    assert with_defaults({**SOURCE, name: "map"}, **{name.lower(): "x"}) == {**SOURCE, name: "map"}
    assert with_defaults(SOURCE, columns="x") == {**SOURCE, "columns": "x"}
