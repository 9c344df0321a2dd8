"""Nothing is left of it: see app/api."""

from collections.abc import Mapping
from typing import Final

from app.openapi.operation import Operation

OPERATIONS: Final[Mapping[str, Operation]] = {}
