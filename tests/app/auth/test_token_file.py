"""The file of tokens: written, read again, and refused with what is wrong."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.auth import Action, Grant, token_file, tokens
from app.settings import SettingsError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
GRANT = st.builds(
    Grant,
    actions=st.frozensets(st.sampled_from(list(Action)), min_size=1),
    streams=TEXT,
    groups=st.none() | TEXT,
    consumer=st.none() | TEXT,
    origins=st.lists(TEXT, max_size=2).map(tuple),
)


@given(st.lists(GRANT, min_size=1, max_size=3), TEXT, st.none() | st.datetimes(timezones=st.just(UTC)))
def test_what_is_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, grants: list[Grant], label: str, end: datetime | None
) -> None:
    token = tokens.create(tuple(grants), label=label, expires_at=end).token
    path = tmp_path_factory.mktemp("tokens") / "tokens.toml"
    path.write_text(token_file.write(token), encoding="utf-8")
    assert token_file.read(path) == (token,)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[tokens", "tokens.toml"),
        ("[[token]]\n", "token: Extra"),
        ('[[tokens]]\nid = "x"\n', "tokens.0.id"),
        ('tokens = "x"', "tokens"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        token_file.read(path)
    assert says in str(caught.value)


def test_two_tokens_of_one_id_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    table = token_file.write(tokens.create((Grant.parse("read:*"),)).token)
    path.write_text(table * 2)
    with pytest.raises(SettingsError, match="same id"):
        token_file.read(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.toml: No such file"):
        token_file.read(tmp_path / "none.toml")
