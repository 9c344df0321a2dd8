"""The settings: fields, kinds of values, loading, and names of earlier releases.

Knows: what an operator may say. Must never know: what it is for.
"""

from app.settings.fields import Bounds, Settings, SettingsError
from app.settings.loading import describe, load, read_named_file, toml_line, toml_of, unknown_variables
from app.settings.values import host_is_loopback, parse_rate

__all__ = [
    "Bounds",
    "Settings",
    "SettingsError",
    "describe",
    "host_is_loopback",
    "load",
    "parse_rate",
    "read_named_file",
    "toml_line",
    "toml_of",
    "unknown_variables",
]
