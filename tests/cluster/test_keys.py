"""Slots and auxiliary keys: as Redis has them, and out of the reach of clients."""

from pathlib import Path

import pytest

from app.names import check_text
from engine import EngineError
from engine.cluster.keys import SLOTS, auxiliary_key, slot_key, slot_of, stream_of, tag_of
from engine.cluster.words import METADATA_KEY
from tests.cluster.servers import BackendServer
from tests.server import free_port


def test_slots_are_those_of_redis(tmp_path: Path) -> None:
    """As a server in cluster mode says."""
    keys = ["123456789", "foo{bar}zap", "{}foo", "a{", "a{b}{c}", "{a", "ü", "x" * 500, ""]
    with BackendServer(
        tmp_path, "redis", ["--cluster-enabled", "yes", "--cluster-port", str(free_port())]
    ) as server:
        assert [slot_of(key.encode()) for key in keys] == [
            server.call("CLUSTER", "KEYSLOT", key) for key in keys
        ]
    assert slot_of(b"123456789") == 12739


def test_every_slot_has_a_short_tag_of_its_own() -> None:
    """The same one each time, so that gateways agree."""
    tags = [tag_of(slot) for slot in range(SLOTS)]
    assert [slot_of(tag) for tag in tags] == list(range(SLOTS))
    assert {len(tag) for tag in tags} == {4}
    assert tag_of(5061) == tags[5061]


@pytest.mark.parametrize("stream", ["orders", "acme/orders/{eu}", "{orders}:1", "a{b", "}{", "ü", "{}x"])
def test_auxiliary_keys_are_in_the_slot_of_their_stream(stream: str) -> None:
    """For names with braces of any kind."""
    key = auxiliary_key(stream, "m")
    assert slot_of(key) == slot_of(stream.encode())
    assert key.endswith(b"/m/" + stream.encode())


def test_no_client_can_name_an_auxiliary_key() -> None:
    """Nor any other key that Weir has: they all begin with `weir/`."""
    for key in (auxiliary_key("orders", "m"), slot_key(7, "h", "front"), METADATA_KEY.encode()):
        with pytest.raises(EngineError, match="invalid_name"):
            check_text(key.decode())


def test_an_auxiliary_key_names_its_stream() -> None:
    """With as many slashes as it has."""
    for stream in ("orders", "acme/orders/eu"):
        assert stream_of(auxiliary_key(stream, "m")) == stream
