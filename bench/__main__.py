"""`make bench`: every figure of P1 to P18 beside its peer, in one table with the goals.

    python -m bench [--only P5,P7] [--quick] [--anyway] [--json FILE] [--into .]

A whole run on a quiet machine takes less than half an hour. It writes docs/speed.md with its pictures,
README's ratios, and a line of bench/history.jsonl for the release. It refuses a busy machine; `--anyway`
measures there all the same. What is quick, of some parts only, or measured on a busy machine is printed and
never written. A part that fails is measured again, and one that fails twice is not measured; the page and
the history name both. Other measurements are programs of their own, such as `python -m bench.profile`.
"""

import argparse
import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Final

import msgspec

from bench import page, parts
from bench.figure import FULL, QUICK
from bench.page import BUSY_LOAD, Results
from bench.peers import missing_packages

# The load of what ran before, such as an installation, has passed by then.
QUIET_S_MAX: Final = 180


def load_when_quiet(seconds: float) -> float:
    """The machine's load, as soon as it is low, or after these seconds."""
    ends_s = time.monotonic() + seconds
    while (load := os.getloadavg()[0]) > BUSY_LOAD and time.monotonic() < ends_s:
        time.sleep(5)
    return load


def run(results: Results, only: set[str], every: parts.Parts = parts.PARTS) -> None:
    """Measure the parts, each a second time if it fails."""
    stolen, ticks = page.processor_ticks()
    for numbers, measure in every.items():
        if only and not only.intersection(numbers):
            continue
        name, began = " and ".join(numbers), time.monotonic()
        print(f"{name}: {measure.__name__}", flush=True)
        for _ in range(2):
            try:
                found = measure(results.method, results)
            except Exception as error:  # noqa: BLE001 - the other parts count
                traceback.print_exc()
                results.failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
                continue
            results.figures = parts.order([*results.figures, *found])
            if name in results.failed:
                results.repeated[name] = results.failed.pop(name)
            break
        print(f"  {time.monotonic() - began:.0f} s", flush=True)
    stolen_after, ticks_after = page.processor_ticks()
    results.stolen_percent = 100 * (stolen_after - stolen) / max(1, ticks_after - ticks)


def main() -> None:
    """Measure, print, and write what may be published."""
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("--only", default="", help="parts, such as P5,P7; P1 brings P4 with it")
    parser.add_argument("--quick", action="store_true", help="to see that everything runs, in some minutes")
    parser.add_argument(
        "--anyway", action="store_true", help="on a busy machine too; nothing is written then"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--into", type=Path, default=Path())
    options = parser.parse_args()
    only = set(filter(None, options.only.upper().split(",")))
    unknown = only.difference(*parts.PARTS)
    if unknown:
        sys.exit(f"no part {', '.join(sorted(unknown))}")
    if missing := missing_packages():
        sys.exit(f"missing on this machine; install with: apt-get install {' '.join(missing)}")
    lenient = options.quick or options.anyway or bool(only)
    load = load_when_quiet(0 if lenient else QUIET_S_MAX)
    if load > BUSY_LOAD and not lenient:
        sys.exit(f"the machine is busy: load {load:.1f}, at most {BUSY_LOAD}; --anyway measures all the same")
    results = Results(page.machine(), load, QUICK if options.quick else FULL, page.versions())
    run(results, only)
    print("\n" + page.tables(results))
    if options.json:
        options.json.write_text(json.dumps(msgspec.to_builtins(results), indent=1))
    reason = "not all parts were measured" if only else page.unpublishable(results)
    if reason is None:
        page.write(results, options.into)
    else:
        print(f"\nnothing is written: {reason}")
    if results.failed:
        sys.exit(f"failed: {', '.join(results.failed)}")


if __name__ == "__main__":
    main()
