"""Policies for tests: every caller is the same principal.

Knows: how grants are written. Must never know: what is being tested.
"""

from collections.abc import Mapping
from typing import Final

from app.auth import Grant, Principal


def principal_with(*grants: str) -> Principal:
    """A caller who may do what these grants say."""
    return Principal("tester", [Grant.parse(grant) for grant in grants])


class FixedPolicy:
    """A policy under which every caller is this principal."""

    def __init__(self, principal: Principal) -> None:
        self.principal: Final = principal

    def recognise(self, headers: Mapping[bytes, bytes]) -> Principal | None:
        return self.principal

    async def authenticate(self, headers: Mapping[bytes, bytes]) -> Principal:
        return self.principal

    async def identify(self, text: str) -> Principal:
        return self.principal
