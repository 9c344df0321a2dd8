"""The tests of tests/app/test_groups.py with a front: what they say holds for both."""

from tests.app.test_groups import *  # noqa: F403 - all of its tests
