"""From "these streams between these IDs" to the tasks of a batch.

Knows: that counting comes first, and cutting only where it is worth it.
Must never know: offsets, triggers, pages.
"""

from collections.abc import Mapping

from pyspark_weir import offsets
from pyspark_weir.gateway import StreamPlan
from pyspark_weir.options import SourceOptions
from pyspark_weir.planning import Range, Sizes, pack, piece_counts
from pyspark_weir.source.gateways import Asked, Gateways
from pyspark_weir.source.reading import RangePartition, partitions


def range_of(key: str, plan: StreamPlan) -> Range:
    """A planned range."""
    gateway, stream = offsets.parts(key)
    return Range(
        gateway=gateway,
        stream=stream,
        after=plan.after,
        end=plan.end,
        count=plan.count,
        bytes=plan.bytes,
        generation=plan.generation,
        floor=plan.removed_upto,
    )


def sizes_of(options: SourceOptions) -> Sizes:
    """What the options, and where they say nothing this machine's cores, make of tasks."""
    return Sizes(
        min_partitions=options.min_partitions,
        max_entries=options.max_entries_per_partition,
        max_bytes=options.max_bytes_per_partition,
        ordered=options.ordered,
    )


def tasks(gateways: Gateways, sizes: Sizes, plans: Mapping[str, StreamPlan]) -> list[RangePartition]:
    """The partitions that read these ranges; long ones are cut where the gateway says. Raises
    PipelineError.
    """
    ranges = [range_of(key, plan) for key, plan in sorted(plans.items()) if plan.count]
    wanted = piece_counts(ranges, sizes)
    cuts: dict[tuple[str, str], tuple[str, ...]] = {}
    # Mostly one or two long streams; each number of pieces is asked for once.
    for pieces in sorted(set(wanted.values())):
        of_so_many = {one.name: one for one in ranges if wanted.get(one.name) == pieces}
        keys = {offsets.key(*name): name for name in of_so_many}
        answered = gateways.plan(
            Asked(
                after={key: of_so_many[name].after for key, name in keys.items()},
                ends={key: of_so_many[name].end for key, name in keys.items()},
                parts=pieces,
            )
        )
        cuts |= {keys[key]: plan.cuts for key, plan in answered.streams.items()}
    return partitions(pack(ranges, sizes, cuts))
