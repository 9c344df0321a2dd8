"""`weir pipeline doctor`: whether this machine is ready.

Knows: its options, how findings look. Must never know: how anything is found out.
"""

from typing import Annotated

import typer

from pyspark_weir.cli import options, output


def doctor(  # noqa: PLR0913 - a command's options are its parameters
    *,
    gateways: options.Gateways = None,
    streams: options.Streams = None,
    no_spark: Annotated[
        bool, typer.Option("--no-spark", help="do not start Spark, which takes a while")
    ] = False,
    master: options.Master = None,
    conf: options.Conf = None,
    token_file: options.TokenFile = None,
    token_env: options.TokenEnv = None,
    as_json: options.Json = False,
) -> None:
    """Say what is here and what is missing: Java, Spark, packages, workers, gateways.

    With --streams also what there is to read. Nothing is changed. Exit code 1 where something is wrong.
    """
    from pyspark_weir.jobs.doctor import Examination, Finding, examine

    connection = options.connection(gateways, token_file, token_env)
    session = options.session("doctor", master, conf)
    what = Examination(
        gateways=options.accesses(connection | {"retryTimeoutMs": "0"}),
        streams=tuple(streams.split(",")) if streams else (),
        source=options.source(connection, streams, None) if streams else None,
        spark=None if no_spark else session,
    )
    found: list[Finding] = []
    for finding in examine(what):
        found.append(finding)
        if as_json:
            output.line(finding.members())
    if not as_json:
        output.rows([one.members() for one in found], ("check", "state", "said"), as_json=False)
    if any(one.fine is False for one in found):
        raise typer.Exit(1)
