"""Files that decide who gets in: warned of at a start where other users may read or change them."""

from pathlib import Path
from typing import Any

import pytest

from app.cli.file_modes import check, loose_files
from app.settings import Settings, SettingsError, load
from tests.server import Server

READ, CHANGE = "other users may read", "other users may change"


@pytest.mark.parametrize(
    ("name", "mode", "says"),
    [
        ("root_token_file", 0o600, None),
        ("root_token_file", 0o440, None),
        ("root_token_file", 0o644, READ),
        ("root_token_file", 0o660, CHANGE),
        ("tls_key", 0o604, READ),
        ("tls_certificate", 0o604, READ),
        ("backend_password_file", 0o604, READ),
        ("tokens_file", 0o644, None),
        ("tokens_file", 0o664, CHANGE),
        ("tokens_file", 0o666, CHANGE),
        ("tls_client_ca", 0o602, CHANGE),
        ("jwt_keys", 0o644, None),
        ("jwt_keys", 0o646, CHANGE),
    ],
)
def test_modes_of_files(tmp_path: Path, name: str, mode: int, says: str | None) -> None:
    path = tmp_path / "file"
    path.touch()
    path.chmod(mode)
    given: dict[str, Any] = {name: str(path)}
    found = loose_files(Settings(data=tmp_path, **given))
    assert len(found) == (says is not None)
    assert says is None or f"{name}: {says} {path}, its mode is {mode:04o}: chmod" in found[0]


def test_the_secrets_of_hooks(tmp_path: Path) -> None:
    """Each that the file of hooks names, beside that file itself."""
    hooks, secret = tmp_path / "hooks.toml", tmp_path / "secret"
    hooks.write_text('[github]\nstream = "s"\nscheme = "github"\nsecrets = ["file:secret"]\n')
    for file, mode in ((hooks, 0o644), (secret, 0o604)):
        file.touch()
        file.chmod(mode)
    (found,) = loose_files(Settings(data=tmp_path, hooks_file=str(hooks)))
    assert found.startswith(f"hooks_file: {READ} {secret}")
    hooks.chmod(0o664)
    assert len(loose_files(Settings(data=tmp_path, hooks_file=str(hooks)))) == 2


def test_keys_that_are_secret_and_certificates_that_are_not(tmp_path: Path) -> None:
    path, key = tmp_path / "file", tmp_path / "key"
    path.touch(0o644)
    key.touch(0o600)
    shared = Settings(data=tmp_path, jwt_algorithms=("HS256",), jwt_keys=str(path))
    assert [READ in sentence for sentence in loose_files(shared)] == [True]
    assert loose_files(Settings(data=tmp_path, tls_certificate=str(path), tls_key=str(key))) == []


@pytest.mark.parametrize(("mode", "is_loose"), [(0o777, True), (0o770, False), (0o755, False)])
def test_the_directory_of_the_log(tmp_path: Path, mode: int, *, is_loose: bool) -> None:
    """Its group may write in it, as volumes of Kubernetes have it; there may be none yet."""
    tmp_path.chmod(mode)
    assert bool(loose_files(Settings(data=tmp_path))) is is_loose
    assert loose_files(Settings(data=tmp_path / "none")) == []
    assert loose_files(Settings(data=tmp_path, backend="redis://127.0.0.1:1/0")) == []


def test_the_file_of_settings(tmp_path: Path) -> None:
    config = tmp_path / "weir.toml"
    config.write_text(f'data = "{tmp_path}"\n')
    for mode, is_loose in ((0o644, False), (0o666, True)):
        config.chmod(mode)
        assert bool(loose_files(load({}, config)[0])) is is_loose


def test_a_strict_start_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(SettingsError, match="chmod o-w"):
        check(Settings(data=tmp_path, strict_files=True))
    check(Settings(data=tmp_path / "none", strict_files=True))


def test_a_start_warns_and_a_strict_one_ends(tmp_path: Path) -> None:
    """Exit code 2, with the sentence."""
    secret = tmp_path / "root"
    secret.write_text("root-token-of-at-least-24-characters")
    secret.chmod(0o644)
    options = ("--set", f"root_token_file={secret}")
    with Server(tmp_path / "data", *options) as server:
        assert any(READ in line.get("reason", "") for line in server.log_lines())
    strict = Server(tmp_path / "strict", *options, "--strict-files")
    strict.launch()
    assert strict.exit_code() == 2
    assert f"chmod 600 {secret}" in (tmp_path / "strict.log").read_text()
