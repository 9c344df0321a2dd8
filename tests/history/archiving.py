"""An archive of a gateway's streams that is written as the archive job does it, without Spark.

Knows: the table's API and the gateway's. Must never know: what is tested with it.
"""

import time
from collections.abc import Sequence

import pyarrow as pa

from pyspark_weir.gateway import GatewayAccess, GatewayClient
from pyspark_weir.ids import ZERO, EntryId, parse
from pyspark_weir.jobs.trim import TrimRules, plan, run
from pyspark_weir.offsets import Lost
from pyspark_weir.table.compaction import CompactionRules, compact
from pyspark_weir.table.files import write_files
from pyspark_weir.table.ranges import BatchRanges, Range, StreamKey
from pyspark_weir.table.root import ArchiveRoot
from pyspark_weir.table.schema import GIVEN
from pyspark_weir.table.table import ArchiveTable, Batch
from tests.spark.table.making import digests_of

GATEWAY = "g0"


class Archiver:
    """The archive of one gateway. `run` moves what is new of a stream, `trim` removes what was moved. Losses
    are accepted. `is_old`: as versions did that did not note where a stream began.
    """

    def __init__(self, root: ArchiveRoot, url: str, *, is_old: bool = False) -> None:
        self.table = ArchiveTable.create(root)
        self.gateway = GatewayClient(GatewayAccess(GATEWAY, url))
        self._is_old = is_old
        self._number = 0

    def close(self) -> None:
        """Use the gateway no more."""
        self.gateway.close()

    def run(self, *streams: str, report: bool = True) -> None:
        """One batch of what streams have that the table does not, and its report to the gateway."""
        known = {one.key: one.upto for one in self.table.ranges()}
        rows, moved, reported, begins, lost = [], [], {}, {}, []
        for stream in streams:
            seen = self.gateway.stream(stream)
            assert seen is not None, "there is a stream"
            key = StreamKey(GATEWAY, stream, seen["generation"])
            after = known.get(key, ZERO)
            if key not in known:
                begins[key] = parse(seen["removed_upto"])
            elif parse(seen["removed_upto"]) > after:
                name = f"{GATEWAY}/{stream}"
                lost.append(Lost(name, key.generation, str(after), seen["removed_upto"], "trimmed"))
            own = self._entries(stream, key, after, parse(seen["last_id"]))
            if own:
                upto = parse(str(own[-1]["id"]))
                moved.append(Range(key, after, upto, len(own)))
                reported[stream] = str(upto)
                rows += own
        if moved:
            given = pa.Table.from_pylist(rows, schema=GIVEN)
            files = write_files(self.table.root, given)
            noted, digests = ({}, None) if self._is_old else (begins, digests_of(given))
            batch = BatchRanges("archiver", self._number, tuple(moved), tuple(lost), noted, digests)
            self.table.commit(Batch(batch, files))
            self._number += 1
        for stream, archived in reported.items():
            if report:
                self.gateway.update_stream(stream, archived_up_to=archived)

    def _entries(self, stream: str, key: StreamKey, after: EntryId, last: EntryId) -> list[dict[str, object]]:
        found: list[dict[str, object]] = []
        cursor = after
        while cursor < last:
            page = self.gateway.read(stream, start=f"({cursor}", end=str(last), count=10_000)
            for entry in page.entries:
                pairs = [{"name": name, "value": value} for name, value in entry.raw.items()]
                found.append({**dict(zip(key._fields, key, strict=True)), "id": entry.id, "fields": pairs})
            if not page.entries:
                break
            cursor = parse(page.entries[-1].id)
        return found

    def trim(self, keep_last: int = 0) -> int:
        """As `weir-spark trim --yes`; how many entries went."""
        self.table.refresh()
        gateways = {GATEWAY: self.gateway}
        rules = TrimRules(keep_last=keep_last)
        proposals = plan(self.table, gateways, rules, time.time_ns() // 1_000_000)
        return sum(one.deleted for one in run(self.table, gateways, proposals))

    def compact(self) -> int:
        """As `weir-spark compact`; how many files went."""
        return sum(len(one.removed) for one in compact(self.table, CompactionRules(8 << 20)))


def published(url: str, stream: str, values: Sequence[str]) -> list[str]:
    """Publish an entry for each value; their IDs."""
    with GatewayClient(GatewayAccess(GATEWAY, url)) as gateway:
        return list(gateway.publish_batch(stream, [{"n": value} for value in values]).ids)
