"""Which stream is a fork of which, and which names stay taken: removed streams that still have forks.

Knows: names. Must never know: what a stream is, why one is removed.

A fork has entries of its own, so of a removed source only the name is kept, until its last fork is gone: who
looks for the source of a fork finds that it is gone, and not another stream. Where another stream takes the
name all the same, as RENAME and XADD can, the forks are forks of none from there on.
"""

from collections.abc import Iterator


class Forks:
    """All forks, of streams that exist or have forks themselves."""

    __slots__ = ("_forks", "_sources", "hidden")

    def __init__(self) -> None:
        # By the source, and by the fork.
        self._forks: dict[str, dict[str, None]] = {}
        self._sources: dict[str, str] = {}
        # Removed streams that have forks.
        self.hidden: dict[str, None] = {}

    def add(self, fork: str, source: str) -> None:
        """Enter a fork."""
        self._sources[fork] = source
        self._forks.setdefault(source, {})[fork] = None

    def source_of(self, name: str) -> str | None:
        """The stream that this one is a fork of."""
        return self._sources.get(name)

    def items(self) -> Iterator[tuple[str, str]]:
        """Each fork with its source."""
        return iter(self._sources.items())

    def remove(self, name: str) -> None:
        """A stream is removed: hidden while it has forks, else gone, and its source too where that was hidden
        for it alone.
        """
        if name in self._forks:
            self.hidden[name] = None
            return
        source = self._sources.pop(name, None)
        while source is not None and self._drop(source, name):
            name, source = source, self._sources.pop(source, None)

    def take(self, name: str) -> None:
        """A stream takes this name, which no stream has: if it was hidden, nothing is kept of it."""
        if name in self.hidden:
            del self.hidden[name]
            for fork in self._forks.pop(name):
                del self._sources[fork]
            self.remove(name)

    def _drop(self, source: str, fork: str) -> bool:
        """Forget that a fork is one; whether its source is gone with it."""
        forks = self._forks[source]
        del forks[fork]
        if forks:
            return False
        del self._forks[source]
        if source not in self.hidden:
            return False
        del self.hidden[source]
        return True

    def rename(self, name: str, target: str) -> None:
        """A stream has another name, which it took."""
        forks = self._forks.pop(name, None)
        if forks is not None:
            self._forks.setdefault(target, {}).update(forks)
            self._sources |= dict.fromkeys(forks, target)
        source = self._sources.pop(name, None)
        if source is not None:
            del self._forks[source][name]
            self.add(target, source)

    def clear(self) -> None:
        """There are no streams any more."""
        for table in (self._forks, self._sources, self.hidden):
            table.clear()

    def check(self) -> None:
        """Assert that both directions agree."""
        pairs = {(fork, source) for source, forks in self._forks.items() for fork in forks}
        assert pairs == set(self._sources.items()), "a fork is one of its source"
        assert all(self._forks.values()), "a source has forks"
        assert self.hidden.keys() <= self._forks.keys(), "a name that is hidden has forks"
