"""Settings of earlier releases: each is refused, with what does its work now.

Knows: old names. Must never know: what a setting is for.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from app.settings.fields import SettingsError

_REPLACED: Final[Mapping[str, str]] = {
    "pipeline_bytes_max": "it is buffer_bytes_max now",
    **dict.fromkeys(("admin_host", "admin_port"), "say both in admin_listen, for example 127.0.0.1:9090"),
    **dict.fromkeys(("resp_host", "resp_port"), "say both in resp_listen, for example 127.0.0.1:6380"),
    **{
        f"rate_{what}_{part}": f"say both in rate_{what}, for example 100/s burst 500"
        for what in ("requests", "bytes", "failures")
        for part in ("per_s", "burst")
    },
    "backend_user": "say the user in backend, for example redis://weir@127.0.0.1:6379/0",
    **dict.fromkeys(("output_bytes_max", "body_bytes_total_max"), "say it in buffer_bytes_max, for both"),
    **dict.fromkeys(
        ("connections_per_principal_max", "waits_per_principal_max"), "say it in per_principal_max, for both"
    ),
    "resp_connections_max": "sockets_max holds for Redis clients, too",
    "jwt_jwks_url": "jwt_keys takes the URL, for example https://id.example/jwks.json",
    **dict.fromkeys(
        (
            *("answer_bytes_max", "ids_max", "pipeline_commands_max"),
            *("backend_poll_s", "columns_count_max", "count_default", "entry_fields_max", "head_bytes_max"),
            *("heartbeat_ms", "json_depth_max", "request_streams_max", "rewrite_bytes_min"),
        ),
        "it has one value now, see docs/limits.md",
    ),
    "resp_socket": "say it in resp_listen, for example unix:/run/weir/redis.sock",
}


def check_replaced(names: Iterable[str], written: Callable[[str], str] = str) -> None:
    """Refuse a setting of the last release, as it is `written`, with what does its work now."""
    for name in sorted(_REPLACED.keys() & {*names}):
        raise SettingsError(f"{written(name)} is no setting any more: {_REPLACED[name]}")
