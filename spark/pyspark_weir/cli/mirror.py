"""`weir pipeline mirror`: what streams get, sent on to other streams.

Knows: its options. Must never know: how a batch is sent.
"""

from typing import Annotated, Final

import typer

from pyspark_weir.cli import options, output

_SENT: Final = "What is sent on"
_tasks_default: Final = 2
_tasks_max: Final = 64


def mirror(  # noqa: PLR0913 - a command's options are its parameters
    *,
    checkpoint: options.Checkpoint,
    gateways: options.Gateways = None,
    streams: options.Streams = None,
    pattern: options.Pattern = None,
    source: options.SourceOptions = None,
    token_file: options.TokenFile = None,
    token_env: options.TokenEnv = None,
    to_gateway: Annotated[
        str | None,
        typer.Option(
            metavar="[NAME=]URL", rich_help_panel=_SENT, show_default="--gateway", help="where it is sent"
        ),
    ] = None,
    to_token_file: Annotated[
        str | None, typer.Option(rich_help_panel=_SENT, help="file with the token for --to-gateway")
    ] = None,
    to: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TARGET",
            rich_help_panel=_SENT,
            show_default="{stream}",
            help="where streams go: source=target for one, a name or copy.{stream} for the others; "
            "may be repeated",
        ),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="SQL",
            rich_help_panel=_SENT,
            help="only entries for which this is true: fields['level'] = 'error'",
        ),
    ] = None,
    route: Annotated[
        str | None,
        typer.Option(
            metavar="SQL", rich_help_panel=_SENT, help="the stream that an entry goes to; null is none"
        ),
    ] = None,
    set_fields: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=SQL", rich_help_panel=_SENT, help="a field to set; may be repeated"
        ),
    ] = None,
    drop: Annotated[
        str | None, typer.Option(metavar="A,B", rich_help_panel=_SENT, help="fields to leave out")
    ] = None,
    keep_ids: Annotated[
        bool,
        typer.Option(
            "--keep-ids",
            rich_help_panel=_SENT,
            help="entries keep their IDs; nobody else writes to the targets",
        ),
    ] = False,
    orig_field: Annotated[
        str, typer.Option(metavar="NAME", rich_help_panel=_SENT, help="a field that gets the ID of before")
    ] = "",
    tasks: Annotated[
        int, typer.Option(min=1, max=_tasks_max, rich_help_panel=_SENT, help="streams sent side by side")
    ] = _tasks_default,
    once: options.Once = False,
    every: options.Every = None,
    mirror_group: options.MirrorGroup = None,
    master: options.Master = None,
    conf: options.Conf = None,
    as_json: options.Json = False,
) -> None:
    """Send what streams get to other streams, here or at another gateway: each entry once, in order.

    SQL sees stream, id, ms, seq, ts and fields, a map of text.
    """
    from pyspark_weir.jobs.mirror import Mirror, query
    from pyspark_weir.jobs.replay_plan import Targets
    from pyspark_weir.running import Run, run

    connection = options.connection(gateways, token_file, token_env)
    target = options.connection([to_gateway], to_token_file) if to_gateway else connection
    asked = Mirror(
        checkpoint=checkpoint,
        source=options.source(connection, streams, pattern, source),
        target=options.one_access(target),
        targets=Targets.parse(to or []),
        where=where,
        route=route,
        set_fields=options.pairs(set_fields, "--set"),
        drop_fields=options.names(drop),
        keep_ids=keep_ids,
        orig_field=orig_field,
        tasks=tasks,
    )
    what = Run(
        checkpoint=checkpoint,
        pace=options.pace(once=once, every_ms=every),
        session=options.session("mirror", master, conf),
        gateways=options.accesses(connection),
        mirror_group=options.mirrored(mirror_group, source),
    )
    summary = run(what, lambda spark: query(spark, asked), output.teller(as_json=as_json), output.say)
    output.ended(summary, as_json=as_json)
