"""kill -9 at any moment while entries go to files, are read from these, deleted in them and backed up."""

from pathlib import Path

from tests.proof.old_end import kill_while_storing

KILLS = 3


def test_nothing_is_lost_when_killed_while_storing(tmp_path: Path) -> None:
    """Nor is anything there twice or shown that was deleted, and a backup made meanwhile has all of it."""
    figures = kill_while_storing(tmp_path, "everysec", KILLS)
    assert figures.stored > 50, "there was a load"
    assert figures.in_files_bytes, "entries were in files"
