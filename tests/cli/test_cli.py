"""The command line: what it prints and how it ends."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from tests.cli import command
from tests.cli.command import Ended


def weir(*words: str, **environment: str) -> Ended:
    return command.weir("", *words, also=environment)


def test_the_version_is_printed() -> None:
    """Those of client and gateway, and which reader of bodies runs; exit code 0."""
    result = weir("--version")
    client, gateway = result.out.splitlines()
    assert (result.code, client.split()[0]) == (0, "weir")
    assert gateway.startswith("weir-gateway ")
    assert gateway.endswith((", rows in C", ", rows in Python"))


def test_config_prints_what_is_in_force(tmp_path: Path) -> None:
    """Each setting with its source and what it is for, as lines that the file could have."""
    file = tmp_path / "weir.toml"
    file.write_text("count_max = 9\n")
    result = weir("config", "--port", "99", "--set", "groups_max=5", WEIR_FSYNC="no", WEIR_CONFIG=str(file))
    lines = result.out.splitlines()
    assert result.code == 0
    for line, source in [("port = 99", "flag"), ("groups_max = 5", "flag"), ("count_max = 9", "file")]:
        assert f"({source})" in lines[lines.index(line) - 1]
    assert "(environment)" in lines[lines.index('fsync = "no"') - 1]


def test_config_takes_every_flag_of_serve(tmp_path: Path) -> None:
    """What a server would be started with can be looked at before."""
    flags = {
        "admin-listen": "[::1]:9090",
        "backend": "embedded",
        "data": str(tmp_path),
        "fronts": "2",
        "fsync": "always",
        "host": "127.0.0.2",
        "port": "99",
        "resp-listen": "127.0.0.3:6379,unix:redis.sock",
    }
    listed = set(re.findall(r"--([a-z-]+)", weir("serve", "--help").out))
    assert listed - {"insecure", "strict-files", "config", "set", "help"} == set(flags)
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    result = weir("config", *words, "--insecure")
    assert result.code == 0, result.err
    shown = tomllib.loads(result.out)
    shown["resp_listen"] = ",".join(shown["resp_listen"])
    assert {name: str(shown[name.replace("-", "_")]) for name in flags} == flags
    assert shown["insecure"] is True


def test_a_variable_that_is_no_setting_is_named(tmp_path: Path) -> None:
    """With what is meant, by `weir config` and in the log of a server, before its data is opened."""
    result = weir("config", WEIR_FSYNK="no", WEIR_COLOUR="red", WEIR_FSYNC="no")
    assert result.code == 0
    assert result.err.splitlines() == [
        "weir: WARNING: WEIR_COLOUR is no setting",
        "weir: WARNING: WEIR_FSYNK is no setting: do you mean WEIR_FSYNC?",
    ]
    (tmp_path / "data").write_text("no directory: the server ends at once")
    result = weir("serve", "--port", "0", "--data", str(tmp_path / "data"), WEIR_FSYNK="no")
    assert result.code != 0
    warning = json.loads(result.err.splitlines()[0])
    assert (warning["level"], warning["event"]) == ("warning", "unknown variable")
    assert (warning["name"], warning["nearest"]) == ("WEIR_FSYNK", "WEIR_FSYNC")


@pytest.mark.parametrize(
    "words",
    [
        ("serve", "--fsync", "sometimes"),
        ("serve", "--port", "70000"),
        ("serve", "--port", "x"),
        ("serve", "--set", "nonsense=1"),
        ("serve", "--set", "nonsense"),
        ("serve", "--config", "/none.toml"),
        ("serve", "--nonsense"),
        ("nonsense",),
        ("serve", "--host", "192.0.2.1"),
    ],
)
def test_wrong_usage_ends_with_2(words: tuple[str, ...]) -> None:
    """A sentence on standard error, no trace."""
    result = weir(*words)
    assert result.code == 2
    assert result.err
    assert "Traceback" not in result.err
