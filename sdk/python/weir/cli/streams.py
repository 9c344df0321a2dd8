"""`weir streams`, `weir info`, `weir trim`: streams as wholes.

Knows: which members of a stream people look at. Must never know: HTTP, how a table is drawn.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from weir.cli import options, output

_COLUMNS: Final = ("name", "length", "groups", "first_id", "last_id", "memory_bytes", "closed")


def streams(
    *,
    prefix: Annotated[str | None, typer.Option(help="only names that begin so")] = None,
    as_json: options.Json = False,
    url: options.Url = options.DEFAULT_URL,
    token_file: options.TokenFile = None,
    ca: options.Ca = None,
) -> None:
    """List the streams."""
    from weir.cli.gateway import connect

    with connect(url, token_file, ca) as client:
        found = list(client.list_streams(prefix=prefix))
    output.rows(found, _COLUMNS, as_json=as_json)


def info(
    stream: options.Stream,
    *,
    as_json: options.Json = False,
    url: options.Url = options.DEFAULT_URL,
    token_file: options.TokenFile = None,
    ca: options.Ca = None,
) -> None:
    """Describe a stream."""
    from weir.cli.gateway import connect
    from weir.paths import stream_path

    with connect(url, token_file, ca) as client:
        output.members(client.call("GET", stream_path(stream)), as_json=as_json)


def close(
    stream: options.Stream,
    *,
    reason: Annotated[str, typer.Option(help="why, for its readers")] = "",
    drop_schedules: Annotated[
        bool,
        typer.Option("--drop-schedules", help="drop what is scheduled; it keeps the stream open otherwise"),
    ] = False,
    as_json: options.Json = False,
    url: options.Url = options.DEFAULT_URL,
    token_file: options.TokenFile = None,
    ca: options.Ca = None,
) -> None:
    """End a stream for good: it takes no entries any more, and its readers end behind the last one."""
    from weir.cli.gateway import connect

    with connect(url, token_file, ca) as client:
        answer = client.close_stream(stream, reason=reason, drop_schedules=drop_schedules)
    said = f"closed behind {answer['last_id']}" if not answer["duplicate"] else "it was closed already"
    output.lines([output.json_line(answer) if as_json else said])


def trim(  # noqa: PLR0913 - a command's options are its parameters
    stream: options.Stream,
    *,
    maxlen: Annotated[int | None, typer.Option(min=0, help="keep this number of entries, the newest")] = None,
    minid: Annotated[str | None, typer.Option(help="keep entries from this ID on")] = None,
    older_than: Annotated[
        int | None,
        typer.Option(parser=options.duration_ms, metavar="DURATION", help="remove what is older, such as 7d"),
    ] = None,
    approx: Annotated[bool, typer.Option("--approx", help="whole nodes only: faster, keeps more")] = False,
    guard: Annotated[
        bool, typer.Option("--guard", help="refuse to remove what a group has not finished")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only show what would go")] = False,
    as_json: options.Json = False,
    url: options.Url = options.DEFAULT_URL,
    token_file: options.TokenFile = None,
    ca: options.Ca = None,
) -> None:
    """Remove the oldest entries of a stream: by number, by ID or by age."""
    given = {"maxlen": maxlen, "minid": minid, "older_than_ms": older_than}
    body: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    if len(body) != 1:
        raise typer.BadParameter("one of --maxlen, --minid and --older-than is needed, and one only")
    switches = {"approx": approx, "guard": guard, "dry_run": dry_run}
    body |= {name: True for name, is_on in switches.items() if is_on}
    from weir.cli.gateway import connect
    from weir.paths import stream_path

    with connect(url, token_file, ca) as client:
        answer = client.call("POST", f"{stream_path(stream)}/trim", body=body, repeatable=True)
    output.lines([output.json_line(answer) if as_json else _trimmed(answer, dry_run=dry_run)])


def _trimmed(answer: Mapping[str, Any], *, dry_run: bool) -> str:
    """What went, or would go."""
    verb = "would remove" if dry_run else "removed"
    line = f"{verb} {output.counted(answer['deleted'], 'entry', 'entries')}"
    if answer.get("pending_affected"):
        line += f", {answer['pending_affected']} of them pending"
    first = answer.get("first_id")
    return f"{line}; the first left is {first}" if first and first != "0-0" else f"{line}; none is left"
