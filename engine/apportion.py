"""A budget divided in proportion to what each wants.

Knows: numbers. Must never know: of what.
"""

from collections.abc import Sequence


def apportion(wanted: Sequence[int], budget: int) -> list[int]:
    """Divide `budget` in proportion to `wanted`. No share is larger than what is wanted; each that wants
    anything gets at least 1, even if the budget is smaller. Nothing is left over.
    """
    given = [min(one, 1) for one in wanted]
    left = min(budget, sum(wanted)) - sum(given)
    if left <= 0:
        return given
    rest = [one - got for one, got in zip(wanted, given, strict=True)]
    whole = sum(rest)
    given = [got + left * one // whole for got, one in zip(given, rest, strict=True)]
    over = min(budget, sum(wanted)) - sum(given)
    # The largest remainders get one each, the first ones among equals.
    by_remainder = sorted(range(len(rest)), key=lambda place: -(left * rest[place] % whole))
    for place in by_remainder[:over]:
        given[place] += 1
    return given
