"""Settings: flags over environment over file over defaults; what is unknown or out of range is refused by
name.
"""

import re
from pathlib import Path

import pytest
from pydantic import SecretStr

from app.auth import AccessPolicy
from app.policies import policy_of
from app.settings import (
    Settings,
    SettingsError,
    describe,
    host_is_loopback,
    load,
    parse_rate,
    toml_line,
    unknown_variables,
)
from engine import SystemClock
from tests.bounds import BOUNDS, bounded
from weir.durations import parse_bytes, parse_ms

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"WEIR_{name.upper()}", raising=False)
    monkeypatch.delenv("WEIR_CONFIG", raising=False)


def test_the_nearest_source_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And each setting says where it came from."""
    file = tmp_path / "weir.toml"
    file.write_text('port = 1\nfsync = "no"\ncount_max = 7\nallowed_hosts = ["A.example"]\n')
    monkeypatch.setenv("WEIR_PORT", "2")
    monkeypatch.setenv("WEIR_FSYNC", "always")
    monkeypatch.setenv("WEIR_ALLOWED_ORIGINS", "http://a.example, http://B.example")
    settings, sources = load({"port": 3, "host": None}, file)
    assert (settings.port, settings.fsync, settings.count_max, settings.host) == (3, "always", 7, "127.0.0.1")
    assert settings.allowed_hosts == ("a.example",)
    assert settings.allowed_origins == ("http://a.example", "http://b.example")
    assert (sources["port"], sources["fsync"], sources["count_max"]) == ("flag", "environment", "file")
    assert sources["host"] == "default"


def test_the_environment_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """WEIR_CONFIG, unless a flag names another."""
    one, other = tmp_path / "one.toml", tmp_path / "other.toml"
    one.write_text("port = 1")
    other.write_text("port = 2")
    monkeypatch.setenv("WEIR_CONFIG", str(one))
    assert load({})[0].port == 1
    assert load({}, other)[0].port == 2


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("prot = 1", "weir.toml: unknown setting prot: do you mean port?"),
        ("nonsense = 1", "unknown setting nonsense"),
        ('backend = "nowhere"', "backend (file): say embedded, or redis://"),
        ("port = 70000", "port (file)"),
        ('port = "x"', "port (file)"),
        ('fsync = "sometimes"', "fsync (file)"),
        ("port =", "weir.toml"),
        ("[limits]\nport = 1", "limits"),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, text: str, word: str) -> None:
    """No setting is guessed, none ignored."""
    file = tmp_path / "weir.toml"
    file.write_text(text)
    with pytest.raises(SettingsError) as refused:
        load({}, file)
    assert word in str(refused.value)


def test_the_port_of_a_service_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes gives it to each container beside a service called `weir`, the gateway's own too."""
    monkeypatch.setenv("WEIR_PORT", "tcp://10.0.0.1:9000")
    loaded, sources = load({})
    assert (loaded.port, sources["port"]) == (8080, "default")
    monkeypatch.setenv("WEIR_PORT", "9000")
    loaded, sources = load({})
    assert (loaded.port, sources["port"]) == (9000, "environment")
    monkeypatch.setenv("WEIR_PORT", "http://10.0.0.1:9000")
    with pytest.raises(SettingsError, match="port"):
        load({})


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """Naming one means wanting it."""
    with pytest.raises(SettingsError, match="No such file"):
        load({}, tmp_path / "none.toml")


def test_an_unknown_flag_is_refused() -> None:
    """`--set nonsense=1`; a misspelt one with the name that is meant."""
    with pytest.raises(SettingsError, match=r"^unknown setting nonsense$"):
        load({"nonsense": "1"})
    with pytest.raises(SettingsError, match=r"^unknown setting fsnyc: do you mean fsync\?$"):
        load({"fsnyc": "no"})


@pytest.mark.parametrize("old", ["admin_host", "admin_port", "resp_host", "resp_port", "resp_socket"])
def test_a_setting_of_the_last_release_is_refused_with_the_new_one(
    old: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it is set; what Kubernetes adds for a service called `weir-admin` is none."""
    new = f"{old.partition('_')[0]}_listen"
    file = tmp_path / "weir.toml"
    file.write_text(f"{old} = 1")
    with pytest.raises(SettingsError, match=rf"^{old} is no setting any more: say .* {new}, for example"):
        load({old: "1"})
    with pytest.raises(SettingsError, match=rf"weir\.toml: {old} is no setting any more: .* {new}, "):
        load({}, file)
    monkeypatch.setenv(f"WEIR_{old.upper()}", "tcp://10.0.0.1:9000" if old.endswith("port") else "x")
    if old.endswith("port"):
        load({})
        monkeypatch.setenv(f"WEIR_{old.upper()}", "9000")
    with pytest.raises(SettingsError, match=rf"^WEIR_{old.upper()} is no setting any more: .* {new}, "):
        load({})


@pytest.mark.parametrize("name", sorted(BOUNDS))
def test_a_limit_with_one_value_is_no_setting(name: str) -> None:
    """It is read as a setting is, and documented; tests move it."""
    with pytest.raises(SettingsError, match=rf"^{name} is no setting any more: it has one value now"):
        load({name: "1"})
    assert getattr(bounded(**{name: 7}), name) == 7 != getattr(Settings(), name)
    assert re.search(rf"^\| `{name}` \|", (ROOT / "docs" / "limits.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("backend_user", "backend"),
        ("body_bytes_total_max", "buffer_bytes_max"),
        ("connections_per_principal_max", "per_principal_max"),
        ("output_bytes_max", "buffer_bytes_max"),
        ("pipeline_bytes_max", "buffer_bytes_max"),
        ("resp_connections_max", "sockets_max"),
        ("waits_per_principal_max", "per_principal_max"),
    ],
)
def test_a_joined_setting_is_refused_with_the_one_that_does_its_work(old: str, new: str) -> None:
    """Left in a file, it would be taken for one that holds."""
    with pytest.raises(SettingsError, match=rf"^{old} is no setting any more: .*\b{new}\b"):
        load({old: "1"})
    assert new in Settings.model_fields


def test_keys_of_jwts_are_a_file_or_a_url() -> None:
    """A URL that is not encrypted is refused, unless it is this machine's."""

    def policy(keys: str) -> AccessPolicy:
        return policy_of(load({"jwt_algorithms": "RS256", "jwt_keys": keys})[0], SystemClock())

    for url in ("https://id.example/jwks.json", "http://127.0.0.1:9/jwks.json"):
        policy(url)
    for keys, reason in (
        ("http://id.example/jwks.json", "a URL begins with https://"),
        ("none.json", "No such file"),
        ("", "it needs jwt_keys"),
    ):
        with pytest.raises(SettingsError, match=reason):
            policy(keys)
    with pytest.raises(SettingsError, match=r"^jwt_jwks_url .*: jwt_keys takes the URL"):
        load({"jwt_jwks_url": "https://id.example/jwks.json"})


@pytest.mark.parametrize("what", ["requests", "bytes", "failures"])
def test_a_rate_is_a_text(what: str) -> None:
    """A number a second, and a burst; the numbers of earlier settings are refused."""
    for text, found in (("100/s", (100, 100)), ("100/s burst 500", (100, 500)), ("", (0, 0))):
        assert parse_rate(getattr(load({f"rate_{what}": text})[0], f"rate_{what}")) == found
    for text in ("100", "100/m", "100/s burst", "0/s", "1/s burst 0", "-1/s", "1.5/s", f"{1 << 51}/s"):
        with pytest.raises(SettingsError, match=rf"rate_{what} \(flag\): .* (is no rate|of a rate are)"):
            load({f"rate_{what}": text})
    for part in ("per_s", "burst"):
        with pytest.raises(SettingsError, match=rf"^rate_{what}_{part} .* say both in rate_{what}, for"):
            load({f"rate_{what}_{part}": "1"})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("9090", ("127.0.0.1", 9090)),
        ("0.0.0.0:9090", ("0.0.0.0", 9090)),
        ("[::1]:9090", ("::1", 9090)),
        ("localhost:65535", ("localhost", 65_535)),
        ("", None),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, found: tuple[str, int] | None) -> None:
    """A port alone is on loopback."""
    assert load({"admin_listen": text})[0].admin == found


@pytest.mark.parametrize(
    "text", ["0", "65536", "host", "host:", ":9090", "::1:9090", "a:b:1", "unix:/a", "-1"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"admin_listen \(flag\): .* is no address: say HOST:PORT"):
        load({"admin_listen": text})


def test_redis_clients_have_a_port_a_socket_or_both(tmp_path: Path) -> None:
    """One of each; in a file a port may be a number."""
    settings, _ = load({"resp_listen": "6380, unix:/run/weir.sock"})
    assert (settings.resp, settings.resp_path) == (("127.0.0.1", 6380), Path("/run/weir.sock"))
    assert (load({})[0].resp, load({})[0].resp_path) == (None, None)
    file = tmp_path / "weir.toml"
    file.write_text('admin_listen = 9090\nresp_listen = ["unix:/run/weir.sock"]\n')
    settings, _ = load({}, file)
    assert (settings.admin, settings.resp, settings.resp_path) == (
        ("127.0.0.1", 9090),
        None,
        Path("/run/weir.sock"),
    )
    for wrong in ("6380,6381", "unix:/a,unix:/b", "unix:"):
        with pytest.raises(SettingsError, match="resp_listen"):
            load({"resp_listen": wrong})


def test_a_promise_of_a_backend_needs_a_backend() -> None:
    """The embedded engine would not keep it."""
    with pytest.raises(SettingsError, match=r"backend_durability: .* `fsync`"):
        load({"backend_durability": "replicated:1"})
    settings, _ = load({"backend_durability": "replicated:1", "backend": "redis://localhost"})
    assert settings.backend_durability == "replicated:1"


def test_history_is_named_by_an_url_and_its_token_needs_one() -> None:
    """A token for a service that nothing names would be read by none."""
    for wrong in ("ftp://archive:8090", "archive:8090", "http://", "http://user:secret@archive"):
        with pytest.raises(SettingsError, match=r"history_url \(flag\): say http://HOST:PORT or https"):
            load({"history_url": wrong})
    with pytest.raises(SettingsError, match=r"history_token_file: .* `history_url` names none"):
        load({"history_token_file": "/run/secrets/history"})
    for right in ("http://archive:8090", "https://[::1]:8090/weir"):
        settings, _ = load({"history_url": right, "history_token_file": "/run/secrets/history"})
        assert settings.history_url == right


@pytest.mark.parametrize("source", ["flag", "environment", "file"])
@pytest.mark.parametrize(
    ("name", "written", "value"),
    [
        *(("wait_ms_max", text, parse_ms(text)) for text in ("250ms", "5m", "1h", "0")),
        ("wait_ms_max", "300000", 300_000),
        ("request_s_max", "1500ms", parse_ms("1500ms") / 1_000),
        *(("backend_timeout_ms", text, parse_ms(text)) for text in ("1m", "7s")),
        *(("memory_bytes_max", text, parse_bytes(text)) for text in ("128MiB", "128mb", "1T", "9gb", "0")),
        ("body_bytes_max", "64k", 64 << 10),
    ],
)
def test_durations_and_sizes_have_the_units_of_the_command_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    name: str,
    written: str,
    value: float,
) -> None:
    """Wherever they are set; a number is in the unit of the name."""
    file = tmp_path / "weir.toml"
    file.write_text(f'{name} = "{written}"' if source == "file" else "")
    if source == "environment":
        monkeypatch.setenv(f"WEIR_{name.upper()}", written)
    settings, sources = load({name: written} if source == "flag" else {}, file)
    assert (getattr(settings, name), sources[name]) == (value, source)
    with pytest.raises(SettingsError, match=rf"{name} \(flag\): '5 x' is no (size|duration) such as"):
        load({name: "5 x"})


def test_what_is_printed_can_be_read_again(tmp_path: Path) -> None:
    """Every setting as a line of the file."""
    settings, _ = load({"data": 'a "quoted" name', "allowed_hosts": "x.example,y.example", "insecure": True})
    file = tmp_path / "weir.toml"
    lines = [toml_line(name, getattr(settings, name)) for name in Settings.model_fields]
    file.write_text("\n".join(lines))
    again, sources = load({}, file)
    assert again.model_dump() == settings.model_dump()
    assert set(sources.values()) == {"file"}


def test_every_setting_is_described() -> None:
    """What it is for, in a few words; numbers have limits."""
    for name, field in Settings.model_fields.items():
        assert field.description, name
        if field.annotation is int:
            assert field.metadata, f"{name} has no limit"


def test_every_limit_is_documented_with_its_default() -> None:
    """The tables of docs/limits.md; behind `## Quotas` are members of grants."""
    page, _, _ = (ROOT / "docs" / "limits.md").read_text().partition("## Quotas")
    documented: dict[str, str] = {}
    for row in re.findall(r"^\| `(.+?)` \| (.+?) \|", page, re.MULTILINE):
        names, defaults = row[0].split("`, `"), row[1].split(", ")
        documented |= zip(names, defaults * len(names) if len(defaults) == 1 else defaults, strict=True)
    limits = {
        name: field.default
        for name, field in Settings.model_fields.items()
        if field.annotation in (int, float) and name.endswith(("_max", "_burst", "_per_s"))
    }
    assert {name: _in_words(name, default) for name, default in limits.items()}.items() <= documented.items()


def _in_words(name: str, default: float) -> str:
    if "_bytes_" not in name or not default:
        return f"{default:,}"
    size = int(default)
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def test_a_setting_of_a_few_words_lists_them() -> None:
    """All that pydantic takes, whichever it is."""
    assert describe("log_requests").endswith(": all | failed | none")
    assert describe("fsync").endswith(": always | everysec | no")
    assert describe("log_level").endswith(": debug | info | warning | error")
    assert describe("log_format").endswith(": auto | json | console")
    for name, field in Settings.model_fields.items():
        if field.annotation not in (str, int, float, bool, Path, SecretStr) and "tuple" not in str(
            field.annotation
        ):
            assert " | " in describe(name), name


@pytest.mark.parametrize(
    ("variable", "nearest"),
    [
        ("WEIR_FSYNK", "WEIR_FSYNC"),
        ("weir_fsynk", "WEIR_FSYNC"),
        ("WEIR_MAX_BODY_BYTES", "WEIR_BODY_BYTES_MAX"),
        ("WEIR_BODY_MAX_BYTES", "WEIR_BODY_BYTES_MAX"),
        ("WEIR_DATA_DIR", "WEIR_DATA"),
        ("WEIR_ALLOWED_HOST", "WEIR_ALLOWED_HOSTS"),
        ("WEIR_URI", "WEIR_URL"),
        ("WEIR_COLOUR", None),
        ("WEIR_", None),
    ],
)
def test_an_unknown_variable_has_a_nearest_name(variable: str, nearest: str | None) -> None:
    assert unknown_variables([variable]) == [(variable, nearest)]


def test_variables_that_mean_something_are_not_unknown() -> None:
    """Settings in any case, what other commands use, what Kubernetes adds, what is not ours."""
    settings = [f"WEIR_{name.upper()}" for name in Settings.model_fields]
    others = [
        "WEIR_CONFIG",
        "WEIR_URL",
        "WEIR_CA",
        "WEIR_JAVA",
        "weir_fsync",
        "WEIRD",
        "MY_WEIR_FSYNK",
        "PATH",
    ]
    service = ["WEIR_SERVICE_HOST", "WEIR_SERVICE_PORT_HTTP", "WEIR_PORT_8080_TCP", "WEIR_PORT_8080_TCP_ADDR"]
    assert unknown_variables([*settings, *others, *service]) == []
    assert unknown_variables(["WEIR_Z", "WEIR_Q"]) == [("WEIR_Q", None), ("WEIR_Z", None)]


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        *[(name, True) for name in ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost")],
        *[(name, False) for name in ("0.0.0.0", "::", "10.0.0.1", "example.org", "")],
    ],
)
def test_loopback_is_told_from_everything_else(host: str, *, loopback: bool) -> None:
    """By address; of the names by `localhost` alone."""
    assert host_is_loopback(host) is loopback
