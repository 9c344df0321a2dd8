"""Values that are kept beside the streams."""

import pytest

from engine import EngineError
from engine.commands.managing import METADATA_BYTES_MAX
from engine.commands.types import FlushAll
from engine.commands.weir_commands import ListMetadata, PutMetadata
from engine.keyspace import Keyspace
from engine.records.payload import encode, replay
from engine.records.snapshot import snapshot
from engine.replies import MetadataPage
from tests.engine.house import House
from tests.engine.images import image


def test_values_are_listed_by_name(house: House) -> None:
    for name in ("b", "token:z", "token:a"):
        assert house.run(PutMetadata(name=name, value=name.encode())) is False
    page = house.of(MetadataPage, ListMetadata(prefix="token:"))
    assert page.values == [("token:a", b"token:a"), ("token:z", b"token:z")]


def test_a_value_is_replaced_and_removed(house: House) -> None:
    house.run(PutMetadata(name="a", value=b"1"))
    assert house.run(PutMetadata(name="a", value=b"2")) is True
    assert house.of(MetadataPage, ListMetadata()).values == [("a", b"2")]
    assert house.run(PutMetadata(name="a", value=None)) is True
    assert house.of(MetadataPage, ListMetadata()).values == []


def test_what_changes_nothing_is_not_logged(house: House) -> None:
    house.run(PutMetadata(name="a", value=b"1"))
    house.run(PutMetadata(name="a", value=b"1"))
    assert not house.turn.records
    assert house.run(PutMetadata(name="missing", value=None)) is False
    assert not house.turn.records


def test_flushall_and_a_rewrite_keep_values(house: House) -> None:
    house.run(PutMetadata(name="a", value=b"1"))
    house.fill("s", 1)
    house.run(FlushAll())
    restored = Keyspace()
    replay(restored, encode(list(snapshot(house.keyspace))))
    assert restored.metadata == {"a": b"1"}
    assert image(restored) == image(house.keyspace)


def test_values_have_a_limit_together(house: House) -> None:
    half = METADATA_BYTES_MAX // 2
    house.run(PutMetadata(name="a", value=b"x" * (half - 1)))
    with pytest.raises(EngineError, match="at most"):
        house.run(PutMetadata(name="b", value=b"x" * half))
    house.run(PutMetadata(name="b", value=b"x" * (half - 1)))
    # One that is replaced makes room first.
    house.run(PutMetadata(name="b", value=b"y" * (half - 1)))
    with pytest.raises(EngineError, match="at most"):
        house.run(PutMetadata(name="c", value=b"x"))
