"""A web log of a busy host, which a seed fixes: its sites are streams, requests are entries.

Knows: how visitors behave, and what is hard for archives: names that repeat, bytes beside UTF-8, midnight.
Must never know: Spark, archives, what is compared with it.

`python -m tests.spark.weblog --url http://127.0.0.1:8080` publishes it.
"""

import argparse
import base64
import math
import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from pyspark_weir.gateway import GatewayAccess, GatewayClient

# 2026-03-14T20:00:00Z: a busy evening, so that the log goes over midnight.
START_MS: Final = 1_773_518_400_000
_day_ms: Final = 86_400_000
_hours: Final = 12
_chunk_default: Final = 5_000

_PAGES: Final = ("/", "/search", "/cart", "/about", "/login", "/api/v2/items", "/feed.xml", "/robots.txt")
_WORDS: Final = ("lamp", "garden", "zürich", "北京", "blue-shoes", "winter", "kettle", "açaí", "map", "оkна")
_AGENTS: Final = (
    "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_5 like Mac OS X) AppleWebKit/605.1.15 Mobile/15E148",
    "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 Chrome/141.0.0.0 Safari/537.36",
    "curl/8.14.1",
    "Mozilla/5.0 (compatible; ExampleBot/2.1; +https://bot.example/)",
)
_STATUS: Final = ((200, 86), (304, 6), (404, 4), (302, 2), (500, 1), (403, 1))
_METHODS: Final = (("GET", 91), ("POST", 7), ("HEAD", 1), ("PUT", 1))


class Entry(NamedTuple):
    """One request: its ID, and its fields in order, as bytes."""

    id: str
    pairs: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True)
class Weblog:
    """`entries` requests to `sites` sites, of which the first is the busiest."""

    entries: int = 300_000
    sites: int = 20
    seed: int = 20_260_314

    def streams(self) -> list[str]:
        """The names of its streams; a colon and a percent sign are hard for folders."""
        return [f"web:site{number:02d}%" for number in range(self.sites)]

    def chunks(self, size: int = _chunk_default) -> Iterator[dict[str, list[Entry]]]:
        """All entries in the order of their times, `size` at a time, by stream."""
        found: dict[str, list[Entry]] = {}
        count = 0
        for stream, entry in self._requests():
            found.setdefault(stream, []).append(entry)
            count += 1
            if count == size:
                yield found
                found, count = {}, 0
        if found:
            yield found

    def _requests(self) -> Iterator[tuple[str, Entry]]:
        rng = random.Random(self.seed)
        streams = self.streams()
        # As rank and visits of sites go together.
        popular = [1 / (rank + 1) ** 0.8 for rank in range(self.sites)]
        chosen = rng.choices(range(self.sites), popular, k=self.entries)
        statuses = rng.choices(*_weighed(_STATUS), k=self.entries)
        methods = rng.choices(*_weighed(_METHODS), k=self.entries)
        last = dict.fromkeys(range(self.sites), (0, 0))
        step_ms = _hours * 3_600_000 / max(1, self.entries)
        now_ms = float(START_MS)
        for number in range(self.entries):
            # Busy at nine in the evening, quiet at nine in the morning; and requests come in bursts.
            hour = now_ms % _day_ms / 3_600_000
            busy = 1 + 0.7 * math.cos((hour - 21) / 24 * 2 * math.pi)
            now_ms += rng.expovariate(1) * step_ms / busy
            site = chosen[number]
            ms, seq = last[site]
            last[site] = (ms, seq + 1) if int(now_ms) <= ms else (int(now_ms), 0)
            pairs = _pairs(rng, number, site, methods[number], statuses[number])
            yield streams[site], Entry("{}-{}".format(*last[site]), pairs)


def _weighed(table: tuple[tuple[object, int], ...]) -> tuple[list[object], list[int]]:
    return [value for value, _weight in table], [weight for _value, weight in table]


def _pairs(
    rng: random.Random, number: int, site: int, method: object, status: object
) -> tuple[tuple[str, bytes], ...]:
    word = _WORDS[rng.randrange(len(_WORDS))]
    target = f"{_PAGES[rng.randrange(len(_PAGES))]}?q={word}&page={rng.randrange(40)}".encode()
    if number % 211 == 7:
        target = f"/alt/caf\xe9/{rng.randrange(1_000)}".encode(
            "latin-1"
        )  # an old link, as browsers once sent it
    pairs = [
        ("n", b"%d" % number),
        ("remote", b"198.51.%d.%d" % (rng.randrange(256), rng.randrange(256))),
        ("method", str(method).encode()),
        ("target", target),
        ("status", str(status).encode()),
        ("bytes", b"%d" % int(rng.lognormvariate(8, 1.6))),
        ("took_ms", b"%.1f" % rng.lognormvariate(3, 1)),
        ("agent", _AGENTS[rng.randrange(len(_AGENTS))].encode()),
    ]
    if number % 3 == 0:
        pairs.append(("referer", b"https://site%02d.example/" % site))
    if number % 17 == 0:
        pairs += [("cookie", b"session=%08x" % rng.getrandbits(32)), ("cookie", b"theme=dark")]
    if number % 101 == 0:
        pairs.append(("note", b""))
    return tuple(pairs)


def as_published(entry: Entry) -> dict[str, object]:
    """An entry as the gateway takes it: base64 where a value is no UTF-8, and names may repeat."""
    try:
        fields = [[name, value.decode()] for name, value in entry.pairs]
    except UnicodeDecodeError:
        coded = [[name, base64.b64encode(value).decode()] for name, value in entry.pairs]
        return {"id": entry.id, "fields": coded, "encoding": "base64"}
    return {"id": entry.id, "fields": fields}


def publish(gateway: GatewayClient, chunk: Mapping[str, list[Entry]], number: int) -> None:
    """Store a chunk, once however often it is sent."""
    stored = {stream: list(map(as_published, entries)) for stream, entries in chunk.items()}
    gateway.post(
        "/v1/publish", {"streams": stored}, headers={"idempotency-key": f"weblog-{number}"}, repeatable=True
    )


def main() -> None:
    """Publish the log, as fast as the gateway takes it."""
    given = argparse.ArgumentParser(description="Publish a generated web log.")
    given.add_argument("--url", default="http://127.0.0.1:8080")
    given.add_argument("--entries", type=int, default=Weblog.entries)
    given.add_argument("--sites", type=int, default=Weblog.sites)
    given.add_argument("--seed", type=int, default=Weblog.seed)
    asked = given.parse_args()
    count = 0
    with GatewayClient(GatewayAccess("g0", asked.url)) as gateway:
        for number, chunk in enumerate(Weblog(asked.entries, asked.sites, asked.seed).chunks()):
            publish(gateway, chunk, number)
            count += sum(map(len, chunk.values()))
            sys.stderr.write(f"\r{count} entries")
    sys.stderr.write("\n")


if __name__ == "__main__":
    main()
