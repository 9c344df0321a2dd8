"""Connections and blocked reads of one caller: its share of what there is."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from app.auth import token_file
from app.auth.tokens import CreatedToken
from app.errors import RefusalError
from app.live.shares import Shares
from app.settings import Settings
from tests.app.auth.callers import ROOT, made
from tests.app.sockets import talking
from tests.server import Server


def test_a_share_is_limited_and_given_back() -> None:
    shares = Shares("too_many_waiters", "per_principal_max", 2)
    held = [shares.enter("a"), shares.enter("a")]
    shares.enter("b")
    with pytest.raises(RefusalError) as caught:
        shares.enter("a")
    assert (caught.value.code, caught.value.members["limit"]) == (
        "too_many_waiters",
        "per_principal_max",
    )
    held[0].leave()
    held[0].leave()
    shares.enter("a")
    with pytest.raises(RefusalError):
        shares.enter("a")


def test_a_share_is_passed_on_if_there_is_room() -> None:
    shares = Shares("too_many_sockets", "per_principal_max", 1)
    known, unknown = shares.enter("a"), shares.enter("ip:1")
    with pytest.raises(RefusalError):
        unknown.pass_to("a")
    with pytest.raises(RefusalError):
        shares.enter("ip:1")
    known.leave()
    unknown.pass_to("a")
    unknown.pass_to("a")
    shares.enter("ip:1").leave()
    with pytest.raises(RefusalError):
        shares.enter("a")
    unknown.leave()
    assert len(shares) == 0


@pytest.mark.parametrize(
    ("set_to", "expected"),
    [
        ({}, None),
        ({"root_token": ROOT}, 10_000),
        ({"root_token": ROOT, "waiters_max": 1}, 1),
        ({"per_principal_max": 7}, 7),
        ({"root_token": ROOT, "per_principal_max": 7}, 7),
    ],
)
def test_by_default_a_token_takes_half_of_what_there_is(set_to: dict[str, Any], expected: int | None) -> None:
    settings = Settings(**set_to)
    assert settings.each_max(settings.waiters_max) == expected


def served(tmp_path: Path, *tokens: CreatedToken) -> Server:
    path = tmp_path / "tokens.toml"
    path.write_text("".join(map(token_file.write, (one.token for one in tokens))))
    options = ("--set", f"tokens_file={path}", "--set", "per_principal_max=2")
    return Server(tmp_path / "data", *options)


def test_sockets_and_event_streams_share(tmp_path: Path) -> None:
    """A socket is its token's from `auth` on; one too many is refused, or closed with 4503."""
    mine, other = made("*:*"), made("*:*")
    bearer = {"authorization": f"Bearer {mine.text}"}
    with served(tmp_path, mine, other) as server, httpx.Client(base_url=server.url) as http:
        with (
            talking(server, additional_headers=bearer),
            http.stream("GET", "/v1/streams/s/tail", headers=bearer) as tail,
        ):
            assert tail.status_code == 200
            refused = http.get("/v1/streams/s/tail", headers=bearer)
            assert (refused.status_code, refused.json()["code"]) == (429, "too_many_sockets")
            with talking(server) as late:
                assert late.ask("auth", token=mine.text)["problem"]["code"] == "too_many_sockets"
                with pytest.raises(ConnectionClosed) as closed:
                    late.next()
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == 4503
            with talking(server) as theirs:
                assert theirs.ask("auth", token=other.text)["op"] == "ok"
        with talking(server) as again:
            assert again.ask("auth", token=mine.text)["op"] == "ok"
