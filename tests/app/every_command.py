"""A command of each row of the table that names streams, for what holds of all of them.

Knows: their words. Must never know: what is tested with them.
"""

from collections.abc import Mapping
from typing import Final

from app.redis import COMMANDS

# What the table has more of names no stream: it is about all of them, or about the gateway.
_OTHERS: Final = (
    "keys scan randomkey dbsize flushall flushdb config|get config|set ping echo time wait waitaof"
)
_TEXTS: Final = {name for name in COMMANDS if name.endswith("|help")} | {"command|count"}

# Each place has a name of its own.
WORDS: Final[Mapping[str, str]] = {
    "xadd": "XADD a * f v",
    "xlen": "XLEN a",
    "xrange": "XRANGE a - +",
    "xrevrange": "XREVRANGE a + -",
    "xdel": "XDEL a 1-0",
    "xdelex": "XDELEX a IDS 1 1-0",
    "xtrim": "XTRIM a MAXLEN 1",
    "xsetid": "XSETID a 1-0",
    "xcfgset": "XCFGSET a IDMP-DURATION 100",
    "xidmprecord": "XIDMPRECORD a p i 1-0",
    "xread": "XREAD STREAMS a b 0 0",
    "xreadgroup": "XREADGROUP GROUP g c STREAMS a b > >",
    "xack": "XACK a g 1-0",
    "xackdel": "XACKDEL a g IDS 1 1-0",
    "xnack": "XNACK a g FAIL IDS 1 1-0",
    "xpending": "XPENDING a g",
    "xclaim": "XCLAIM a g c 0 1-0",
    "xautoclaim": "XAUTOCLAIM a g c 0 0",
    "weir.close": "WEIR.CLOSE a",
    "weir.info": "WEIR.INFO a",
    "weir.schedule|set": "WEIR.SCHEDULE SET a n IN 1000 FIELDS f v",
    "weir.schedule|get": "WEIR.SCHEDULE GET a n",
    "weir.schedule|list": "WEIR.SCHEDULE LIST a",
    "weir.schedule|del": "WEIR.SCHEDULE DEL a n",
    "weir.schedule|pause": "WEIR.SCHEDULE PAUSE a n",
    "weir.schedule|resume": "WEIR.SCHEDULE RESUME a n",
    "xgroup|create": "XGROUP CREATE a g 0",
    "xgroup|setid": "XGROUP SETID a g 0",
    "xgroup|destroy": "XGROUP DESTROY a g",
    "xgroup|createconsumer": "XGROUP CREATECONSUMER a g c",
    "xgroup|delconsumer": "XGROUP DELCONSUMER a g c",
    "xinfo|stream": "XINFO STREAM a",
    "xinfo|groups": "XINFO GROUPS a",
    "xinfo|consumers": "XINFO CONSUMERS a g",
    "del": "DEL a b",
    "unlink": "UNLINK a b",
    "weir.nack": "WEIR.NACK a g FAIL IDS 1 1-0",
    "weir.extend": "WEIR.EXTEND a g c 1-0",
    "weir.pause": "WEIR.PAUSE a g",
    "weir.why": "WEIR.WHY a g c",
    "weir.resume": "WEIR.RESUME a g",
    "weir.group|set": "WEIR.GROUP SET a g DEADLETTER b",
    "expire": "EXPIRE a 1",
    "expireat": "EXPIREAT a 1",
    "pexpire": "PEXPIRE a 1",
    "pexpireat": "PEXPIREAT a 1",
    "persist": "PERSIST a",
    "ttl": "TTL a",
    "pttl": "PTTL a",
    "expiretime": "EXPIRETIME a",
    "pexpiretime": "PEXPIRETIME a",
    "rename": "RENAME a b",
    "renamenx": "RENAMENX a b",
    "copy": "COPY a b",
    "exists": "EXISTS a b",
    "touch": "TOUCH a b",
    "type": "TYPE a",
    "object|encoding": "OBJECT ENCODING a",
    "object|freq": "OBJECT FREQ a",
    "object|idletime": "OBJECT IDLETIME a",
    "object|refcount": "OBJECT REFCOUNT a",
    "memory|usage": "MEMORY USAGE a",
}

_WORDLESS: Final = (COMMANDS.keys() - WORDS.keys()) ^ {*_OTHERS.split(), *_TEXTS}
assert not _WORDLESS, f"commands without words in {__name__}.WORDS: {sorted(_WORDLESS)}"
