"""Buckets, beside a naive one; what is kept of a flood of keys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.auth import Grant, Principal, rate_limits
from app.auth.rate_limiter import address_key
from app.auth.rate_limits import BUCKETS_MAX, SHARED_MAX, Buckets, Rate, Rates

TEN = Rate(per_s=10, burst=5)


def taken(buckets: Buckets, key: str, rate: Rate, cost: float, now_s: float) -> float:
    """As an API does it: wait, or take."""
    wait_s = buckets.wait_s(key, rate, cost, now_s)
    if not wait_s:
        buckets.take_tokens(key, rate, cost, now_s)
    return wait_s


def test_a_burst_passes_at_once_and_one_more_waits() -> None:
    buckets = Buckets()
    assert [taken(buckets, "a", TEN, 1, 0.0) for _ in range(5)] == [0] * 5
    assert taken(buckets, "a", TEN, 1, 0.0) == pytest.approx(0.1)
    assert taken(buckets, "b", TEN, 5, 0.0) == 0
    assert taken(buckets, "a", TEN, 1, 0.0999) > 0
    assert taken(buckets, "a", TEN, 1, 0.1) == 0


def test_what_costs_more_than_a_burst_needs_a_full_bucket_and_is_paid_in_full() -> None:
    buckets = Buckets()
    assert taken(buckets, "a", TEN, 100, 0.0) == 0
    assert buckets.remaining("a", TEN, 0.0) == 0
    assert buckets.full_after_s("a", 0.0) == pytest.approx(10)
    assert taken(buckets, "a", TEN, 1, 9.5) == pytest.approx(0.1)
    assert taken(buckets, "a", TEN, 100, 9.6) == pytest.approx(0.4)
    assert taken(buckets, "a", TEN, 100, 10.0) == 0


def test_a_debt_refuses_what_costs_nothing() -> None:
    buckets = Buckets()
    buckets.take_tokens("a", TEN, 6, 0.0)
    assert taken(buckets, "a", TEN, 0, 0.0) == pytest.approx(0.1)
    assert taken(buckets, "a", TEN, 0, 0.1) == 0


def test_what_is_given_back_can_be_taken_again() -> None:
    buckets = Buckets()
    assert taken(buckets, "a", TEN, 5, 0.0) == 0
    buckets.take_tokens("a", TEN, -5, 0.0)
    assert buckets.remaining("a", TEN, 0.0) == 5
    buckets.take_tokens("b", TEN, -5, 0.0)
    assert buckets.remaining("b", TEN, 0.0) == 5


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 12)), max_size=50),
    st.integers(1, 10),
    st.integers(1, 8),
)
def test_it_behaves_as_a_bucket_that_fills(steps: list[tuple[int, int]], per_s: int, burst: int) -> None:
    buckets, rate, level, now = Buckets(), Rate(per_s, burst), float(burst), 0.0
    for pause, cost in steps:
        now += pause / 10
        level = min(burst, level + pause / 10 * per_s)
        wanted = min(cost, burst)
        assert buckets.remaining("a", rate, now) == pytest.approx(max(level, 0), abs=1e-6)
        if abs(level - wanted) < 1e-6 or level > wanted:
            assert taken(buckets, "a", rate, cost, now) == 0
            level -= cost
        else:
            assert taken(buckets, "a", rate, cost, now) == pytest.approx((wanted - level) / per_s)


def test_a_flood_of_keys_resets_no_bucket_and_takes_bounded_memory() -> None:
    buckets = Buckets()
    assert taken(buckets, "spent", TEN, 5, 0.0) == 0
    slow = Rate(per_s=0.001, burst=1)
    for number in range(3 * BUCKETS_MAX):
        taken(buckets, f"flood-{number}", slow, 1, number / 1e6)
    assert len(buckets) <= BUCKETS_MAX + SHARED_MAX
    assert buckets.wait_s("spent", TEN, 5, 0.1) > 0
    # What a key has taken from a shared bucket stays taken too.
    late = next(
        f"late-{n}" for n in range(100) if taken(buckets, f"late-{n}", Rate(1, 2_000_000), 1, 0.1) == 0
    )
    assert buckets.remaining(late, Rate(1, 2_000_000), 0.1) < 2_000_000


def test_full_buckets_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limits, "BUCKETS_MAX", 2)
    buckets, one = Buckets(), Rate(per_s=1, burst=1)
    for number, key in enumerate(("a", "b", "c", "d")):
        assert taken(buckets, key, one, 1, 10.0 + number / 10) == 0
    # Two of their own; the others share one or two.
    assert len(buckets) in (3, 4)
    assert taken(buckets, "e", one, 1, 20.0) == 0
    assert len(buckets) == 1
    assert taken(buckets, "e", one, 1, 20.5) == pytest.approx(0.5)


def test_the_window_is_the_time_in_which_a_bucket_fills() -> None:
    assert [Rate(10, burst).window_s for burst in (5, 10, 11, 600)] == [1, 1, 2, 60]


@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("192.0.2.7", "ip:192.0.2.7"),
        ("::ffff:192.0.2.7", "ip:192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "ip:2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "ip:2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "ip:2001:db8:1:3::/64"),
        ("", "ip:"),
    ],
)
def test_an_ipv6_address_stands_for_its_network(address: str, key: str) -> None:
    """A caller there has 2^64 addresses to choose from."""
    assert address_key(address) == key


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ([], None),
        (['{"requests_per_s":5}'], Rates(Rate(5, 5), None)),
        (['{"requests_per_s":5,"requests_burst":50}', '{"requests_per_s":7}'], Rates(Rate(7, 7), None)),
        (['{"requests_per_s":5}', '{"bytes_per_s":9,"bytes_burst":90}'], Rates(None, None)),
        (['{"bytes_per_s":9,"bytes_burst":90}'], Rates(None, Rate(9, 90))),
    ],
)
def test_of_several_grants_the_largest_rate_holds(rates: list[str], expected: Rates | None) -> None:
    """A grant without a rate leaves it to the others; a rate that names no limit is none."""
    texts = ["read:*", *(f'{{"actions":["read"],"rate":{rate}}}' for rate in rates)]
    assert Principal("tester", [Grant.parse(text) for text in texts]).rates == expected


@pytest.mark.parametrize("rate", ['{"requests_per_s":-1}', '{"requests":1}', "5", '{"bytes_per_s":1e30}'])
def test_a_malformed_rate_is_refused(rate: str) -> None:
    with pytest.raises(ValueError, match="is no grant"):
        Grant.parse(f'{{"actions":["read"],"rate":{rate}}}')


def test_a_rate_is_described() -> None:
    text = '{"actions":["read"],"streams":"a.*","rate":{"requests_per_s":5}}'
    described = Grant.parse(text).describe()
    assert described == {"actions": ["read"], "streams": "a.*", "rate": {"requests_per_s": 5}}
    assert Grant.from_value(described) == Grant.parse(text)
