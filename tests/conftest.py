"""What holds for every test, whatever it is about.

Knows: hypothesis's profile, that Ctrl-C is heard, and that nothing of ours may block the event loop.
Must never know: engines, doors, Redis; those fixtures live beside the tests that use them.
"""

import os
import signal
from collections.abc import Iterator

import pytest
from blockbuster import BlockBuster, BlockBusterFunction
from hypothesis import settings

# No deadline: an example shares two cores with a server, and slow is not wrong.
settings.register_profile("gate", deadline=None, print_blob=True)
settings.load_profile("gate")

# In the background of a shell it is ignored, and what a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

SCANNED = ("app", "engine")
# What blockbuster does not know by itself, and what a log on disk does most.
SYNCS = ("fdatasync", "fsync")


@pytest.fixture(scope="session", autouse=True)
def loop_guard() -> Iterator[BlockBuster]:
    """A blocking call made by our code while an event loop runs raises BlockingError, in every test."""
    guard = BlockBuster(scanned_modules=list(SCANNED))
    for name in SYNCS:
        guard.functions[f"os.{name}"] = BlockBusterFunction(os, name, scanned_modules=list(SCANNED))
    guard.activate()
    yield guard
    guard.deactivate()
