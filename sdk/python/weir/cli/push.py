"""`weir push`: entries of groups to webhooks, by a file or by options.

Knows: how a push is given, what is printed. Must never know: how a webhook is sent or signed.
"""

import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from weir.cli import options, output
from weir.cli.failure import Failure

if TYPE_CHECKING:
    from weir.entries import Entry
    from weir.push.config import Push
    from weir.push.endpoint import Endpoint
    from weir.push.pusher import Pusher

PRINTED_MAX: Final = 10
_PROBE: Final = b'{"type":"weir.push.test"}'


@dataclass(frozen=True, kw_only=True)
class PushOptions:
    """What is pushed, and what is done instead of pushing."""

    stream: Annotated[str | None, typer.Argument(help="stream, without --config")] = None
    group: Annotated[str | None, typer.Argument(help="group of the stream")] = None
    to: Annotated[str | None, typer.Argument(metavar="URL", help="where its entries go")] = None
    config: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="TOML file with any number of pushes")
    ] = None
    secret_file: Annotated[
        list[Path] | None,
        typer.Option(help="file with a secret, whsec_…; twice while one replaces the other"),
    ] = None
    format: Annotated[
        str, typer.Option(help="entry, raw, cloudevents, cloudevents-binary or cloudevents-batch")
    ] = "entry"
    order: Annotated[
        str,
        typer.Option(help="none, key:FIELD: those with one value of a field in order, or strict: all"),
    ] = "none"
    in_flight: Annotated[int, typer.Option(help="webhooks at once")] = 8
    timeout: Annotated[str, typer.Option(help="how long an endpoint may take")] = "15s"
    pause_after: Annotated[str, typer.Option(help="pause the group after so long without a success")] = "1d"
    allow_http: Annotated[list[str] | None, typer.Option(help="a host that needs no TLS")] = None
    allow_network: Annotated[
        list[str] | None, typer.Option(help="a network that is not public, and may be reached")
    ] = None
    consumer: Annotated[
        str | None, typer.Option(help="name in the groups, of its own for each process [push-HOST]")
    ] = None
    metrics_port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="port on loopback for /metrics")
    ] = None
    test: Annotated[bool, typer.Option("--test", help="send each endpoint one signed probe, and end")] = False
    show: Annotated[bool, typer.Option("--print", help="print what would be sent next, and end")] = False
    url: options.Url = options.DEFAULT_URL
    token_file: options.TokenFile = None
    ca: options.Ca = None


def push(given: PushOptions) -> None:
    """Deliver the entries of a group to an endpoint as signed webhooks (Standard Webhooks), at least once.

    What fails is tried again with growing pauses, and becomes a dead letter where the group says so. An
    endpoint that is gone, or fails for a day, has its group paused. Several processes share the work.
    """
    import asyncio

    try:
        from weir.push.metrics import PushMetrics
    except ImportError as error:
        raise Failure(f"{error}: install weir-client[push]") from None
    gateway, pushes = _pushes(given)
    url, token = gateway or given.url, _token(given)
    if given.test:
        raise typer.Exit(asyncio.run(_test(pushes)))
    if given.show:
        _print(given, url, pushes)
        return
    metrics = PushMetrics()
    if given.metrics_port is not None:
        try:
            metrics.serve(given.metrics_port)
        except OSError as error:
            raise Failure(f"--metrics-port: {error.strerror or error}") from None
    consumer = given.consumer or f"push-{socket.gethostname()}"

    async def run() -> int:
        from weir.push.pusher import Pusher

        pushers = [
            Pusher(
                one, url, consumer,
                endpoint=_endpoint(one), metrics=metrics, say=output.say, token=token, verify=given.ca,
            )
            for one in pushes
        ]  # fmt: skip
        return sum(await asyncio.gather(*map(_keep, pushers)))

    raise typer.Exit(min(asyncio.run(run()), 1))


async def _keep(pusher: "Pusher") -> int:
    """Run one push; the others go on where it cannot. How many have failed."""
    from weir.errors import WeirError

    try:
        await pusher.run()
    except WeirError as error:
        output.say(f"{pusher.push.name}: {error}")
        return 1
    return 0


def _pushes(given: PushOptions) -> tuple[str | None, Sequence["Push"]]:
    from weir.push import config

    words = (given.stream, given.group, given.to)
    try:
        if given.config is not None:
            if any(words):
                raise typer.BadParameter("STREAM, GROUP and URL go without --config")
            return config.read(given.config)
        if not all(words):
            raise typer.BadParameter("give STREAM, GROUP and URL, or --config")
        table: dict[str, Any] = {
            "stream": given.stream,
            "group": given.group,
            "url": given.to,
            "secrets": [f"file:{path.absolute()}" for path in given.secret_file or ()],
            "format": given.format,
            "order": given.order,
            "in_flight": given.in_flight,
            "timeout": given.timeout,
            "pause_after": given.pause_after,
            "allow_http": given.allow_http or [],
            "allowed_networks": given.allow_network or [],
        }
        return None, [config.of_table(table, Path())]
    except config.ConfigError as error:
        raise typer.BadParameter(str(error)) from None


def _token(given: PushOptions) -> str | None:
    from weir.cli.gateway import read_token

    return None if given.token_file is None else read_token(given.token_file)


def _endpoint(one: "Push") -> "Endpoint":
    from weir.push.endpoint import Endpoint

    return Endpoint(one, time.monotonic, time.time)


async def _test(pushes: Sequence["Push"]) -> int:
    """Send each a probe; 1 if one of them did not take it."""
    from weir.push.messages import Message

    failed = 0
    for one in pushes:
        endpoint = _endpoint(one)
        try:
            kind = {"content-type": "application/json", "weir-stream": one.stream, "weir-group": one.group}
            outcome = await endpoint.try_once(Message(f"test.{time.time_ns()}", _PROBE, kind))
        finally:
            await endpoint.close()
        output.lines([f"{one.name}: {outcome.reason}"])
        failed |= outcome.kind != "done"
    return failed


def _print(given: PushOptions, url: str, pushes: Sequence["Push"]) -> None:
    from weir.cli.gateway import connect
    from weir.errors import NotFoundError

    with connect(url, given.token_file, given.ca) as client:
        for one in pushes:
            if (stream := client.get_stream(one.stream)) is None:
                continue
            try:
                after = client.group(one.stream, one.group).info()["last_delivered_id"]
            except NotFoundError:
                after = one.start
            found = client.read_after(one.stream, after, count=PRINTED_MAX).entries
            for at in range(0, len(found), one.batch_max):
                output.lines(_shown(one, found[at : at + one.batch_max], stream["generation"]))


def _shown(one: "Push", entries: Sequence["Entry"], generation: str) -> Sequence[str]:
    from weir.push.messages import NoDataError, message_of

    try:
        message = message_of(
            entries, one.format, generation=generation, group=one.group, source=one.cloudevents_source
        )
    except NoDataError as error:
        return [f"{entries[0].id}: {error}", ""]
    headers = message.signed(one.secrets, int(time.time()))
    lines = [f"POST {one.url}", *(f"{name}: {value}" for name, value in headers.items()), ""]
    body = message.body.decode("utf-8", "backslashreplace")
    return [*map(output.plain, lines), *map(output.plain, body.splitlines()), ""]
