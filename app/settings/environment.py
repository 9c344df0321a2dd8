"""The variables of the environment that are meant for the gateway.

Knows: their prefix, and what others set under it. The only module that reads the environment.
Must never know: the settings.
"""

import os
import re
from pathlib import Path
from typing import Final

PREFIX: Final = "WEIR_"
# Variables that other commands read: the file of settings, the gateway's URL and CA, the path of Java.
OTHER_VARIABLES: Final = ("CONFIG", "URL", "CA", "JAVA")
# Kubernetes sets these in every container if a service is called `weir`.
SERVICE_VARIABLE: Final = re.compile(r"SERVICE_.*|PORT_\d+_.*")
# Some of them have names of settings, but hold a URL such as tcp://10.0.0.1:8080.
_SERVICE_PORTS: Final = tuple(f"{PREFIX}{name}" for name in ("PORT", "ADMIN_PORT", "RESP_PORT"))
_SERVICE_SCHEMES: Final = ("tcp://", "udp://", "sctp://")


def variables() -> set[str]:
    """The names of the variables that an operator has set, without their prefix."""
    return {
        name.lower().removeprefix(PREFIX.lower())
        for name, value in os.environ.items()
        if name.upper().startswith(PREFIX) and not is_of_service(name, value)
    }


def is_of_service(variable: str, value: str | None) -> bool:
    """Whether Kubernetes has set this variable, not an operator."""
    return variable.upper() in _SERVICE_PORTS and value is not None and value.startswith(_SERVICE_SCHEMES)


def config_path() -> Path | None:
    """The file of settings that the environment names."""
    text = os.environ.get(f"{PREFIX}CONFIG")
    return Path(text) if text else None
