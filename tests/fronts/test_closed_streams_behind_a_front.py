"""The tests of tests/app/test_closed_streams.py with a front: what they say holds for both."""

from tests.app.test_closed_streams import *  # noqa: F403 - all of its tests
