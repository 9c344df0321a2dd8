"""`weir serve` and `weir config`: the settings as flags, and the exit codes of a server.

Knows: how to ask for what `app` does. Must never know: how it does it.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from weir.cli import output

if TYPE_CHECKING:
    from app.settings import Settings

_USAGE: Final = 2

Host = Annotated[str | None, typer.Option(help="address to listen on [127.0.0.1]")]
Port = Annotated[int | None, typer.Option(help="port to listen on, 0 for any free one [8080]")]
Data = Annotated[Path | None, typer.Option(help="directory of the log [./weir-data]")]
Fsync = Annotated[str | None, typer.Option(help="always, everysec or no [everysec]")]
Insecure = Annotated[
    bool | None, typer.Option("--insecure", help="listen beyond loopback, open to everybody")
]
Config = Annotated[Path | None, typer.Option(help="TOML file with settings; also WEIR_CONFIG")]
Others = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="any other setting")]


def serve(
    host: Host = None,
    port: Port = None,
    data: Data = None,
    fsync: Fsync = None,
    insecure: Insecure = None,
    config: Config = None,
    others: Others = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Every setting is also WEIR_NAME in the environment and a key of the TOML file: see `weir config`.
    Exit codes: 0 stopped, 1 failed, 2 usage, 3 data refused, 4 data in use by another process,
    5 a second fault inside the engine.
    """
    settings, _ = _settings(
        {"host": host, "port": port, "data": data, "fsync": fsync, "insecure": insecure}, others, config
    )
    from app import lifespan, logs, server
    from app.settings import SettingsError, unknown_variables
    from engine import SystemClock

    logs.configure(settings.log_level, settings.log_format)
    for name, nearest in unknown_variables(os.environ):
        logs.get().warning("unknown variable", name=logs.escape(name), nearest=nearest)
    lifespan.prepare()
    try:
        server.run(settings, SystemClock(), _say)
    except lifespan.ServerStoppedError as stopped:
        print(f"weir: {stopped}", file=sys.stderr)
        raise typer.Exit(stopped.exit_code) from None
    except SettingsError as error:
        print(f"weir: {error}", file=sys.stderr)
        raise typer.Exit(_USAGE) from None


def show_config(
    host: Host = None,
    port: Port = None,
    data: Data = None,
    fsync: Fsync = None,
    insecure: Insecure = None,
    config: Config = None,
    others: Others = None,
) -> None:
    """Print the effective settings as TOML, each with where it comes from and what it is for."""
    flags = {"host": host, "port": port, "data": data, "fsync": fsync, "insecure": insecure}
    settings, sources = _settings(flags, others, config)
    from app.settings import describe, toml_line, unknown_variables

    for name, nearest in unknown_variables(os.environ):
        hint = f": do you mean {nearest}?" if nearest else ""
        output.say(f"WARNING: {name} is no setting{hint}")
    for name in type(settings).model_fields:
        print(f"# {describe(name)} ({sources[name]})")
        print(toml_line(name, getattr(settings, name)))


def _settings(
    flags: Mapping[str, object], others: Sequence[str] | None, config: Path | None
) -> "tuple[Settings, dict[str, str]]":
    from app.settings import SettingsError, load

    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return load({**_pairs(others or ()), **given}, config)
    except SettingsError as error:
        print(f"weir: {error}", file=sys.stderr)
        raise typer.Exit(_USAGE) from None


def _pairs(words: Sequence[str]) -> dict[str, object]:
    """`--set name=value`, as in the environment: names in any case."""
    split = [word.partition("=") for word in words]
    for word, (_, equals, _) in zip(words, split, strict=True):
        if not equals:
            print(f"weir: --set {word}: it is NAME=VALUE", file=sys.stderr)
            raise typer.Exit(_USAGE)
    return {name.strip().lower(): value for name, _, value in split}


def _say(line: str) -> None:
    print(line, flush=True)
