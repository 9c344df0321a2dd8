"""`weir-spark mirror`: what streams get, sent on to other streams.

Knows: its parameters. Must never know: how a batch is sent.
"""

from dataclasses import dataclass
from typing import Annotated, Final

import typer

from pyspark_weir.cli import arguments, output

_SENT: Final = "What is sent on"
_tasks_default: Final = 2
_tasks_max: Final = 10_000


@dataclass(frozen=True, kw_only=True)
class MirrorArguments(arguments.QueryArguments):
    """Where entries are sent, and what is done to them before."""

    to_gateway: Annotated[
        str | None,
        typer.Option(
            metavar="[NAME=]URL", rich_help_panel=_SENT, show_default="--gateway", help="the target gateway"
        ),
    ] = None
    to_token_file: Annotated[
        str | None, typer.Option(rich_help_panel=_SENT, help="file with the token for --to-gateway")
    ] = None
    to: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TARGET",
            rich_help_panel=_SENT,
            show_default="{stream}",
            help="target streams: source=target for one, a name or copy.{stream} for the others; repeatable",
        ),
    ] = None
    where: Annotated[
        str | None,
        typer.Option(
            metavar="SQL", rich_help_panel=_SENT, help="only matching entries: fields['level'] = 'error'"
        ),
    ] = None
    route: Annotated[
        str | None,
        typer.Option(
            metavar="SQL", rich_help_panel=_SENT, help="target stream of an entry; null drops the entry"
        ),
    ] = None
    set_fields: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=SQL", rich_help_panel=_SENT, help="a field to set; repeatable"),
    ] = None
    drop: Annotated[
        str | None, typer.Option(metavar="A,B", rich_help_panel=_SENT, help="fields to leave out")
    ] = None
    keep_ids: Annotated[
        bool,
        typer.Option(
            "--keep-ids", rich_help_panel=_SENT, help="keep IDs; nothing else may write to the targets"
        ),
    ] = False
    orig_field: Annotated[
        str, typer.Option(metavar="NAME", rich_help_panel=_SENT, help="field for the original ID")
    ] = ""
    tasks: Annotated[
        int, typer.Option(min=1, max=_tasks_max, rich_help_panel=_SENT, help="streams sent side by side")
    ] = _tasks_default


def mirror(options: MirrorArguments) -> None:
    """Send what streams get to other streams, here or at another gateway: each entry once, in order.

    SQL sees stream, id, ms, seq, ts and fields, a map of text.
    """
    from pyspark_weir.jobs.mirror import Mirror, query
    from pyspark_weir.jobs.replay_plan import Targets
    from pyspark_weir.running import run

    target = (
        options.access()
        if options.to_gateway is None
        else arguments.one_access(arguments.connection([options.to_gateway], options.to_token_file))
    )
    asked = Mirror(
        checkpoint=options.checkpoint,
        source=options.source(),
        target=target,
        targets=Targets.parse(options.to or []),
        where=options.where,
        route=options.route,
        set_fields=arguments.pairs(options.set_fields, "--set"),
        drop_fields=arguments.names(options.drop),
        keep_ids=options.keep_ids,
        orig_field=options.orig_field,
        tasks=options.tasks,
    )
    tell = output.teller(as_json=options.as_json)
    summary = run(options.query("mirror"), lambda spark: query(spark, asked), tell)
    output.ended(summary, as_json=options.as_json)
