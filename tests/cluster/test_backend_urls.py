"""The setting `backend`: which servers a URL names, and what is no URL of a backend."""

import pytest
from pydantic import ValidationError

from app.backend import durability_of, make_topology, read_access
from app.settings import Settings
from engine.cluster import Address, ClusterTopology, SentinelTopology, ServerAccess, Standalone


@pytest.mark.parametrize(
    ("url", "kind", "promise"),
    [
        ("redis://one:1/2", Standalone, "memory"),
        ("redis://one:65535", Standalone, "memory"),
        ("redis+unix:///tmp/a:70000,b", Standalone, "memory"),
        ("redis+cluster://one:1,[::1]", ClusterTopology, "replicated:1"),
        ("redis+sentinel://one:1,[::1]/orders:70000", SentinelTopology, "replicated:1"),
    ],
)
async def test_a_url_names_servers(url: str, kind: type, promise: str) -> None:
    """What may take another server's place promises that another one has a write."""
    settings = Settings(backend=url)
    topology = make_topology(settings, ServerAccess())
    assert type(topology) is kind
    assert topology.durability.name == durability_of(settings).name == promise
    own = Settings(backend=url, backend_durability="replicated:2")
    assert durability_of(own).name == "replicated:2"
    await topology.close()


async def test_ports_have_defaults() -> None:
    """Those of Redis and of Sentinel."""
    found = make_topology(Settings(backend="redis://[::1]/2"), ServerAccess())
    assert [node.address for node in found.nodes] == [Address("::1", 6379)]
    socket = make_topology(Settings(backend="redis+unix:///tmp/a,b"), ServerAccess())
    assert [node.address for node in socket.nodes] == [Address(path="/tmp/a,b")]
    for url, port in (("redis+cluster://one", 6379), ("redis+sentinel://one/a", 26379)):
        topology = make_topology(Settings(backend=url, backend_timeout_ms=50), ServerAccess())
        assert isinstance(topology, ClusterTopology | SentinelTopology)
        assert topology.seeds == [Address("one", port)]


def test_a_database_is_of_one_server_and_tls_of_rediss() -> None:
    assert read_access(Settings(backend="redis://one:1/2")).database == 2
    assert read_access(Settings(backend="redis+sentinel://one/2")).database == 0
    assert read_access(Settings(backend="redis+cluster://one")).tls is None
    for url in ("rediss://one", "rediss+cluster://one,two", "rediss+sentinel://one/orders"):
        assert read_access(Settings(backend=url)).tls is not None


@pytest.mark.parametrize(
    ("url", "user", "address"),
    [
        ("redis://weir@one/2", "weir", Address("one", 6379)),
        ("redis://a%3Ab@[::1]:7", "a:b", Address("::1", 7)),
        ("redis+cluster://weir@one:1,two", "weir", Address("one", 1)),
        ("redis+sentinel://weir@one:1/orders", "weir", Address("one", 1)),
        ("redis+unix://weir@/tmp/a@b", "weir", Address(path="/tmp/a@b")),
        ("redis+unix:///tmp/a@b", "", Address(path="/tmp/a@b")),
    ],
)
async def test_a_url_names_a_user(url: str, user: str, address: Address) -> None:
    """Percent-encoded where a URL has no place for its characters; without it Redis's default user."""
    access = read_access(Settings(backend=url))
    assert access.user == user
    topology = make_topology(Settings(backend=url), access)
    seeds = (
        topology.seeds
        if isinstance(topology, ClusterTopology | SentinelTopology)
        else [node.address for node in topology.nodes]
    )
    assert seeds[0] == address
    await topology.close()


@pytest.mark.parametrize(
    "url",
    [
        *(
            "",
            "redis",
            "redis://",
            "redis://one,two",
            "redis://user:secret@one",
            "redis://@one",
            "redis+cluster://",
            "http://one",
        ),
        *(
            "redis+cluster://one,",
            "redis+cluster://one/0",
            "redis+cluster://one,a@two",
            "redis+cluster://one,,two",
        ),
        *("redis://one:65536", "redis+cluster://one:1,two:70000", "redis+sentinel://[::1]:0/orders"),
        *("redis+sentinel://one", "redis+sentinel://one/", "redis+sentinel://one/a/b", "redis+unix://tmp"),
    ],
)
def test_other_words_name_no_backend(url: str) -> None:
    with pytest.raises(ValidationError, match="redis"):
        Settings(backend=url)
