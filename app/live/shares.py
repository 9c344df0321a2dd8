"""Shares: how much of what stays open one caller has.

Knows: how many each caller holds, and how many it may. Must never know: who a caller is, what is open.
"""

from typing import Final

from app.errors import RefusalError


class Shares:
    """What all callers hold of one kind. `each_max` None is no limit."""

    def __init__(self, code: str, setting: str, each_max: int | None) -> None:
        self._code: Final = code
        self._setting: Final = setting
        self._each_max: Final = each_max
        self._held: dict[str, int] = {}

    def enter(self, caller: str) -> "Share":
        """One more of this caller, until `leave`. Raises the refusal of one too many."""
        held = self._held.get(caller, 0)
        if self._each_max is not None and held >= self._each_max:
            raise RefusalError(
                self._code,
                f"one caller may have at most {self._each_max} at a time: see the setting {self._setting}",
                members={"limit": self._setting},
            )
        self._held[caller] = held + 1
        return Share(self, caller)

    def held(self, caller: str) -> int:
        """How many the caller holds."""
        return self._held.get(caller, 0)

    def leave(self, caller: str) -> None:
        """One less."""
        self._held[caller] -= 1
        if not self._held[caller]:
            del self._held[caller]

    def __len__(self) -> int:
        return len(self._held)


class Share:
    """One connection or read of a caller."""

    __slots__ = ("_caller", "_shares")

    def __init__(self, shares: Shares, caller: str) -> None:
        self._shares = shares
        self._caller: str | None = caller

    def pass_to(self, caller: str) -> None:
        """Be another caller's. Raises the refusal of one too many, and stays where it was."""
        if caller != self._caller:
            passed = self._shares.enter(caller)
            self.leave()
            self._caller, passed._caller = caller, None  # noqa: SLF001 - of the same class

    def leave(self) -> None:
        """It is over. May be called again."""
        if self._caller is not None:
            self._shares.leave(self._caller)
            self._caller = None
