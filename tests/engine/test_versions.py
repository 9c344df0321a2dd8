"""Versions of watched streams."""

from engine.versions import VERSIONS_MAX, Versions


def test_a_version_lasts_until_a_change() -> None:
    """All who watch get one; another one follows."""
    versions = Versions()
    first = versions.watch("s")
    assert versions.watch("s") == first
    assert versions.has("s", first)
    assert not versions.has("t", first)
    versions.change("s")
    assert not versions.has("s", first)
    second = versions.watch("s")
    assert second != first
    versions.change_all()
    assert not versions.has("s", second)
    assert not Versions().has("s", second)


def test_the_oldest_watch_is_forgotten_beyond_a_limit() -> None:
    """As if it had changed: what is watched again is not the oldest."""
    versions = Versions()
    first, second = versions.watch("first"), versions.watch("second")
    for number in range(VERSIONS_MAX - 2):
        versions.watch(f"s{number}")
    versions.watch("first")
    versions.watch("more")
    assert len(versions) == VERSIONS_MAX
    assert versions.has("first", first)
    assert not versions.has("second", second)
