"""Grants: what each allows at its borders."""

import pytest
from pydantic import ValidationError

from app.auth import Action, Grant, Principal, Resource, tokens
from app.auth.jwt import InvalidTokenError
from app.auth.policy import GrantMapping


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


def of_tenant(prefix: str | None, streams: str = "*", actions: str = "*") -> Grant:
    """A grant with a prefix."""
    return Grant.from_value({"actions": actions.split(","), "streams": streams, "prefix": prefix})


def test_a_grant_with_a_prefix_allows_nothing_about_all_streams() -> None:
    """Not with every action either; it is matched with names as the caller writes them."""
    grant = of_tenant("acme.", "o*")
    assert grant.allows(Action.READ, Resource("orders"))
    assert not grant.allows(Action.READ, Resource("acme.orders"))
    for action in Action:
        assert not of_tenant("acme.").allows(action, Resource())
        assert Grant.parse("*:*").allows(action, Resource())


@pytest.mark.parametrize(
    ("own", "other", "is_covered"),
    [
        (of_tenant("acme."), of_tenant("acme."), True),
        (of_tenant("acme."), of_tenant("acme.eu."), True),
        (of_tenant("acme."), of_tenant("acme"), False),
        (of_tenant("acme."), of_tenant("globex."), False),
        (of_tenant("acme."), of_tenant(None), False),
        (of_tenant(None), of_tenant("acme."), True),
        (of_tenant(None, "acme.*"), of_tenant("acme."), True),
        (of_tenant(None, "acme*"), of_tenant("acme."), True),
        (of_tenant(None, "acme.o*"), of_tenant("acme."), False),
        (of_tenant("acme.", "eu.*"), of_tenant("acme.eu."), True),
        (of_tenant("acme.", "eu.o*"), of_tenant("acme.eu.", "orders"), True),
        (of_tenant("acme.", "eu.o*"), of_tenant("acme.eu."), False),
        # What is special in a pattern is not special in a prefix.
        (of_tenant("acme.", "[ab].*"), of_tenant("acme.[ab]."), False),
        (of_tenant("acme.", r"\[ab\].*"), of_tenant("acme.[ab]."), True),
        (of_tenant("acme.", "a?*"), of_tenant("acme.a\\"), True),
    ],
)
def test_a_grant_covers_those_of_a_longer_prefix(own: Grant, other: Grant, *, is_covered: bool) -> None:
    assert own.covers(other) is is_covered


@pytest.mark.parametrize("prefix", ["", "/", "a//", "a/../", "weir/", "./", "a\n", "x" * 129, "\u00e9" * 65])
def test_a_prefix_is_a_part_of_a_name(prefix: str) -> None:
    with pytest.raises(ValueError, match="is no grant: prefix"):
        of_tenant(prefix)


@pytest.mark.parametrize("prefix", ["a", "a/", "x" * 128, "\u00e9" * 64])
def test_a_prefix_leaves_room_for_names(prefix: str) -> None:
    assert Grant.from_value(of_tenant(prefix).describe()).prefix == prefix


def test_a_prefix_is_passed_on_before_another_one() -> None:
    """And taken away again."""
    grant = of_tenant("eu.").under("acme.")
    assert (grant.prefix, grant.within("acme.").prefix) == ("acme.eu.", "eu.")
    assert of_tenant(None).under("acme.").within("acme.").prefix is None
    with pytest.raises(ValueError, match="128 bytes"):
        of_tenant("x" * 128).under("a")


@pytest.mark.parametrize("other", [None, "globex.", "acme.eu."])
def test_all_grants_of_a_caller_have_one_prefix(other: str | None) -> None:
    """A token, a JWT's claims, or a caller of several prefixes is refused."""
    grants = of_tenant("acme."), of_tenant(other)
    with pytest.raises(ValidationError, match="same prefix"):
        tokens.create(grants)
    with pytest.raises(ValueError, match="same prefix"):
        Principal("tester", grants)
    with pytest.raises(InvalidTokenError, match="same prefix"):
        GrantMapping("grants", {"word": grants[1:]}).grants(
            {"grants": [grants[0].describe()], "scope": "word"}
        )
    assert Principal("tester", grants[:1]).on_page("https://page.example").prefix == "acme."


@pytest.mark.parametrize(
    "texts",
    [
        ["*:*"],
        ["write:*", "read:orders.*"],
        ["read:orders.*", "read:*.eu"],
        ['{"actions":["read"],"streams":"*","prefix":"acme."}'],
        ['{"actions":["read","consume"],"streams":"o*s","groups":"billing"}'],
        ["manage,write,consume:*"],
        [],
    ],
)
def test_a_list_shows_the_streams_that_may_be_read_and_remembers_none(
    texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be a hundred thousand: each would push out what is asked again."""
    grants = [Grant.parse(text) for text in texts]
    names = ["orders", "orders.", "orders.eu", "stock.eu", "acme.s", "o", "ø"]
    expected = [name for name in names if Principal("asked", grants).may(Action.READ, Resource(name))]
    caller = Principal("tester", grants)
    monkeypatch.setattr(Principal, "may", None)
    assert [*filter(caller.may_see, names)] == expected
    assert caller.may_see_all == (expected == names)
