"""The parameters that jobs share, and what they become: options of the data source, of a session, a pace.

Knows: names, help texts and checks of parameters. Must never know: what a job does with them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pyspark_weir.errors import OptionError
from weir.cli.options import DEFAULT_URL, duration_ms

if TYPE_CHECKING:
    from pyspark_weir.gateway import Access
    from pyspark_weir.running import Pace
    from pyspark_weir.session import SessionOptions

_READING: Final = "What is read"
_RUNNING: Final = "How it runs"


Gateways = Annotated[
    list[str] | None,
    typer.Option(
        "--gateway",
        envvar="WEIR_URL",
        metavar="[NAME=]URL",
        show_default=DEFAULT_URL,
        rich_help_panel=_READING,
        help="where a gateway is; several need names, by which a checkpoint remembers them",
    ),
]
Streams = Annotated[
    str | None,
    typer.Option("--streams", metavar="A,B", rich_help_panel=_READING, help="these streams"),
]
Pattern = Annotated[
    str | None,
    typer.Option(
        "--pattern",
        metavar="REGEX",
        rich_help_panel=_READING,
        help="all streams with a name like this, those that come later too",
    ),
]
SourceOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--source",
        metavar="NAME=VALUE",
        rich_help_panel=_READING,
        help="another option of the data source; may be repeated",
    ),
]
TokenFile = Annotated[
    str | None,
    typer.Option("--token-file", rich_help_panel=_READING, help="file with the token, on every machine"),
]
TokenEnv = Annotated[
    str | None,
    typer.Option("--token-env", rich_help_panel=_READING, help="environment variable that holds the token"),
]
Checkpoint = Annotated[
    str,
    typer.Option(
        "--checkpoint",
        metavar="DIR",
        show_default=False,
        rich_help_panel=_RUNNING,
        help="where it keeps how far it has come; one for each run that goes on",
    ),
]
LastCheckpoint = Annotated[
    str | None,
    typer.Option(
        "--checkpoint", metavar="DIR", help="go on from the last run; without: all that is there, each time"
    ),
]
Once = Annotated[
    bool,
    typer.Option("--once", rich_help_panel=_RUNNING, help="all that is there now, then end (the default)"),
]
Every = Annotated[
    int | None,
    typer.Option(
        "--every",
        parser=duration_ms,
        metavar="DURATION",
        rich_help_panel=_RUNNING,
        help="go on until Ctrl-C, a batch each 10s or so; 0: as soon as there is something",
    ),
]
MirrorGroup = Annotated[
    str | None,
    typer.Option(
        "--mirror-group",
        metavar="GROUP",
        rich_help_panel=_RUNNING,
        help="a group that is moved along, so that the gateway shows how far this has come",
    ),
]
Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        show_default="local[2,4]",
        rich_help_panel=_RUNNING,
        help="where Spark runs: local, local\\[cores,tries], yarn, spark://…, k8s://…",
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option(
        "--conf",
        metavar="NAME=VALUE",
        rich_help_panel=_RUNNING,
        help="a setting of Spark; may be repeated",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="for programs: JSON, one object a line")]


def connection(
    gateways: Sequence[str] | None, token_file: str | None = None, token_env: str | None = None
) -> dict[str, str]:
    """The options of the data source that say where gateways are."""
    found = {"gateway.urls": ",".join(gateways or (DEFAULT_URL,))}
    if token_file is not None:
        found["tokenFile"] = token_file
    if token_env is not None:
        found["tokenEnv"] = token_env
    return found


def source(
    connection: dict[str, str],
    streams: str | None,
    pattern: str | None,
    more: Sequence[str] | None = None,
) -> dict[str, str]:
    """All options of the data source, checked as far as they can be without a gateway. Raises OptionError."""
    from pyspark_weir.options import source_options

    found = dict(connection)
    if streams is not None:
        found["subscribe"] = streams
    if pattern is not None:
        found["subscribePattern"] = pattern
    found |= pairs(more, "--source")
    if not any(name.lower() in ("assign", "subscribe", "subscribepattern") for name in found):
        raise OptionError("which streams? name them with --streams a,b or --pattern 'orders-.*'")
    source_options(found)
    return found


def mirrored(group: str | None, more: Sequence[str] | None) -> str | None:
    """The group to be moved along: --mirror-group, or what --source says of it. Raises OptionError."""
    from pyspark_weir.options import SOURCE, Given

    return group or Given(pairs(more, "--source"), SOURCE).text("mirrorGroup")


def accesses(connection: dict[str, str]) -> "tuple[Access, ...]":
    """The gateways themselves, for a job that calls them. Raises OptionError."""
    from pyspark_weir.options import COMMON, Given
    from pyspark_weir.options import accesses as found

    return found(Given(connection, COMMON))


def one_access(connection: dict[str, str]) -> "Access":
    """The gateway, for a job that works on one. Raises OptionError."""
    found = accesses(connection)
    if len(found) != 1:
        raise OptionError("this job works on one gateway: give --gateway once")
    return found[0]


def pace(*, once: bool, every_ms: int | None) -> "Pace":
    """Once, or again and again. Raises OptionError."""
    from pyspark_weir.running import Pace

    if once and every_ms is not None:
        raise OptionError("--once and --every: only one of them")
    return Pace(every_ms)


def session(job: str, master: str | None, conf: Sequence[str] | None) -> "SessionOptions":
    """How Spark is to be started. Raises OptionError."""
    from pyspark_weir.session import SessionOptions

    return SessionOptions(app=f"weir {job}", master=master, conf=pairs(conf, "--conf"))


def names(text: str | None) -> tuple[str, ...]:
    """`a, b` → its parts, without empty ones."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def pairs(given: Sequence[str] | None, option: str) -> dict[str, str]:
    """`name=value` texts as they are meant; the last one of a name holds. Raises OptionError."""
    found = {}
    for one in given or ():
        name, equals, value = one.partition("=")
        if not equals or not name.strip():
            raise OptionError(f"{option} {one}: write it as {option} name=value")
        found[name.strip()] = value
    return found
