"""Tickets: one use, one origin, 30 seconds."""

import pytest

from app.auth import ANONYMOUS, Principal
from app.auth.tickets import LIFETIME_S, TICKETS_MAX, TICKETS_OF_CALLER_MAX, Tickets
from app.errors import RefusalError


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_ticket_is_for_one_use() -> None:
    tickets = Tickets(Clock())
    text = tickets.issue(ANONYMOUS, "https://a")
    assert len(text) >= 43
    assert tickets.redeem(text, "https://a") is ANONYMOUS
    assert tickets.redeem(text, "https://a") is None


def test_a_ticket_is_for_one_origin_and_a_wrong_one_uses_it_up() -> None:
    tickets = Tickets(Clock())
    text = tickets.issue(ANONYMOUS, "https://a")
    assert tickets.redeem(text, "https://b") is None
    assert tickets.redeem(text, "https://a") is None


def test_a_ticket_ends() -> None:
    clock = Clock()
    tickets = Tickets(clock)
    first, second = tickets.issue(ANONYMOUS, ""), tickets.issue(ANONYMOUS, "")
    clock.now = LIFETIME_S - 0.001
    assert tickets.redeem(first, "") is ANONYMOUS
    clock.now = LIFETIME_S
    assert tickets.redeem(second, "") is None


def test_open_tickets_have_a_limit_and_ended_ones_make_room() -> None:
    clock = Clock()
    tickets = Tickets(clock)
    for number in range(TICKETS_MAX):
        tickets.issue(Principal(f"jwt:{number // TICKETS_OF_CALLER_MAX}", []), "")
    with pytest.raises(RefusalError) as caught:
        tickets.issue(ANONYMOUS, "")
    assert caught.value.code == "rate_limited"
    clock.now = LIFETIME_S
    assert tickets.redeem(tickets.issue(ANONYMOUS, ""), "") is ANONYMOUS


def test_one_caller_leaves_tickets_to_others() -> None:
    clock = Clock()
    tickets = Tickets(clock)
    greedy, other = Principal("jwt:greedy", []), Principal("jwt:other", [])
    first, *_ = [tickets.issue(greedy, "") for _ in range(TICKETS_OF_CALLER_MAX)]
    with pytest.raises(RefusalError) as caught:
        tickets.issue(Principal("jwt:greedy", []), "")
    assert caught.value.code == "rate_limited"
    assert tickets.redeem(tickets.issue(other, ""), "") is other
    # A ticket that is used, or has ended, makes room.
    assert tickets.redeem(first, "") is greedy
    tickets.issue(greedy, "")
    with pytest.raises(RefusalError):
        tickets.issue(greedy, "")
    clock.now = LIFETIME_S
    for _ in range(TICKETS_OF_CALLER_MAX):
        tickets.issue(greedy, "")
