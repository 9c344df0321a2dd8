"""What a client with a narrow token learns of others that use the port: no names, nothing of what they do.

The others have names, watch and subscribe, wait in a read and have used streams that this one may not see.
"""

from collections.abc import Sequence
from typing import Any, Final

import pytest

from tests.app.resp.conftest import Wire, until
from tests.app.resp.test_attacks import clients

# In each name and word of the other client.
HIDDEN: Final = "secret"
# What is asked, where a command alone says nothing; `{id}` is the other client.
ASKED: Final[dict[str, Sequence[str]]] = {
    "acl": ("ACL WHOAMI", "ACL LIST", "ACL USERS", "ACL GETUSER default", "ACL LOG", "ACL CAT"),
    "client": (
        *("CLIENT LIST", "CLIENT LIST TYPE normal", "CLIENT LIST ID {id}", "CLIENT INFO", "CLIENT GETNAME"),
        *(
            "CLIENT ID",
            "CLIENT KILL ID {id}",
            "CLIENT UNBLOCK {id}",
            "CLIENT TRACKINGINFO",
            "CLIENT GETREDIR",
        ),
    ),
    "command": ("COMMAND COUNT", "COMMAND LIST"),
    "config": ("CONFIG GET *",),
    "info": ("INFO", "INFO all", "INFO keyspace", "INFO commandstats", "INFO clients"),
    "keys": ("KEYS *", "KEYS s*"),
    "latency": ("LATENCY LATEST", "LATENCY HISTORY command", "LATENCY DOCTOR"),
    "memory": ("MEMORY STATS", "MEMORY DOCTOR", "MEMORY USAGE {hidden}"),
    "object": ("OBJECT ENCODING {hidden}", "OBJECT IDLETIME {hidden}"),
    "pubsub": ("PUBSUB CHANNELS", "PUBSUB CHANNELS *", "PUBSUB NUMPAT", "PUBSUB SHARDCHANNELS"),
    "scan": ("SCAN 0", "SCAN 0 COUNT 1000", "SCAN 0 TYPE stream"),
    "slowlog": ("SLOWLOG GET", "SLOWLOG GET 100", "SLOWLOG LEN"),
    "weir.schedule": ("WEIR.SCHEDULE LIST {hidden}", "WEIR.SCHEDULE GET {hidden} a"),
    "xinfo": ("XINFO STREAM {hidden} FULL", "XINFO GROUPS {hidden}", "XINFO CONSUMERS {hidden} g"),
}
# They end the connection, change whose it is, or what it gets.
NOT_ASKED: Final = {
    "auth",
    "hello",
    "quit",
    "reset",
    "subscribe",
    "psubscribe",
    "ssubscribe",
    "multi",
    "exec",
}


@pytest.mark.parametrize("protocol", [2, 3])
async def test_what_others_do_is_not_shown(open_port: Any, protocol: int) -> None:
    """By any command of the port, its subcommands, or with a name that was guessed."""
    port, (root, reader, watcher, tenant) = await clients(open_port, *["*:*"] * 3, "read,write,consume:a.*")
    await tenant.call("HELLO", protocol)
    await _busy(root, reader, watcher)
    await until(lambda: port.gateway.waits.count == 1)
    other = await root.call("CLIENT", "ID")
    listed = await root.call("COMMAND", "LIST")
    assert isinstance(listed, list)
    # Whoever may operate the gateway sees it.
    assert HIDDEN in repr(await root.call("CLIENT", "LIST"))
    assert HIDDEN in repr(await root.call("PUBSUB", "CHANNELS"))
    names = {name.decode().partition("|")[0] for name in listed}
    assert names >= ASKED.keys()
    for name in sorted(names - NOT_ASKED):
        for asked in (*ASKED.get(name, ()), name, f"{name} {HIDDEN}", f"{name} HELP"):
            answer = repr(await tenant.call(*asked.format(id=other, hidden=f"{HIDDEN}.s").split()))
            # Its own words are said again by some refusals.
            shown = answer.replace(f"'{HIDDEN}", "'").replace(f"{HIDDEN}'", "'")
            assert HIDDEN not in shown, (asked, answer)


async def _busy(root: Wire, reader: Wire, watcher: Wire) -> None:
    """Others at work."""
    await root.call("CLIENT", "SETNAME", f"{HIDDEN}-name")
    await root.call("XADD", f"{HIDDEN}.s", "1-0", HIDDEN, HIDDEN)
    await root.call("XGROUP", "CREATE", f"{HIDDEN}.s", "g", "0")
    await root.call("XREADGROUP", "GROUP", "g", f"{HIDDEN}-consumer", "STREAMS", f"{HIDDEN}.s", ">")
    await root.call("WATCH", f"{HIDDEN}.s")
    await root.call("CONFIG", "SET", "slowlog-log-slower-than", "0")
    await watcher.call("SUBSCRIBE", f"__keyspace@0__:{HIDDEN}.s")
    await watcher.call("PSUBSCRIBE", f"__keyspace@0__:{HIDDEN}*")
    reader.send("XREAD", "BLOCK", "0", "STREAMS", f"{HIDDEN}.s", "$")
