"""What clients look up of commands, in tables that are as Redis has them: of Weir's own commands too."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from app.redis import COMMANDS, parse
from tests.app.every_command import WORDS
from tests.app.resp.conftest import TestedPort, Wire
from tests.cluster.servers import BackendServer

OURS: Final = [name for name in COMMANDS if name.startswith("weir.")]
CONTAINERS: Final = sorted({name.partition("|")[0] for name in COMMANDS if "|" in name} - {"command"})
# What a client may go by. Others are of Redis's insides.
FLAGS: Final = {"write", "readonly", "admin", "blocking", "movablekeys"}
GUIDE: Final = Path("docs/redis-clients.md")


class Info:
    """An entry of COMMAND INFO."""

    def __init__(self, told: Sequence[Any]) -> None:
        name, arity, flags, self.first, self.last, self.step, *_, subcommands = told
        self.name, self.arity = name.decode(), arity
        self.flags = {flag if isinstance(flag, str) else flag.decode() for flag in flags} & FLAGS
        self.subcommands = {one.name: one for one in map(Info, subcommands)}

    @property
    def facts(self) -> tuple[int, set[str], int, int, int]:
        return self.arity, self.flags, self.first, self.last, self.step

    def keys_in(self, words: Sequence[str]) -> list[str]:
        """The keys of a command by their places."""
        last = self.last if self.last >= 0 else len(words) + self.last
        return list(words[self.first : last + 1 : self.step]) if self.first else []


async def info(wire: Wire, name: str) -> Info:
    told: Any = await wire.call("COMMAND", "INFO", name)
    assert isinstance(told[0], list), name
    return Info(told[0])


@pytest.mark.parametrize("name", WORDS)
async def test_the_keys_of_each_command_are_where_its_entry_says(wire: Wire, name: str) -> None:
    """Or, where they have no places of their own, it says so, and COMMAND GETKEYS finds them."""
    words = WORDS[name].split()
    entry, keys = await info(wire, name), [*(parse([word.encode() for word in words]).streams or ())]
    assert entry.keys_in(words) == ([] if "movablekeys" in entry.flags else keys)
    assert await wire.call("COMMAND", "GETKEYS", *words) == [key.encode() for key in keys]


@pytest.mark.parametrize("container", CONTAINERS)
async def test_a_container_has_its_subcommands_and_says_what_they_are(wire: Wire, container: str) -> None:
    """In its entry, in its documentation and in its help, which its refusals name."""
    entry = await info(wire, container)
    assert entry.facts == (-2, set(), 0, 0, 0)
    own = {name for name in COMMANDS if name.startswith(f"{container}|")}
    assert entry.subcommands.keys() == own
    for name in own:
        assert entry.subcommands[name].facts == (await info(wire, name)).facts
    docs: Any = await wire.call("COMMAND", "DOCS", container)
    described = dict(zip(docs[1][::2], docs[1][1::2], strict=True))[b"subcommands"]
    assert {name.decode() for name in described[::2]} == own
    refused = str(await wire.call(container, "NONSENSE"))
    assert refused == f"-ERR unknown subcommand 'NONSENSE'. Try {container.upper()} HELP."
    helped: Any = await wire.call(container, "HELP")
    for name in own:
        assert any(line.startswith(name.partition("|")[2].upper()) for line in helped), name


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackendServer]:
    with BackendServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


async def test_the_entries_are_those_of_a_real_server(wire: Wire, server: BackendServer) -> None:
    """Of each command and subcommand that both have: arity, what it does, where its keys are."""
    told: Any = await wire.call("COMMAND", "INFO")
    compared = 0
    for entry in map(Info, told):
        (known,) = server.call("COMMAND", "INFO", entry.name)
        if known is None or entry.name == "command":
            continue
        theirs = Info(known)
        compared += 1
        if entry.name in COMMANDS or entry.subcommands:
            assert entry.facts == theirs.facts, entry.name
        for name, one in entry.subcommands.items():
            assert one.facts == theirs.subcommands[name].facts, name
    assert compared > 50


async def test_our_own_commands_are_in_every_table(wire: Wire) -> None:
    """Lists by category, documentation, and the guide that this names."""
    listed = {
        category: await wire.call("COMMAND", "LIST", "FILTERBY", "ACLCAT", category)
        for category in ("stream", "read", "write")
    }
    every: Any = await wire.call("COMMAND", "LIST")
    guide = GUIDE.read_text()
    for name in OURS:
        container, _, subcommand = name.partition("|")
        assert container.encode() in every
        assert name.encode() in listed["stream"], name  # type: ignore[operator]
        flags = (await info(wire, name)).flags
        for category, flag in (("read", "readonly"), ("write", "write")):
            assert (name.encode() in listed[category]) is (flag in flags), name  # type: ignore[operator]
        docs: Any = await wire.call("COMMAND", "DOCS", name)
        said: Mapping[bytes, Any] = dict(zip(docs[1][::2], docs[1][1::2], strict=True))
        assert said[b"summary"].decode() == f"See {GUIDE}."
        assert said[b"group"] == b"stream"
        assert f"`{container.upper()} {subcommand.upper()}".rstrip() in guide, (
            f"{GUIDE} has a row for {name}, HELP too"
        )


# ---- in both protocols


async def replies(port: TestedPort, protocol: int) -> dict[str, Any]:
    """Those of each of our own commands, on a stream that gives them something to say."""
    wire = await port.connect()
    await wire.call("HELLO", str(protocol))
    await wire.call("FLUSHALL")
    for words in ("XADD a 1-0 f v", "XGROUP CREATE a g 0", "XREADGROUP GROUP g c STREAMS a >"):
        await wire.call(*words.split())
    last = ("weir.schedule|del", "weir.close")
    found = {}
    for name in sorted(OURS, key=lambda name: last.index(name) if name in last else -1):
        words = WORDS.get(name, name.replace("|", " ")).replace("IN 1000", "IN 3600000")
        found[name] = await wire.call(*words.split())
    return found


def is_map(reply: Any) -> bool:
    """Whether names alternate with values."""
    return (
        isinstance(reply, list)
        and len(reply) >= 4
        and all(isinstance(name, bytes) and name.replace(b"-", b"").isalpha() for name in reply[::2])
    )


async def test_names_with_values_are_maps_in_resp3(port: TestedPort) -> None:
    """Of each of our own commands, and lists in RESP2 as everywhere."""
    two, three = await replies(port, 2), await replies(port, 3)
    maps = set()
    for name in OURS:
        assert not str(two[name]).startswith("-"), (name, two[name])
        for one, other in zip(each(two[name]), each(three[name]), strict=True):
            assert is_map(one) is isinstance(other, dict), (name, other)
            if is_map(one):
                maps.add(name)
                assert list(one[::2]) == [*other]
    assert maps == {"weir.info", "weir.close", "weir.schedule|get", "weir.schedule|list"}


def each(reply: Any) -> list[Any]:
    """The elements of a list of lists, or the reply."""
    return reply if isinstance(reply, list) and reply and isinstance(reply[0], list | dict) else [reply]
