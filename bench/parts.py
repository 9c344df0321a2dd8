"""The parts of the whole run, P1 to P18: which bench measures each, beside which peer, and its goal.

Knows: goals, and how each figure's method reads. Must never know: how anything is measured.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from bench import (
    fanout,
    growth,
    histories,
    pending,
    push,
    requests,
    resp,
    single,
    small_streams,
    spark,
    turns,
    versus,
)
from bench.figure import Figure, Goal, Method, alone, apart, at_least, at_most, beside
from bench.page import Results

REDIS: Final = "redis-server"
CONSUMERS: Final = 10
# A pipeline of Redis's own client, and its goals.
RESP_GOALS: Final = {"XADD -P 100": 0.7, "XADD": 0.7, "XREADGROUP + XACK": 0.7, "XRANGE": 2.0}
REQUEST_GOALS: Final[dict[str, tuple[str, float]]] = {
    "publish": ("P17", 120),
    "range of one": ("P17", 150),
    "stream info": ("P17", 200),
    "health": ("P17", 80),
    "pipeline, per XADD": ("P16", 12),
    "pipeline, per XLEN": ("P16", 5),
    "multi-exec, per XADD": ("P16", 12),
}


def _short(method: Method) -> str:
    return f"{method.short_rounds} alternating rounds of {method.short_seconds} s"


def throughput(method: Method, _: Results) -> Sequence[Figure]:
    """P1, P4."""
    found = versus.throughput(method.short_rounds, method.short_seconds)
    how = f"{_short(method)}; both everysec; wrk and redis-benchmark"
    publish, read = found["publish"], found["range"]
    return [
        beside(
            "P1", "batches of 1,000 over HTTP ÷ XADD -P 100", "entries/s", publish, REDIS, at_least(2.5), how
        ),
        beside(
            "P4",
            "ranges of 1,000 over HTTP ÷ XRANGE",
            "entries/s",
            read,
            REDIS,
            at_least(5),
            f"{how}; the same range each time",
        ),
        beside(
            "P4",
            "a whole history in ranges of 1,000, each read once ÷ XRANGE",
            "entries/s",
            histories.read_once(method.entries, method.rounds),
            REDIS,
            at_least(1),
            f"{method.rounds} alternating rounds, {method.entries:,} entries; both everysec; one lean client",
        ),
    ]


def lone_requests(method: Method, _: Results) -> Sequence[Figure]:
    """P2, P3."""
    found = single.measure(method.short_rounds, method.short_seconds)
    how = f"{_short(method)}, wrk with {single.CONNECTIONS} connections; both everysec"
    goals: dict[str, tuple[str, str, Goal]] = {
        "webdis": ("P2", "webdis + Redis", at_least(1.2)),
        "raw ASGI": ("P3", "uvicorn, a constant", at_least(0.8)),
    }
    return [
        beside(part, "single publish over HTTP", "requests/s", found[way], peer, goal, how)
        for way, (part, peer, goal) in goals.items()
    ]


def latency(method: Method, results: Results) -> Sequence[Figure]:
    """P5."""
    found = results.beside = push.beside_redis(list(push.WAYS), method.rounds, method.seconds, 10_000)
    how = (
        f"{method.rounds} rounds of {method.seconds:g} s, 10,000 entries/s, 10 consumers; the clients differ"
    )
    figures = [
        beside(
            "P5",
            f"publish to push over {name}, {quantile}",
            "ms",
            [
                (getattr(our, field), getattr(their, field))
                for our, their in zip(found[way], found["redis"], strict=True)
            ],
            "redis-py",
            at_most(1 if (way, field) == ("weir", "p50") else 0.5),
            how,
        )
        for way, name in (("weir", "WebSocket"), ("longpoll", "long-poll"))
        for field, quantile in (("p50", "p50"), ("p999", "p99.9"))
    ]
    costs = [one.server_cpu for one in found["weir"]]
    return [
        *figures,
        alone("P5", "the server's processor over WebSocket", "s/million", costs, at_most(60), how),
    ]


def latency_with_pending(method: Method, results: Results) -> Sequence[Figure]:
    """P6."""
    found = results.standing = push.beside_standing(
        method.standing_entries, method.rounds, method.seconds, 10_000
    )
    pairs = [(one.p99, other.p99) for one, other in zip(found["with"], found["without"], strict=True)]
    work = f"publish to push with {method.standing_entries:,} pending, p99"
    how = f"{method.rounds} alternating rounds of {method.seconds:g} s, two gateways"
    return [beside("P6", work, "ms", pairs, "without", at_most(1.2), how)]


def fan_out(method: Method, results: Results) -> Sequence[Figure]:
    """P7."""
    found = results.fan_out = fanout.beside_nats(method.tails, method.rounds, method.seconds / 2)
    rounds = f"{method.rounds} alternating rounds of {method.seconds / 2:g} s"
    how = f"{rounds}, {method.tails:,} tails; NATS stores nothing"

    def pairs(figure: Callable[[fanout.FanoutRound], float]) -> list[tuple[float, float]]:
        return [(figure(one), figure(other)) for one, other in zip(found["weir"], found["nats"], strict=True)]

    rows: list[tuple[str, str, Callable[[fanout.FanoutRound], float], Goal]] = [
        ("fan-out, 100 entries a frame", "entries/s", lambda one: one.floods[100].delivered, at_least(2)),
        ("fan-out, lone entries", "entries/s", lambda one: one.floods[1].delivered, at_least(1)),
        (
            "fan-out, lone entries, the server's processor",
            "s/million",
            lambda one: one.floods[1].server_cpu,
            at_most(1.2),
        ),
        ("a lone entry at the last tail", "ms", lambda one: one.lone_ms, at_most(2)),
    ]
    return [
        beside("P7", work, unit, pairs(figure), "nats-server", goal, how) for work, unit, figure, goal in rows
    ]


def memory(method: Method, _: Results) -> Sequence[Figure]:
    """P8."""
    theirs = min(method.entries, versus.PRELOADED)
    how = (
        f"one round; growth of the gateway's process from {method.entries:,} entries to "
        f"{versus.GROWN * method.entries:,}, "
        f"Redis's MEMORY USAGE with {theirs:,}"
    )
    return [
        beside("P8", f"memory an entry, {shape}", "bytes", [pair], REDIS, at_most(0.35), how)
        for shape, pair in versus.memory(method.entries).items()
    ]


def memory_beside(method: Method, _: Results) -> Sequence[Figure]:
    """P9."""
    count = method.entries // 2
    each = apart(pending.bytes_each, count, CONSUMERS), apart(pending.redis_bytes_each, count, CONSUMERS)
    tail_kb = pending.tail_bytes_each(method.tails) / 1000
    how = f"one round; {count:,} pending of {CONSUMERS} consumers; the engine's process, Redis's MEMORY USAGE"
    tails = f"one round; {method.tails:,} WebSockets"
    return [
        beside("P9", "memory a pending entry", "bytes", [each], REDIS, at_most(3), how),
        alone("P9", "memory an idle live tail", "kB", [tail_kb], at_most(27), tails),
    ]


def restart(method: Method, _: Results) -> Sequence[Figure]:
    """P10."""
    pairs = versus.restart(method.entries, method.rounds)
    how = f"{method.rounds} alternating starts, {method.entries:,} entries, logs as written; some pending"
    return [beside("P10", "restart until ready", "s", pairs, REDIS, at_most(0.7), how)]


def synced(method: Method, _: Results) -> Sequence[Figure]:
    """P11."""
    pairs = resp.always(method.short_rounds, method.tails * 5)
    how = (
        f"{method.short_rounds} alternating rounds; redis-benchmark with {resp.PUBLISHERS} publishers on both"
    )
    return [
        beside("P11", "publish, each synced before its answer", "answers/s", pairs, REDIS, at_least(0.6), how)
    ]


def grown(method: Method, _: Results) -> Sequence[Figure]:
    """P12."""
    how = f"in process, {method.rounds} alternating rounds, medians of {growth.ROUNDS}; all entries pending"
    found = apart(growth.growth, method.entries, method.rounds)
    peer = f"with {growth.SMALL:,}"
    return [
        beside("P12", f"{name}, {method.entries:,} entries", "µs", pairs, peer, at_most(1.1), how)
        for name, pairs in found.items()
    ]


def longest_turn(method: Method, _: Results) -> Sequence[Figure]:
    """P13."""
    found = apart(turns.longest_ms, method.rounds)
    name = max(found, key=found.__getitem__)
    how = f"{len(found)} commands at their limits, 100,000 cold pending entries; least of {method.rounds}"
    return [alone("P13", f"the longest turn ({name})", "ms", [found[name]], at_most(20), how)]


def spark_rows(method: Method, _: Results) -> Sequence[Figure]:
    """P14."""
    found = apart(spark.rows_beside_json, method.entries, method.rounds)
    how = f"{method.rounds} alternating rounds of {method.entries:,} rows, local[2]"
    return [
        beside(
            "P14",
            f"rows through Spark, {name}",
            "rows/s",
            pairs,
            "JSON lines",
            at_least(spark.READ_GOAL),
            how,
        )
        for name, pairs in found.items()
    ]


def redis_clients(method: Method, _: Results) -> Sequence[Figure]:
    """P15."""
    found = resp.everysec(method.rounds, scale=method.seconds / 8)
    how = f"{method.rounds} alternating rounds; redis-benchmark, all everysec"
    return [
        beside(
            "P15",
            f"RESP port: {load}",
            "a second",
            [(one["weir"][load].per_second, one[peer][load].per_second) for one in found],
            f"{peer}-server",
            at_least(goal),
            how,
        )
        for load, goal in RESP_GOALS.items()
        for peer in resp.SERVERS[1:]
    ]


def request_costs(method: Method, _: Results) -> Sequence[Figure]:
    """P16, P17."""
    how = f"{method.rounds} rounds of {method.short_seconds} s, one client, one request at a time"
    found = requests.costs(method.rounds, method.short_seconds)
    figures = []
    for name, values in found.items():
        part, goal = REQUEST_GOALS[name]
        figures.append(alone(part, f"processor: {name}", "µs", values, at_most(goal), how))
    return sorted(figures, key=lambda figure: figure.part)


def many_streams(method: Method, _: Results) -> Sequence[Figure]:
    """P18: the goals are absolute, with Redis's figures beside them."""
    streams = method.entries // 5
    found = small_streams.small_streams(streams, method.rounds)
    grown = f"one round; growth of both processes, {streams:,} streams of one entry"
    starts = f"{method.rounds} alternating starts, {streams:,} streams of one entry"
    memory_rows = (("as written", found.written_bytes), ("after a restart", found.rewritten_bytes))
    restarts = (("log as written", found.written), ("log rewritten", found.rewritten))
    figures = [
        beside("P18", f"memory a stream, {state}", "bytes", [pair], REDIS, at_most(800), grown)
        for state, pair in memory_rows
    ] + [
        beside("P18", f"restart until ready, {state}", "s", one.ready_s, REDIS, at_most(5), starts)
        for state, one in restarts
    ]
    return [msgspec.structs.replace(one, ratio=None, best_ratio=None) for one in figures]


# By the numbers of the figures that each measures.
Parts = Mapping[tuple[str, ...], Callable[[Method, Results], Sequence[Figure]]]
PARTS: Final[Parts] = {
    ("P1", "P4"): throughput,
    ("P2", "P3"): lone_requests,
    ("P5",): latency,
    ("P6",): latency_with_pending,
    ("P7",): fan_out,
    ("P8",): memory,
    ("P9",): memory_beside,
    ("P10",): restart,
    ("P11",): synced,
    ("P12",): grown,
    ("P13",): longest_turn,
    ("P14",): spark_rows,
    ("P15",): redis_clients,
    ("P16", "P17"): request_costs,
    ("P18",): many_streams,
}


def order(figures: Sequence[Figure]) -> list[Figure]:
    """By their numbers."""
    return sorted(figures, key=lambda figure: int(figure.part[1:]))
