"""Grants: what each allows at its borders."""

import pytest

from app.auth import Action, Grant, Resource


def test_the_short_form_names_actions_and_streams() -> None:
    grant = Grant.parse("read, write:orders:eu.*")
    assert grant.actions == {Action.READ, Action.WRITE}
    assert grant.streams == "orders:eu.*"
    assert grant.describe() == "read,write:orders:eu.*"
    assert Grant.parse("*:*").actions == set(Action)
    assert Grant.parse("*:*").describe() == "*:*"


def test_the_long_form_is_json() -> None:
    grant = Grant.parse('{"actions":["consume"],"streams":"orders","groups":"billing-*","consumer":"w1"}')
    assert grant.consumer == "w1"
    assert Grant.from_value(grant.describe()) == grant


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("orders.*", "ACTIONS:STREAMS"),
        ("fly:orders", "actions"),
        (":orders", "actions"),
        ("read:", "streams"),
        ('{"actions":[]}', "actions"),
        ('{"actions":["read"],"stream":"x"}', "stream"),
        ('{"actions":', "no grant"),
        ("read:" + "x" * 513, "streams"),
    ],
)
def test_a_malformed_grant_is_refused_with_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(ValueError, match="is no grant") as caught:
        Grant.parse(text)
    assert says in str(caught.value)


def test_a_pattern_ends_where_it_says() -> None:
    grant = Grant.parse("read:orders.*")
    assert grant.allows(Action.READ, Resource("orders."))
    assert grant.allows(Action.READ, Resource("orders.eu"))
    assert not grant.allows(Action.READ, Resource("orders"))
    assert not grant.allows(Action.READ, Resource("xorders.eu"))
    assert not grant.allows(Action.WRITE, Resource("orders.eu"))


def test_only_a_star_is_about_all_streams() -> None:
    assert Grant.parse("admin:*").allows(Action.ADMIN, Resource())
    assert not Grant.parse("admin:**").allows(Action.ADMIN, Resource())
    assert not Grant.parse("admin:orders").allows(Action.ADMIN, Resource())


def test_groups_narrow_what_is_done_in_groups() -> None:
    grant = Grant.parse('{"actions":["read","consume","manage"],"streams":"s","groups":"g*"}')
    assert grant.allows(Action.CONSUME, Resource("s", "g1", "c"))
    assert not grant.allows(Action.CONSUME, Resource("s", "other", "c"))
    assert grant.allows(Action.READ, Resource("s"))
    assert not grant.allows(Action.READ, Resource("s", "other"))
    # To delete a stream deletes all of its groups.
    assert not grant.allows(Action.MANAGE, Resource("s"))


def test_a_consumer_is_exact() -> None:
    grant = Grant.parse('{"actions":["consume"],"streams":"s","consumer":"w1"}')
    assert grant.allows(Action.CONSUME, Resource("s", "g", "w1"))
    assert not grant.allows(Action.CONSUME, Resource("s", "g", "w10"))
    # An acknowledgement names no consumer.
    assert grant.allows(Action.CONSUME, Resource("s", "g"))
