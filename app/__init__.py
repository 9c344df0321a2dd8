"""The gateway: serves `engine` over HTTP, WebSocket and the Redis protocol, and keeps no streams itself."""

from importlib import metadata
from typing import Final

# As the installed package has it.
VERSION: Final = metadata.version("weir-gateway")
