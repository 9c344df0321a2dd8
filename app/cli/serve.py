"""`weir serve` and `weir config`: the settings as flags, and the exit codes of a server.

Knows: how to ask for what `app` does. Must never know: how it does it.
"""

import gc
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from app.cli.directory import holder_of
from weir.cli import output
from weir.cli.failure import Failure

if TYPE_CHECKING:
    from app.lifespan import ServerStoppedError
    from app.settings import Settings

_USAGE: Final = 2


@dataclass(frozen=True, kw_only=True)
class Flags:
    """The settings that have a flag of their own, and where the others are from."""

    host: Annotated[str | None, typer.Option(help="address to listen on [127.0.0.1]")] = None
    port: Annotated[int | None, typer.Option(help="port to listen on, 0 for any free one [8080]")] = None
    admin_listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="address of its own for /metrics and /v1/admin \\[none]"),
    ] = None
    fronts: Annotated[
        int | None, typer.Option(help="processes that speak HTTP, before one with the engine \\[0]")
    ] = None
    data: Annotated[Path | None, typer.Option(help="directory of the log [./weir-data]")] = None
    backend: Annotated[
        str | None, typer.Option(help="embedded, or the URL of a Redis or Valkey server \\[embedded]")
    ] = None
    fsync: Annotated[str | None, typer.Option(help="always, everysec or no \\[everysec]")] = None
    resp_listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT,unix:PATH", help="addresses for Redis clients, one or both \\[none]"),
    ] = None
    insecure: Annotated[
        bool | None, typer.Option("--insecure", help="listen beyond loopback, open to everybody")
    ] = None
    strict_files: Annotated[
        bool | None,
        typer.Option("--strict-files", help="start only if no other user may read secrets, or change files"),
    ] = None
    config: Annotated[Path | None, typer.Option(help="TOML file with settings; also WEIR_CONFIG")] = None
    # Of the last release: `load` refuses them with what does their work now.
    admin_host: Annotated[str | None, typer.Option(hidden=True)] = None
    admin_port: Annotated[str | None, typer.Option(hidden=True)] = None
    resp_host: Annotated[str | None, typer.Option(hidden=True)] = None
    resp_port: Annotated[str | None, typer.Option(hidden=True)] = None
    resp_socket: Annotated[str | None, typer.Option(hidden=True)] = None
    others: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="any other setting")
    ] = None

    def load(self) -> "tuple[Settings, dict[str, str]]":
        """The settings, and the source of each. Ends the command where one is wrong."""
        from app.settings import SettingsError, load

        given = {name: value for name, value in vars(self).items() if value is not None}
        config, others = given.pop("config", None), given.pop("others", ())
        try:
            return load({**_pairs(others), **given}, config)
        except SettingsError as error:
            raise Failure(str(error), exit_code=_USAGE) from None


def serve(flags: Flags) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Every setting is also WEIR_NAME in the environment and a key of the TOML file: see `weir config`.
    Exit codes: 0 stopped, 1 failed, 2 usage, 3 data refused, 4 data in use by another process,
    5 a second fault inside the engine.
    """
    # What is imported stays: to look through it again and again takes a seventh of the start.
    gc.disable()
    from app import lifespan, logs

    try:
        settings, _ = flags.load()
    except Failure as failure:
        logs.configure("info", "auto")
        _refuse(lifespan.ServerStoppedError(failure.exit_code, str(failure)))
    from app import server
    from app.cli import file_modes
    from app.settings import SettingsError, unknown_variables
    from app.transport.systemd import Systemd
    from engine import SystemClock

    run = server.run
    if settings.fronts:
        from app import supervisor

        run = supervisor.run
    gc.freeze()
    gc.enable()
    logs.configure(settings.log_level, settings.log_format)
    for name, nearest in unknown_variables(os.environ):
        logs.get().warning("unknown variable", name=logs.escape(name), nearest=nearest)
    lifespan.prepare()
    try:
        file_modes.check(settings)
        run(settings, SystemClock(), _say if logs.are_for_people() else _log, Systemd(os.environ))
    except server.NoPortError as stopped:
        holder = holder_of(settings.data) if settings.is_embedded else None
        text = f"{stopped}, and {holder}" if holder else str(stopped)
        _refuse(lifespan.ServerStoppedError(stopped.exit_code, text, stopped.remedy))
    except lifespan.ServerStoppedError as stopped:
        _refuse(stopped)
    except SettingsError as error:
        _refuse(lifespan.ServerStoppedError(_USAGE, str(error)))
    logs.get().info("stopped")


def show_config(flags: Flags) -> None:
    """Print the effective settings as TOML, each with where it comes from and what it is for; and what holds
    where a setting leaves that open.
    """
    settings, sources = flags.load()
    from app.metrics import memory_limit
    from app.settings import describe, toml_line, unknown_variables

    held = memory_limit.describe(settings)

    for name, nearest in unknown_variables(os.environ):
        hint = f": do you mean {nearest}?" if nearest else ""
        output.say(f"WARNING: {name} is no setting{hint}")
    for name in type(settings).model_fields:
        print(f"# {describe(name)} ({sources[name]})")
        if name in held:
            print(f"# here: {held[name]}")
        print(toml_line(name, getattr(settings, name)))


def _pairs(words: Sequence[str]) -> dict[str, object]:
    """`--set name=value`, as in the environment: names in any case."""
    split = [word.partition("=") for word in words]
    for word, (_, equals, _) in zip(words, split, strict=True):
        if not equals:
            raise Failure(f"--set {word}: it is NAME=VALUE", exit_code=_USAGE)
    return {name.strip().lower(): value for name, _, value in split}


def _refuse(stopped: "ServerStoppedError") -> NoReturn:
    stopped.log()
    raise typer.Exit(stopped.exit_code) from None


def _say(what: str, where: str) -> None:
    print(f"{what:<8} {where}", flush=True)


def _log(what: str, where: str) -> None:
    """The same for programs: what is piped is JSON alone, on standard error."""
    from app import logs

    logs.get().info("serving", what=what, where=where)
