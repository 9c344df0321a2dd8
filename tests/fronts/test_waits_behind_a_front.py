"""The tests of tests/app/test_waits.py with a front: what they say holds for both."""

from tests.app.test_waits import *  # noqa: F403 - all of its tests
