"""Appends of Durable Streams beside native publishes (reach.md, B8).

Processor time of the gateway and requests a second, of the same gateway, in alternating rounds; the median
of the rounds' ratios counts. Each connection of wrk sends one request at a time: to publish an entry of one
field, to append a JSON message, and to append one as a batch of a producer, of which each connection is one.
All are sent alike: each connection has a thread of wrk, since only a thread can count, and each request is
made anew.

    python -m bench.appends [--rounds 7] [--seconds 1.5]
"""

import argparse
import statistics
import subprocess
import tempfile
import time
import urllib.request
from typing import Final, NamedTuple

from bench.peers import cpu_s_of
from bench.push import gateway

CONNECTIONS: Final = (1, 32)
GOAL: Final = 0.8
STREAM: Final = "/v1/stream/d"
_BODY: Final = '{"fields":{"temperature":"19.8"}}'
# Each thread makes its requests one by one, with its own numbers.
_SCRIPT: Final = f"""
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{_BODY}'
local threads = 0
function setup(thread) thread:set("id", threads); threads = threads + 1 end
function init(args)
  -- Of its first thread wrk has a request made that it does not send.
  seq = id == 0 and -2 or -1
  if args[2] then
    wrk.headers["Producer-Id"] = string.format("p-%s-%d", args[1], id)
    wrk.headers["Producer-Epoch"] = "0"
  end
end
function request()
  seq = seq + 1
  if wrk.headers["Producer-Id"] then wrk.headers["Producer-Seq"] = tostring(seq) end
  return wrk.format()
end
"""
# Path of each, and what the script has to know.
KINDS: Final = {
    "publish": ("/v1/streams/s/entries", ()),
    "append": (STREAM, ()),
    "append of a producer": (STREAM, ("producer",)),
}


class Round(NamedTuple):
    """What one of them took."""

    cpu_us: float
    a_second: float


def load(port: int, pid: int, kind: str, connections: int, seconds: float) -> Round:
    """Send requests of one kind."""
    path, arguments = KINDS[kind]
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as lua:
        lua.write(_SCRIPT)
        lua.flush()
        size = [f"-t{connections}", f"-c{connections}", f"-d{seconds:g}s", "--timeout", "10s"]
        url = f"http://127.0.0.1:{port}{path}"
        before_s = cpu_s_of(pid)
        command = ["wrk", *size, "-s", lua.name, url, "--", str(time.time_ns()), *arguments]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        spent_s = cpu_s_of(pid) - before_s
    assert "Non-2xx" not in printed, printed
    requests = int(printed.partition(" requests in ")[0].split()[-1])
    return Round(spent_s / requests * 1e6, float(printed.split("Requests/sec:")[1].split()[0]))


def measure(rounds: int, seconds: float) -> dict[tuple[str, int], list[Round]]:
    """The rounds of each kind, by the number of connections."""
    found: dict[tuple[str, int], list[Round]] = {}
    with gateway() as (port, pid):
        head = {"content-type": "application/json"}
        made = urllib.request.Request(f"http://127.0.0.1:{port}{STREAM}", method="PUT", headers=head)
        urllib.request.urlopen(made).close()
        for number in range(rounds + 1):
            for connections in CONNECTIONS:
                for kind in [*KINDS][:: 1 if number % 2 else -1]:
                    took = load(port, pid, kind, connections, seconds)
                    # The first round warms the gateway up.
                    if number:
                        found.setdefault((kind, connections), []).append(took)
    return found


def main() -> None:
    """Print what each takes, and its ratio to a publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.5)
    options = parser.parse_args()
    found = measure(options.rounds, options.seconds)
    for (kind, connections), took in found.items():
        beside = found["publish", connections]
        cpu = statistics.median(
            [theirs.cpu_us / one.cpu_us for one, theirs in zip(took, beside, strict=True)]
        )
        speed = statistics.median(
            [one.a_second / theirs.a_second for one, theirs in zip(took, beside, strict=True)]
        )
        cpu_us = statistics.median([one.cpu_us for one in took])
        a_second = statistics.median([one.a_second for one in took])
        print(
            f"{kind:22}{connections:3} connections {cpu_us:6.1f} us {a_second:8,.0f}/s "
            f"processor {cpu:.2f}, requests {speed:.2f} of a publish, goal {GOAL}"
        )


if __name__ == "__main__":
    main()
