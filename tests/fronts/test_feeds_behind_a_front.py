"""The tests of tests/app/test_feeds.py with a front: what they say holds for both."""

from tests.app.test_feeds import *  # noqa: F403 - all of its tests
