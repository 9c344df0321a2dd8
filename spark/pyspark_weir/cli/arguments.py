"""The parameters of commands: models that Typer reads, and what they become for a job.

Knows: names, help texts and checks of parameters. Must never know: what a job does with them.

A command takes one model, a frozen dataclass whose members are its parameters. Models share members by
inheritance: what reads streams is a `StreamArguments`, what runs a streaming query a `QueryArguments`.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, get_type_hints

import typer

from pyspark_weir.errors import OptionError
from weir.cli.options import DEFAULT_URL, duration_ms

if TYPE_CHECKING:
    from pyspark_weir.gateway import Access
    from pyspark_weir.running import Pace, Run
    from pyspark_weir.session import SessionOptions

Model = TypeVar("Model")

_GATEWAY: Final = "The gateway"
_READING: Final = "What is read"
_RUNNING: Final = "How it runs"


def as_command(run: Callable[[Model], None]) -> Callable[..., None]:
    """The function as Typer reads one: with a parameter for each member of the model that it takes."""
    (hint, *_) = get_type_hints(run).values()
    members = get_type_hints(hint, include_extras=True)

    @wraps(run)
    def command(**values: Any) -> None:  # noqa: ANN401 - checked by Typer, by the members' types
        run(hint(**values))

    parameters = [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if one.default is MISSING else one.default,
            annotation=members[one.name],
        )
        for one in fields(hint)
    ]
    vars(command)["__signature__"] = inspect.Signature(parameters)
    return command


Root = Annotated[
    str, typer.Argument(metavar="ROOT", show_default=False, help="the archive: a folder, or an address")
]
Gateways = Annotated[
    list[str] | None,
    typer.Option(
        "--gateway",
        envvar="WEIR_URL",
        metavar="[NAME=]URL",
        show_default=DEFAULT_URL,
        rich_help_panel=_GATEWAY,
        help="URL of the gateway; repeated for several, each with a name, which the checkpoint keeps",
    ),
]
Streams = Annotated[
    str | None,
    typer.Option("--streams", metavar="A,B", rich_help_panel=_READING, help="names of streams"),
]
Pattern = Annotated[
    str | None,
    typer.Option(
        "--pattern",
        metavar="REGEX",
        rich_help_panel=_READING,
        help="all streams whose whole name matches, new ones included",
    ),
]
Checkpoint = Annotated[
    str,
    typer.Option(
        "--checkpoint",
        metavar="DIR",
        show_default=False,
        rich_help_panel=_RUNNING,
        help="checkpoint directory; use a separate one for each query",
    ),
]
TokenFile = Annotated[
    str | None, typer.Option(rich_help_panel=_GATEWAY, help="file with the token, on every machine")
]
TokenEnv = Annotated[
    str | None, typer.Option(rich_help_panel=_GATEWAY, help="environment variable that holds the token")
]
Json = Annotated[bool, typer.Option("--json", help="for programs: JSON, one object a line")]


@dataclass(frozen=True, kw_only=True)
class OutputArguments:
    """How results are printed."""

    as_json: Json = False


@dataclass(frozen=True, kw_only=True)
class GatewayArguments(OutputArguments):
    """Where gateways are, and the token to authenticate with."""

    gateways: Gateways = None
    token_file: TokenFile = None
    token_env: TokenEnv = None

    def connection(self) -> dict[str, str]:
        """The options of the data source that say where gateways are."""
        return connection(self.gateways, self.token_file, self.token_env)

    def accesses(self) -> "tuple[Access, ...]":
        """The gateways, for a job that calls them. Raises OptionError."""
        return accesses(self.connection())

    def access(self) -> "Access":
        """The gateway, for a job that works on one. Raises OptionError."""
        return one_access(self.connection())


@dataclass(frozen=True, kw_only=True)
class SparkArguments(OutputArguments):
    """How Spark is started."""

    master: Annotated[
        str | None,
        typer.Option(
            show_default="local[2,4]",
            rich_help_panel=_RUNNING,
            help="where Spark runs: local, local\\[cores,tries], yarn, spark://…, k8s://…",
        ),
    ] = None
    conf: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", rich_help_panel=_RUNNING, help="a setting of Spark; repeatable"),
    ] = None

    def session(self, job: str) -> "SessionOptions":
        """How Spark is started. Raises OptionError."""
        from pyspark_weir.session import SessionOptions

        return SessionOptions(app=f"weir {job}", master=self.master, conf=pairs(self.conf, "--conf"))


@dataclass(frozen=True, kw_only=True)
class StreamArguments(GatewayArguments):
    """Which streams are read, and how."""

    streams: Streams = None
    pattern: Pattern = None
    source_options: Annotated[
        list[str] | None,
        typer.Option(
            "--source",
            metavar="NAME=VALUE",
            rich_help_panel=_READING,
            help="another option of the data source; repeatable",
        ),
    ] = None

    def source(self) -> dict[str, str]:
        """All options of the data source, checked as far as they can be without a gateway. Raises
        OptionError.
        """
        from pyspark_weir.options import source_options

        found = self.connection()
        if self.streams is not None:
            found["subscribe"] = self.streams
        if self.pattern is not None:
            found["subscribePattern"] = self.pattern
        found |= pairs(self.source_options, "--source")
        if not any(name.lower() in ("assign", "subscribe", "subscribepattern") for name in found):
            raise OptionError("no streams are named: use --streams a,b or --pattern 'orders-.*'")
        source_options(found)
        return found


@dataclass(frozen=True, kw_only=True)
class QueryArguments(StreamArguments, SparkArguments):
    """How a streaming query runs."""

    checkpoint: Checkpoint
    once: Annotated[
        bool,
        typer.Option("--once", rich_help_panel=_RUNNING, help="process what exists now, then stop (default)"),
    ] = False
    every_ms: Annotated[
        int | None,
        typer.Option(
            "--every",
            parser=duration_ms,
            metavar="DURATION",
            rich_help_panel=_RUNNING,
            help="run until Ctrl-C, one batch every 10s, say; 0: as soon as there is something",
        ),
    ] = None
    mirror_group: Annotated[
        str | None,
        typer.Option(
            metavar="GROUP",
            rich_help_panel=_RUNNING,
            help="a consumer group to move along, so that the gateway shows the progress",
        ),
    ] = None

    def pace(self) -> "Pace":
        """Once, or again and again. Raises OptionError."""
        from pyspark_weir.running import Pace

        if self.once and self.every_ms is not None:
            raise OptionError("--once and --every exclude each other")
        return Pace(self.every_ms)

    def group(self) -> str | None:
        """The group to move along: --mirror-group, or the source's option. Raises OptionError."""
        from pyspark_weir.options import SOURCE, Given

        return self.mirror_group or Given(pairs(self.source_options, "--source"), SOURCE).text("mirrorGroup")

    def query(self, job: str) -> "Run":
        """The run of a job's query. Raises OptionError."""
        from pyspark_weir.running import Run

        return Run(self.checkpoint, self.pace(), self.session(job), self.accesses(), self.group())


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


def accesses(connection: dict[str, str]) -> "tuple[Access, ...]":
    """The gateways of these options. Raises OptionError."""
    from pyspark_weir.options import COMMON, Given
    from pyspark_weir.options import accesses as of_options

    return of_options(Given(connection, COMMON))


def one_access(connection: dict[str, str]) -> "Access":
    """The only gateway of these options. Raises OptionError."""
    found = accesses(connection)
    if len(found) != 1:
        raise OptionError("this job works on one gateway: give it once")
    return found[0]


def names(text: str | None) -> tuple[str, ...]:
    """`a, b` → its parts, without empty ones."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def pairs(given: Sequence[str] | None, option: str) -> dict[str, str]:
    """`name=value` texts by name; of a repeated name the last. Raises OptionError."""
    found = {}
    for one in given or ():
        name, equals, value = one.partition("=")
        if not equals or not name.strip():
            raise OptionError(f"{option} {one}: write it as {option} name=value")
        found[name.strip()] = value
    return found
