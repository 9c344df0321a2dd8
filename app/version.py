"""The version, as the installed package has it."""

from importlib import metadata
from typing import Final

VERSION: Final = metadata.version("weir-gateway")
