"""Dead letters are counted by what letters have, and the numbers of batches add up in a bounded file."""

import orjson
import pytest

from pyspark_weir.errors import OptionError
from pyspark_weir.histogram import Histogram
from pyspark_weir.jobs import dlq
from pyspark_weir.jobs.counting import Counted
from pyspark_weir.jobs.dlq import Letters, checked

NOW_MS = 1_700_000_000_000


def _letters(name: str, count: int, at_ms: int = NOW_MS) -> Letters:
    return Letters({"source": name}, Counted(Histogram.of([count] * count)), at_ms, at_ms + count)


def test_letters_are_counted_by_what_they_have() -> None:
    """Each once, in the order asked for; a field of the entry is named as one."""
    assert checked(["reason", "field:user", "reason"]) == ("reason", "field:user")
    assert checked(dlq.BY_DEFAULT) == dlq.BY_DEFAULT


@pytest.mark.parametrize("name", ["user", "", "field:", "weir-reason"])
def test_what_letters_do_not_have_is_refused(name: str) -> None:
    """With what they do have."""
    with pytest.raises(OptionError, match="letters, source, group, consumer, reason, or field:<name>"):
        checked([name])


def test_two_counts_of_one_key_are_one() -> None:
    """From the first that was seen to the last."""
    both = _letters("a", 2, NOW_MS + 50) + _letters("a", 3)
    assert (both.count, both.first_ms, both.last_ms) == (5, NOW_MS, NOW_MS + 52)
    nowhen = Letters({"source": "a"}, Counted(), None, None)
    assert (nowhen + nowhen).first_ms is None
    assert (nowhen + both).first_ms == NOW_MS


def test_what_is_kept_is_read_as_it_was() -> None:
    """Through JSON, and with sums that no double holds."""
    huge = Counted(Histogram.of([1 << 62, 1 << 62, (1 << 62) + 1]), unknown=4)
    assert Counted.of_json(orjson.loads(orjson.dumps(huge.to_json()))) == huge


def test_buckets_of_another_width_are_not_added() -> None:
    """They would be counted where they do not belong."""
    kept = Counted().to_json() | {"step_bits": 7}
    with pytest.raises(ValueError, match="1/128 of a power of two"):
        Counted.of_json(kept)


def test_a_chart_has_parts_by_how_often_letters_were_delivered() -> None:
    """Few enough to be told apart, and none is lost."""
    one = Letters({"source": "s", "reason": None}, Counted(Histogram.of([1, 3, 3, 7, 90, -1]), 2), 0, 0)
    (bar,) = dlq.bars([one])
    assert bar.name == "s, -"
    assert dict(bar.parts) == {
        "delivered once": 1,
        "2 or 3 times": 2,
        "4 to 7 times": 1,
        "8 times and more": 1,
        "unknown how often": 3,
    }


def test_a_line_is_for_people() -> None:
    """Times to the second, in UTC; what no calendar has is not made up."""
    one = Letters({"reason": None}, Counted(Histogram.of([3, 4])), NOW_MS, 1 << 62)
    assert dlq.line(one) == {
        "reason": "-",
        "count": "2",
        "first seen": "2023-11-14 22:13:20",
        "last seen": "-",
        "deliveries": "3 to 4, mean 3.5",
    }
