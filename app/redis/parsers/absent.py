"""What Redis has and Weir does not: the sentence behind "unknown command" that says what to do.

Knows: the names of those commands. Must never know: the commands that are here.
"""

from collections.abc import Mapping
from typing import Final

_STREAMS_ALONE: Final = "Weir has streams alone; COMMAND LIST shows its commands"
_NO_CLUSTER: Final = "Weir is one server to its clients: connect without cluster mode"
_NO_SCRIPTS: Final = "Weir runs no scripts; MULTI, EXEC and WATCH make several commands one"
_NO_MESSAGES: Final = (
    "Weir has no messages but notifications of streams: XADD and XREAD BLOCK take their place"
)
_SAVED: Final = "Weir saves before it replies; WAITAOF 1 0 0 waits for the disk"

_HINTS: Final[Mapping[str, str]] = {
    _STREAMS_ALONE: (
        "append bitcount blpop brpop decr decrby get getdel getex getset hdel hexists hget hgetall hincrby "
        "hkeys hlen hmget hmset hset hsetnx hvals incr incrby incrbyfloat json.get json.set lindex linsert "
        "llen lmove lpop lpush lrange lrem lset ltrim mget mset msetnx pfadd psetex rpop rpoplpush rpush "
        "sadd scard set setbit setex setnx sinter sismember smembers sort spop srem strlen sunion zadd zcard "
        "zcount zincrby zpopmin zrange zrangebyscore zrank zrem zscore"
    ),
    _NO_CLUSTER: "asking cluster failover psync readonly readwrite replicaof slaveof sync",
    _NO_SCRIPTS: "eval eval_ro evalsha evalsha_ro fcall fcall_ro function script",
    _NO_MESSAGES: "publish spublish",
    _SAVED: "bgrewriteaof bgsave lastsave save",
    "Weir has one database": "move swapdb",
    "CLIENT LIST and SLOWLOG GET show what clients do": "monitor",
    "end the process to stop Weir": "shutdown",
}
_BY_NAME: Final = {name: hint for hint, names in _HINTS.items() for name in names.split()}


def hint(name: str) -> str:
    """What to do instead of this command, in lower case; empty for one that Redis has not either."""
    return _BY_NAME.get(name, "")
