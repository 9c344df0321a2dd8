"""The parameters of commands: models that Typer reads, and what they become for a job.

Knows: names, help texts and checks of parameters. Must never know: what a job does with them.

A command takes one model, a frozen dataclass whose members are its parameters. Models share members by
inheritance: what reads streams is a `StreamArguments`, what runs a streaming query a `QueryArguments`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pyspark_weir.cli import output
from pyspark_weir.errors import OptionError
from weir.cli.options import DEFAULT_URL, Json, duration_ms

if TYPE_CHECKING:
    from pyspark_weir.gateway import GatewayAccess, GatewayClient
    from pyspark_weir.running import QueryRun
    from pyspark_weir.session import SessionOptions
    from pyspark_weir.table.root import ArchiveRoot


def panel(title: str) -> Callable[..., Any]:
    """`typer.Option` for the options that the help shows under a title."""
    return partial(typer.Option, rich_help_panel=title)


_gateway, _reading, _running = map(panel, ("The gateway", "What is read", "How it runs"))
_STORAGE = "of a bucket: AWS_REGION, AWS_ENDPOINT_URL, …; from the environment by default; repeatable"
_TO = "target streams: source=target for one, a name or copy.{stream} for the others; repeatable"

Root = Annotated[
    str, typer.Argument(metavar="ROOT", show_default=False, help="the archive: a folder, or an address")
]
Storage = Annotated[list[str] | None, typer.Option("--storage", metavar="NAME=VALUE", help=_STORAGE)]
Streams = Annotated[str | None, _reading("--streams", metavar="A,B", help="names of streams")]
Pattern = Annotated[
    str | None,
    _reading("--pattern", metavar="REGEX", help="all streams whose whole name matches, new ones included"),
]
TokenFile = Annotated[str | None, _gateway(help="file with the token, on every machine")]
TokenEnv = Annotated[str | None, _gateway(help="environment variable that holds the token")]


def gateway_option(help_text: str, title: str = "The gateway") -> Any:  # noqa: ANN401 - typer's own type is not public
    """The option `--gateway`."""
    return panel(title)(
        "--gateway", envvar="WEIR_URL", metavar="[NAME=]URL", show_default=DEFAULT_URL, help=help_text
    )


def to_option(title: str) -> Any:  # noqa: ANN401 - the same
    """The option `--to`."""
    return panel(title)(metavar="TARGET", show_default="{stream}", help=_TO)


@dataclass(frozen=True, kw_only=True)
class OutputArguments:
    """How results are printed."""

    as_json: Json = False


@dataclass(frozen=True, kw_only=True)
class RootArguments(OutputArguments):
    """Where an archive is."""

    root: Root
    storage: Storage = None

    def archive(self) -> "ArchiveRoot":
        return archive_root(self.root, self.storage)


@dataclass(frozen=True, kw_only=True)
class GatewayArguments(OutputArguments):
    """Where gateways are, and the token to authenticate with."""

    gateways: Annotated[
        list[str] | None,
        gateway_option(
            "URL of the gateway; repeated for several, each with a name, which the checkpoint keeps"
        ),
    ] = None
    token_file: TokenFile = None
    token_env: TokenEnv = None

    def connection(self) -> dict[str, str]:
        return connection(self.gateways, self.token_file, self.token_env)

    def opened(self) -> "AbstractContextManager[dict[str, GatewayClient]]":
        """The gateways by name, connected. Raises OptionError."""
        return connected(accesses(self.connection()))


@dataclass(frozen=True, kw_only=True)
class SparkArguments(OutputArguments):
    """How Spark is started."""

    master: Annotated[
        str | None,
        _running(
            show_default="local[2,4]",
            help="where Spark runs: local, local\\[cores,tries], yarn, spark://…, k8s://…",
        ),
    ] = None
    conf: Annotated[
        list[str] | None, _running(metavar="NAME=VALUE", help="a setting of Spark; repeatable")
    ] = None

    verbose: Annotated[
        bool, _running("--verbose", help="show what Spark logs, with Java's traces, before the reason")
    ] = False

    def session(self, job: str) -> "SessionOptions":
        from pyspark_weir.session import SessionOptions

        shown = {"spark.log.level": "WARN"} if self.verbose else {}
        conf = shown | pairs(self.conf, "--conf")
        return SessionOptions(app=f"weir {job}", master=self.master, conf=conf)


@dataclass(frozen=True, kw_only=True)
class StreamArguments(GatewayArguments):
    """Which streams are read, and how."""

    streams: Streams = None
    pattern: Pattern = None
    source_options: Annotated[
        list[str] | None,
        _reading("--source", metavar="NAME=VALUE", help="another option of the data source; repeatable"),
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
        others = pairs(self.source_options, "--source")
        given = {name.lower() for name in found if name != "gateway.urls" or self.gateways}
        for name in others:
            if name.lower() in given:
                raise OptionError(f"--source {name}=…: another option of this command says it too, give one")
        found |= others
        if not any(name.lower() in ("assign", "subscribe", "subscribepattern") for name in found):
            raise OptionError("no streams are named: use --streams a,b or --pattern 'orders-.*'")
        source_options(found)
        return found


@dataclass(frozen=True, kw_only=True)
class QueryArguments(StreamArguments, SparkArguments):
    """How a streaming query runs."""

    checkpoint: Annotated[
        str,
        _running(
            metavar="DIR", show_default=False, help="checkpoint directory; use a separate one for each query"
        ),
    ]
    once: Annotated[bool, _running("--once", help="process what exists now, then stop (default)")] = False
    every_ms: Annotated[
        int | None,
        _running(
            "--every",
            parser=duration_ms,
            metavar="DURATION",
            help="run until Ctrl-C, one batch every 10s, say; 0: as soon as there is something",
        ),
    ] = None
    mirror_group: Annotated[
        str | None,
        _running(
            metavar="GROUP", help="a consumer group to move along, so that the gateway shows the progress"
        ),
    ] = None

    def look(self) -> None:
        """Ask the gateways, before Spark starts, which takes a while: a wrong token ends the job, and streams
        that are named and do not exist, as after a typing error, are said. Raises PipelineError.
        """
        from pyspark_weir.gateway import reach
        from pyspark_weir.gateways import missing_streams
        from pyspark_weir.options import source_options

        options = source_options(self.source())
        reach(options.gateways)
        for name in missing_streams(options):
            output.say(f"stream {name} does not exist: it is read from when it appears")

    def query(self, job: str) -> "QueryRun":
        """The run of a job's query; the group to move along may be an option of the source. Raises
        OptionError.
        """
        from pyspark_weir.options import source_options
        from pyspark_weir.running import QueryRun

        if self.once and self.every_ms is not None:
            raise OptionError("--once and --every exclude each other")
        source = source_options(self.source())
        group = self.mirror_group or source.mirror_group
        return QueryRun(self.checkpoint, self.every_ms, self.session(job), source.gateways, group)


def connection(
    gateways: Sequence[str] | None, token_file: str | None = None, token_env: str | None = None
) -> dict[str, str]:
    """The options of the data source that say where gateways are."""
    given = {
        "gateway.urls": ",".join(gateways or (DEFAULT_URL,)),
        "tokenFile": token_file,
        "tokenEnv": token_env,
    }
    return {name: value for name, value in given.items() if value is not None}


def accesses(connection: dict[str, str]) -> "tuple[GatewayAccess, ...]":
    """The gateways of these options. Raises OptionError."""
    from pyspark_weir.options import COMMON
    from pyspark_weir.options import accesses as of_options
    from pyspark_weir.raw_options import RawOptions

    return of_options(RawOptions(connection, COMMON))


@contextmanager
def connected(accesses: "Iterable[GatewayAccess]") -> "Iterator[dict[str, GatewayClient]]":
    """The gateways by name, connected. Raises OptionError."""
    from pyspark_weir.gateway import GatewayClient

    with ExitStack() as stack:
        yield {one.name: stack.enter_context(GatewayClient(one)) for one in accesses}


def one_access(connection: dict[str, str]) -> "GatewayAccess":
    """The only gateway of these options. Raises OptionError."""
    found = accesses(connection)
    if len(found) != 1:
        raise OptionError("this job works on one gateway: give it once")
    return found[0]


def archive_root(place: str, storage: Sequence[str] | None) -> "ArchiveRoot":
    """The root of an archive; --storage is for buckets. Raises OptionError."""
    from pyspark_weir.table.root import ArchiveRoot

    return ArchiveRoot.of(place, pairs(storage, "--storage"))


def pairs(given: Sequence[str] | None, option: str) -> dict[str, str]:
    """`name=value` texts by name; of a repeated name the last. Raises OptionError."""
    found = {}
    for one in given or ():
        name, equals, value = one.partition("=")
        if not equals or not name.strip():
            raise OptionError(f"{option} {one}: write it as {option} name=value")
        found[name.strip()] = value
    return found
