"""The campaigns on a modelled disk: the same ones for each run of the tests, for planted bugs, and for a
long night.

Knows: how many seeds and steps make a short one.
Must never know: who runs it, or why.
"""

from collections.abc import Iterable

from engine import Fsync
from tests.proof.explorer import Explorer
from tests.proof.lives import Living

STEPS_PER_LIFE = 60


def power_cuts(
    fsync: Fsync,
    seeds: Iterable[int],
    *,
    steps: int = STEPS_PER_LIFE,
    slow_s: float = 0.0,
    stores: bool = False,
) -> Explorer:
    """Random histories, each with every disk that a crash may leave, before every operation. With entries in
    files each goes on until some of them are stored anew.
    """
    explorer = Explorer()
    for seed in seeds:
        explorer.forget()
        life = Living(seed, fsync, look=explorer.look, slow_s=slow_s, stores=stores)
        try:
            life.live(steps, until_moved=stores)
            explorer.stored, explorer.moved = explorer.stored + life.stored, explorer.moved + life.moved
        finally:
            life.end()
    return explorer
