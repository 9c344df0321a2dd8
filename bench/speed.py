"""P5 to P7 in one run: the tables, the figures as JSON, the plots, and the page that shows them.

From publish to push beside Redis, with and without entries standing, and fan-out beside nats-server, each in
alternating rounds on this machine; about ten minutes.

    python -m bench.speed [--rounds 3] [--seconds 8] [--standing 2000000] [--tails 1000] [--quick]
                          [--into docs]

A full run on a quiet machine writes `speed.json`, `images/speed-latency.png`, `images/speed-fanout.png` into
the folder, and the part of `speed.md` between its two marks. Any other run prints its tables and writes
nothing: a short run is never published.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from bench import fanout, push
from bench.peers import package_versions, server_version
from bench.push import NAMES

RATIO_METHOD: Final = "median of the ratios of neighbouring rounds"
BEGIN: Final = "<!-- figures: written by `python -m bench.speed` -->"
END: Final = "<!-- end of figures -->"
LATENCY: Final = "![Latency from publish to push, and shares by millisecond](images/speed-latency.png)"
FAN_OUT: Final = "![Entries a second to all tails, and a lone entry at the last](images/speed-fanout.png)"
# With a higher load before the run somebody else uses the machine's cores.
BUSY_LOAD: Final = 0.5


class Method(msgspec.Struct):
    """What decides what a figure means; printed with it."""

    rounds: int
    seconds: float
    standing_entries: int
    tails: int


# What is published is at least this.
FULL: Final = Method(rounds=3, seconds=8, standing_entries=2_000_000, tails=1_000)


class Results(msgspec.Struct):
    """All rounds, and how and where they ran."""

    machine: str
    load_before: float
    method: Method
    versions: list[str]
    beside: push.Rounds
    standing: push.Rounds
    fan_out: fanout.Rounds


def machine() -> str:
    """What it ran on, without its name."""
    names = [
        line.split(":")[1] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return f"{os.cpu_count()} cores ({names[0].strip()}), Linux, Python {platform.python_version()}"


def versions() -> list[str]:
    """The peers and what the clients are made of."""
    packages = package_versions("redis", "hiredis", "uvloop", "websockets")
    return [server_version("redis-server"), server_version("nats-server"), packages]


def push_table(found: push.Rounds, peer: str, method: str) -> list[str]:
    """Latencies, medians over the rounds."""
    lines = [
        "| | p50 ms | p99 ms | p99.9 ms | ≤ 1 ms | ≤ 2 ms | ≤ 3 ms | ≤ 4 ms | beyond | CPU s/million | how |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for way, rounds in found.items():
        one = push.median(rounds)
        within = " | ".join(f"{share:.2f} %" for share in one.shares)
        lines.append(
            f"| {NAMES[way]} | {one.p50:.2f} | {one.p99:.2f} | {one.p999:.2f} | {within} | "
            f"server {one.server_cpu:.0f}, clients {one.client_cpu:.0f} | {method} |"
        )
    for way in found:
        if way != peer:
            ratio = push.ratios(found, way, peer)
            lines.append(
                f"| *{NAMES[way]} ÷ {NAMES[peer]}* | {ratio['p50']:.2f} | {ratio['p99']:.2f} "
                f"| {ratio['p999']:.2f} | | | | | | | {RATIO_METHOD} |"
            )
    return lines


def fan_out_table(found: fanout.Rounds, method: Method) -> list[str]:
    """Floods and lone entries, medians over the rounds."""
    lines = [
        "| | delivered entries/s | server CPU s/million deliveries | tails' CPU s/million | method |",
        "| --- | --- | --- | --- | --- |",
    ]
    rounds_of = f"{method.rounds} rounds of {method.seconds / 2:g} s, {method.tails:,} tails"
    for frame in fanout.FRAMES:
        flood_method = f"{rounds_of}, {frame} entr{'y' if frame == 1 else 'ies'} a frame"
        for way, rounds in found.items():
            floods = [one.floods[frame] for one in rounds]
            delivered, server, tails = (
                statistics.median(getattr(one, name) for one in floods)
                for name in ("delivered", "server_cpu", "tails_cpu")
            )
            lines.append(f"| {NAMES[way]} | {delivered:,.0f} | {server:.2f} | {tails:.2f} | {flood_method} |")
        delivered = fanout.ratio(found, lambda one: one.floods[frame].delivered)  # noqa: B023 - called at once
        server = fanout.ratio(found, lambda one: one.floods[frame].server_cpu)  # noqa: B023 - called at once
        lines.append(f"| *Weir ÷ nats-server* | {delivered:.2f} | {server:.2f} | | {RATIO_METHOD} |")
    lines += [
        "",
        "| | a lone entry at the last tail, median ms | worst ms | method |",
        "| --- | --- | --- | --- |",
    ]
    for way, rounds in found.items():
        lone, worst = statistics.median(one.lone_ms for one in rounds), max(one.lone_max_ms for one in rounds)
        lines.append(
            f"| {NAMES[way]} | {lone:.1f} | {worst:.1f} | {method.rounds} rounds of {fanout.LONE} entries, "
            f"{method.tails:,} tails |"
        )
    lines.append(
        f"| *Weir ÷ nats-server* | {fanout.ratio(found, lambda one: one.lone_ms):.2f} | | {RATIO_METHOD} |"
    )
    return lines


def tables(results: Results) -> str:
    """The page's part."""
    classical = " / ".join(f"{share:.2f}" for share in push.CLASSICAL)
    method = results.method
    rounds = f"{method.rounds} rounds of {method.seconds:g} s, 10 consumers, 10 000 entries/s"
    intro = (
        f"Measured {time.strftime('%Y-%m-%d', time.gmtime())} on {results.machine}, with "
        f"{', '.join(results.versions)}. Load {results.load_before:.1f} before the run."
    )
    latency = (
        f"From publish to push (P5); a published figure of this kind is {classical} % within 1, 2, 3, 4 ms "
        "and beyond. The clients differ: Weir's are lean ones of this repository, Redis's is redis-py. The "
        "ratios compare clients as well as servers:"
    )
    standing = f"The same over WebSocket, with {method.standing_entries:,} pending entries in the group (P6):"
    lines = [
        intro,
        "",
        LATENCY,
        "",
        latency,
        "",
        *push_table(results.beside, "redis", rounds),
        "",
        standing,
        "",
        *push_table(results.standing, "without", rounds),
        "",
        FAN_OUT,
        "",
        "Fan-out (P7):",
        "",
        *fan_out_table(results.fan_out, method),
    ]
    return "\n".join(lines)


def unpublishable(results: Results) -> str | None:
    """Why these figures must not be written to the page; None if they may."""
    for name in msgspec.structs.fields(Method):
        value, least = getattr(results.method, name.name), getattr(FULL, name.name)
        if value < least:
            return f"a short run: {name.name} is {value}, a full run has {least}"
    if results.load_before > BUSY_LOAD:
        return f"the machine was busy: load {results.load_before:.1f} before the run, at most {BUSY_LOAD}"
    return None


def write(results: Results, into: Path) -> None:
    """JSON, plots, page."""
    # Not above: the processes of a round import this module, and matplotlib takes a second of their cores.
    from bench import figures  # noqa: PLC0415

    (into / "images").mkdir(exist_ok=True)
    as_json: Any = msgspec.to_builtins(results)
    (into / "speed.json").write_text(json.dumps(as_json, indent=1) + "\n")
    figures.latencies(results.beside, results.standing, into / "images" / "speed-latency.png")
    figures.fan_out(results.fan_out, into / "images" / "speed-fanout.png")
    page = into / "speed.md"
    if page.exists():
        before, _, rest = page.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        page.write_text(f"{before}{BEGIN}\n\n{tables(results)}\n\n{END}{after}")


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=FULL.rounds)
    parser.add_argument("--seconds", type=float, default=FULL.seconds)
    parser.add_argument("--standing", type=int, default=FULL.standing_entries)
    parser.add_argument("--tails", type=int, default=FULL.tails)
    parser.add_argument(
        "--quick", action="store_true", help="one round of two seconds each, to see that it runs"
    )
    parser.add_argument("--into", type=Path, default=Path("docs"))
    options = parser.parse_args(sys.argv[1:])
    method = Method(options.rounds, options.seconds, options.standing, options.tails)
    if options.quick:
        method = Method(rounds=1, seconds=2, standing_entries=100_000, tails=200)
    load = os.getloadavg()[0]
    print("from publish to push, beside Redis (P5)")
    beside = push.beside_redis(list(push.WAYS), method.rounds, method.seconds, 10_000)
    print(f"with {method.standing_entries} entries standing, and without (P6)")
    standing = push.beside_standing(method.standing_entries, method.rounds, method.seconds, 10_000)
    print(f"to {method.tails} tails, beside nats-server (P7)")
    fan_out = fanout.beside_nats(method.tails, method.rounds, method.seconds / 2)
    results = Results(machine(), load, method, versions(), beside, standing, fan_out)
    print("\n" + tables(results))
    reason = unpublishable(results)
    if reason is None:
        write(results, options.into)
    else:
        print(f"\nnot written to {options.into}: {reason}")


if __name__ == "__main__":
    main()
