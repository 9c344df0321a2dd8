"""The longest turn: each command at its limits, on 100,000 entries that are cold and pending (P13).

The commands, and how a turn is measured, are those of the test that holds the limit.
"""

from tests.engine.test_stalls import AT_MOST, filled, turns_s


def longest_ms(rounds: int) -> dict[str, float]:
    """The longest turn of each command, the least of the rounds: other processes may have held the core."""
    return {
        name: min(max(turns_s(filled().turns(command))) for _ in range(rounds)) * 1000
        for name, command in AT_MOST.items()
    }
