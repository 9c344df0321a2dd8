"""The tests of tests/app/test_durable_generations.py with a front: what they say holds for both."""

from tests.app.test_durable_generations import *  # noqa: F403 - all of its tests
