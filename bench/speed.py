"""P5 to P7 in one run: the table, the figures as JSON, the plots, and the page that shows them.

From publish to push beside Redis, with and without entries standing, and fan-out beside nats-server, each in
alternating rounds on this machine; about seven minutes.

    python -m bench.speed [--rounds 3] [--seconds 8] [--standing 2000000] [--tails 1000] [--quick]
                          [--into docs]

Writes `speed.json`, `images/speed-latency.png`, `images/speed-fanout.png` into the folder, and the part of
`speed.md` between its two marks.
"""

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from bench import fanout, push
from bench.push import NAMES

BEGIN: Final = "<!-- figures: written by `python -m bench.speed` -->"
END: Final = "<!-- end of figures -->"
LATENCY: Final = "![Latency from publish to push, and shares by millisecond](images/speed-latency.png)"
FAN_OUT: Final = "![Entries a second to all tails, and a lone entry at the last](images/speed-fanout.png)"
# Of another user of this machine's cores, the figures tell too.
BUSY_LOAD: Final = 0.5


class Results(msgspec.Struct):
    """All rounds, and where they ran."""

    machine: str
    load_before: float
    standing_entries: int
    beside: push.Rounds
    standing: push.Rounds
    fan_out: fanout.Rounds


def machine() -> str:
    """What it ran on, without its name."""
    names = [
        line.split(":")[1] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return f"{os.cpu_count()} cores ({names[0].strip()}), Linux, Python {platform.python_version()}"


def told_pushes(found: push.Rounds, peer: str) -> list[str]:
    """A table of latencies."""
    lines = [
        "| | p50 ms | p99 ms | p99.9 ms | ≤ 1 ms | ≤ 2 ms | ≤ 3 ms | ≤ 4 ms | beyond | CPU s/million |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for way, rounds in found.items():
        one = push.median(rounds)
        within = " | ".join(f"{share:.2f} %" for share in one.shares)
        lines.append(
            f"| {NAMES[way]} | {one.p50:.2f} | {one.p99:.2f} | {one.p999:.2f} | {within} | "
            f"server {one.server_cpu:.0f}, clients {one.client_cpu:.0f} |"
        )
    for way in found:
        if way != peer:
            ratio = push.ratios(found, way, peer)
            lines.append(
                f"| *{NAMES[way]} ÷ {NAMES[peer]}* | {ratio['p50']:.2f} | {ratio['p99']:.2f} "
                f"| {ratio['p999']:.2f} | | | | | | |"
            )
    return lines


def told_fan_out(found: fanout.Rounds) -> list[str]:
    """A table of fan-out."""
    lines = [
        "| | delivered entries/s | lone entry at the last tail, median ms | worst ms |",
        "| --- | --- | --- | --- |",
    ]
    for way, rounds in found.items():
        middle = sorted(rounds, key=lambda one: one.delivered)[len(rounds) // 2]
        lone = sorted(one.lone_ms for one in rounds)[len(rounds) // 2]
        worst = max(one.lone_max_ms for one in rounds)
        lines.append(f"| {NAMES[way]} | {middle.delivered:,.0f} | {lone:.1f} | {worst:.1f} |")
    ratio = fanout.ratios(found)
    lines.append(f"| *Weir ÷ nats-server* | {ratio['delivered']:.2f} | {ratio['lone_ms']:.2f} | |")
    return lines


def told(results: Results) -> str:
    """The page's part."""
    classical = " / ".join(f"{share:.2f}" for share in push.CLASSICAL)
    busy = results.load_before > BUSY_LOAD
    lines = [
        f"Measured {time.strftime('%Y-%m-%d', time.gmtime())} on {results.machine}; medians of "
        f"{len(results.beside['weir'])} alternating rounds. "
        + (
            f"**Others were at work on the machine** (load {results.load_before:.1f} before the run): "
            "only the ratios count."
            if busy
            else f"Nobody else was at work (load {results.load_before:.1f} before the run)."
        ),
        "",
        LATENCY,
        "",
        f"From publish to push (P5), beside the classical figures {classical} %:",
        "",
        *told_pushes(results.beside, "redis"),
        "",
        f"The same over the socket, with {results.standing_entries:,} entries standing in the group (P6):",
        "",
        *told_pushes(results.standing, "without"),
        "",
        FAN_OUT,
        "",
        "Fan-out (P7):",
        "",
        *told_fan_out(results.fan_out),
    ]
    return "\n".join(lines)


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
        page.write_text(f"{before}{BEGIN}\n\n{told(results)}\n\n{END}{after}")


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--standing", type=int, default=2_000_000)
    parser.add_argument("--tails", type=int, default=1_000)
    parser.add_argument(
        "--quick", action="store_true", help="a round of two seconds each: that all of it runs"
    )
    parser.add_argument("--into", type=Path, default=Path("docs"))
    options = parser.parse_args(sys.argv[1:])
    if options.quick:
        options.rounds, options.seconds, options.standing, options.tails = 1, 2, 100_000, 200
    load = os.getloadavg()[0]
    print("from publish to push, beside Redis (P5)")
    beside = push.beside_redis(list(push.WAYS), options.rounds, options.seconds, 10_000)
    print(f"with {options.standing} entries standing, and without (P6)")
    standing = push.beside_standing(options.standing, options.rounds, options.seconds, 10_000)
    print(f"to {options.tails} tails, beside nats-server (P7)")
    fan_out = fanout.beside_nats(options.tails, options.rounds, options.seconds / 2)
    results = Results(machine(), load, options.standing, beside, standing, fan_out)
    write(results, options.into)
    print("\n" + told(results))


if __name__ == "__main__":
    main()
