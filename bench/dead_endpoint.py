"""How much later others get their webhooks when an endpoint of the same `weir push` is dead.

Knows: a gateway, one process of pushes, receivers on loopback. Must never know: how a push works.

`python -m bench.dead_endpoint [ROUNDS [WEBHOOKS]]`: rounds in turn without and with a second push, whose
endpoint refuses each connection or takes it and says nothing, with a thousand entries waiting for it. A round
publishes an entry each 10 ms and takes the time to its webhook, and the processor time of pushes and gateway,
which says more where other work runs beside.
"""

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.app.senders import WHSEC
from tests.push.receiver import Delivered, Receiver, status
from tests.server import Server, free_port
from tests.waiting import until_async
from weir import AsyncClient

_PAUSE_S: Final = 0.01
_WAITING: Final = 1_000
# So that the first failures, which come at once, are over, and one probe at a time is sent.
_PROBING_S: Final = 15.0
_TABLE: Final = """[[push]]
stream = "%s"
group = "g"
url = "%s"
secrets = ["file:secret"]
timeout = "1s"
allow_http = ["127.0.0.1"]
allowed_networks = ["127.0.0.0/8"]
"""


async def _p99_ms(client: AsyncClient, arrived: dict[str, float], webhooks: int) -> float:
    """Of webhooks of new entries, from the publish on."""
    begun: dict[str, float] = {}
    for _ in range(webhooks):
        now_s = asyncio.get_running_loop().time()
        begun[(await client.publish("good", {"n": "1"})).id] = now_s
        await asyncio.sleep(_PAUSE_S)
    await until_async(lambda: begun.keys() <= arrived.keys(), 60)
    took = [arrived[one] - at_s for one, at_s in begun.items()]
    return 1_000 * statistics.quantiles(took, n=100)[98]


def _cpu_ms(*processes: int) -> float:
    """The processor time that they have used."""
    rows = [Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split() for one in processes]
    return sum(int(row[11]) + int(row[12]) for row in rows) * 1_000 / os.sysconf("SC_CLK_TCK")


async def measure(place: Path, rounds: int, webhooks: int) -> dict[str, list[tuple[float, float]]]:
    """The p99 of each round and the processor time, in milliseconds, by what the other endpoint does."""
    (place / "secret").write_text(WHSEC)
    arrived: dict[str, float] = {}

    async def note(one: Delivered, writer: asyncio.StreamWriter) -> None:
        arrived[one.headers["webhook-id"].partition(".")[2]] = asyncio.get_running_loop().time()
        await status(200)(one, writer)

    async def hang(_: Delivered, __: asyncio.StreamWriter) -> None:
        await asyncio.sleep(3_600)

    found: dict[str, list[tuple[float, float]]] = {"none": [], "refuses": [], "hangs": []}
    async with Receiver(note) as good, Receiver(hang) as silent:
        others = {"none": None, "refuses": f"http://127.0.0.1:{free_port()}/", "hangs": silent.url}
        with Server(place / "data") as server:
            async with AsyncClient(server.url) as client:
                await client.publish_batch("dead", [{"n": str(n)} for n in range(_WAITING)])
                for _ in range(rounds):
                    for name, url in others.items():
                        dead = "" if url is None else _TABLE % ("dead", url)
                        file = place / "push.toml"
                        file.write_text(f'gateway = "{server.url}"\n' + _TABLE % ("good", good.url) + dead)
                        words = [sys.executable, "-m", "weir", "push", "--config", str(file)]
                        pusher = await asyncio.create_subprocess_exec(*words, stderr=subprocess.DEVNULL)
                        try:
                            await asyncio.sleep(_PROBING_S)
                            begun_ms = _cpu_ms(pusher.pid, server.pid)
                            p99_ms = await _p99_ms(client, arrived, webhooks)
                            found[name].append((p99_ms, _cpu_ms(pusher.pid, server.pid) - begun_ms))
                        finally:
                            pusher.send_signal(signal.SIGTERM)
                            await pusher.wait()
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        given = [int(word) for word in sys.argv[1:]]
        figures = asyncio.run(measure(Path(folder), *(given + [9, 500][len(given) :])))
    for name, found in figures.items():
        for place, what in enumerate(("p99", "processor")):
            own, none = ([one[place] for one in rows] for rows in (found, figures["none"]))
            ratio = statistics.median(one / other for one, other in zip(own, none, strict=True))
            shown = " ".join(f"{one:.1f}" for one in own)
            sys.stdout.write(f"{name}: {what} {statistics.median(own):.1f} ms, x {ratio:.3f} ({shown})\n")
