"""Bugs without a test that is named for them: the matrix shows which tests find each.

Knows: each bug as a small edit of a file's text. Must never know: the tests; whoever writes a bug here has
written none that is to find it.
"""

from typing import Final

from tests.proof.planting import Planted

ANYWHERE: Final[dict[str, Planted]] = {}
