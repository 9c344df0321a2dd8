"""Policies for tests: every caller is the same principal.

Knows: how grants are written. Must never know: what is being tested.
"""

from collections.abc import Callable, Mapping
from typing import Final

from app.auth import Grant, Principal
from app.auth.certificates import ClientCertificate


def principal_with(*grants: str) -> Principal:
    """A caller who may do what these grants say."""
    return Principal("tester", [Grant.parse(grant) for grant in grants])


class FixedPolicy:
    """A policy under which every caller is this principal."""

    def __init__(self, principal: Principal) -> None:
        self.principal: Final = principal
        self.on_changed: Callable[[], None] = lambda: None

    def recognise(
        self, headers: Mapping[bytes, bytes], certificate: ClientCertificate | None = None
    ) -> Principal | None:
        return self.principal

    async def authenticate(
        self, headers: Mapping[bytes, bytes], certificate: ClientCertificate | None = None
    ) -> Principal:
        return self.principal

    async def identify(self, text: str) -> Principal:
        return self.principal

    def is_revoked(self, principal: Principal) -> bool:
        return False
