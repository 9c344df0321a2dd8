"""The service answers pages as the gateway writes them, to those who have its token, and changes nothing."""

import asyncio
import json
import shutil
import stat
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from starlette.routing import Route

from app.archived.asking import Answered
from engine import SystemClock, ids
from history.service import History
from pyspark_weir.ids import parse
from pyspark_weir.table import deletions
from pyspark_weir.table.compaction import CompactionRules, compact
from pyspark_weir.table.ranges import StreamKey
from tests.caching import is_asked_about
from tests.history.served import Answer, Served
from tests.spark.archive_tables import GATEWAY, GENERATION, Maker
from tests.waiting import completed

Serve = Callable[..., Served]


def test_a_page_is_the_gateways_and_says_from_where_it_is(maker: Maker, serve: Serve) -> None:
    """With what programs need to go on, and what caches may do with it."""
    maker.batch({"a/b c": ["1-0", "2-0", "3-0"]}, upto="3-7")
    served = serve().start()
    page = served.page("a/b c", GENERATION, after="0-0", count=2)
    assert (page.status, page.ids) == (200, ["1-0", "2-0"])
    assert (page.json["next"], page.json["more"]) == ("2-0", True)
    assert page.headers["weir-source"] == "history"
    assert page.headers["cache-control"] == "private, no-cache"
    again = served.page("a/b c", GENERATION, {"if_none_match": page.headers["etag"]}, after="0-0", count=2)
    assert (again.status, again.body) == (304, b"")
    rest = served.page("a/b c", GENERATION, after="2-0")
    assert (rest.ids, rest.json["more"], rest.headers["weir-covered-up-to"]) == (["3-0"], False, "3-7")
    # It grows with the archive.
    assert rest.headers["cache-control"] == "no-store"
    assert served.stop() == 0


def test_what_a_gateway_reads_of_a_page_is_what_was_written(maker: Maker, serve: Serve) -> None:
    """Texts with the words of a page's end in them too."""
    maker.batch({"orders": ["1-0", "2-0", "3-0"]})
    served = serve().start()
    page = served.page("orders", GENERATION, start="0-0", reverse="true", count=2)
    found = Answered.of(page.body, page.headers)
    assert (found.number, found.first, found.last, found.more) == (2, 3 << 64, 2 << 64, True)
    assert b"[%b]" % found.text == page.body[len(b'{"entries":') : page.body.rindex(b',"next"')]


def test_nothing_is_answered_of_another_generation_or_stream(maker: Maker, serve: Serve) -> None:
    """And it says that it has nothing, and where to go on."""
    maker.batch({"orders": ["1-0"]})
    served = serve().start()
    for stream, generation in (("orders", "0" * 16), ("others", GENERATION)):
        page = served.page(stream, generation, after="0-0")
        assert (page.status, page.ids, page.headers["weir-covered-up-to"]) == (200, [], "0-0")
        # Also where no end of the range is named.
        assert served.page(stream, generation).json["next"] == page.json["next"] == "0-0"


def test_what_the_archive_lacks_is_a_gap(maker: Maker, serve: Serve) -> None:
    """To a reader that has a cursor; from the beginning it is none."""
    maker.skip("orders", "4-0")
    maker.batch({"orders": ["5-0", "6-0"]})
    served = serve().start()
    page = served.page("orders", GENERATION, after="2-0")
    assert page.ids == ["5-0", "6-0"]
    assert page.json["gap"] == {"requested": "2-0", "first_available": "5-0", "lost": None}
    assert page.headers["weir-missing-up-to"] == "4-0"
    assert "gap" not in served.page("orders", GENERATION, after="0-0").json


def test_only_the_token_opens_it(maker: Maker, serve: Serve, tmp_path: Path) -> None:
    """Health and figures are open, as the gateway's are on an address of its own."""
    token = tmp_path / "token"
    token.write_text("secret\n")
    token.chmod(stat.S_IRUSR)
    maker.batch({"orders": ["1-0"]})
    served = serve("--token-file", str(token)).start()
    assert served.page("orders", GENERATION).status == 401
    assert served.page("orders", GENERATION, {"authorization": "Bearer wrong"}).status == 401
    assert served.page("orders", GENERATION, {"authorization": "Bearer secret"}).ids == ["1-0"]
    assert served.get("/healthz").json["status"] == "ok"
    figures = served.get("/metrics").body.decode()
    assert "\nweir_history_groups_read_total " in figures
    assert 'weir_history_requests_total{status="401"} 2.0' in figures
    assert "weir_history_entries_total 1.0" in figures


def test_a_token_that_has_changed_is_read_again(maker: Maker, serve: Serve, tmp_path: Path) -> None:
    """Without a restart; an empty file, or none, opens nothing, and those that were let in stay."""
    token = tmp_path / "token"
    token.write_text("old\n")
    maker.batch({"orders": ["1-0"]})
    served = serve("--token-file", str(token)).start()

    def status(one: str) -> int:
        return served.page("orders", GENERATION, {"authorization": f"Bearer {one}"}).status

    assert (status("old"), status("new")) == (200, 401)
    token.write_text("")
    assert (status(""), status("old")) == (401, 200)
    token.write_text("new\n")
    deadline = time.monotonic() + 20
    while status("new") == 401:
        # It looks once a second.
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert (status("new"), status("old")) == (200, 401)


def test_another_archive_in_the_same_folder_is_read_as_it_is(
    maker: Maker, serve: Serve, tmp_path: Path
) -> None:
    """Of the same version, of an earlier one, and none for a while, which is said."""
    maker.batch({"orders": ["1-0", "2-0"]})
    served = serve().start()
    assert served.page("orders", GENERATION, end="2-0").ids == ["1-0", "2-0"]
    kept = tmp_path / "kept"
    shutil.copytree(maker.root.base, kept)
    shutil.rmtree(maker.root.base)
    other = Maker(maker.root.base)
    other.batch({"orders": ["1-0", "3-0"]})
    assert served.page("orders", GENERATION, end="9-0").ids == ["1-0", "3-0"]
    shutil.rmtree(maker.root.base)
    refused = wait_for(lambda: served.page("orders", GENERATION, end="9-2"), 503)
    assert (refused.json["code"], refused.json["retryable"]) == ("history_unavailable", True)
    assert maker.root.url in refused.json["detail"]
    shutil.copytree(kept, maker.root.base)
    assert wait_for(lambda: served.page("orders", GENERATION, end="9-3"), 200).ids == ["1-0", "2-0"]


def test_a_table_that_another_program_has_changed_is_read_or_refused_in_words(
    maker: Maker, serve: Serve
) -> None:
    """By a service that runs, and by one that starts: rows that are gone are, a column that may be null is
    ignored, and one that must have a value is of a version to come.
    """
    maker.batch({"orders": ["1-0", "2-0", "3-0"]})
    served = serve().start()
    assert served.page("orders", GENERATION).ids == ["1-0", "2-0", "3-0"]
    table = DeltaTable(maker.root.url)
    table.delete("id = '2-0'")
    table.alter.add_columns([Field("note", PrimitiveType("string"))])
    wait_for(lambda: served.page("orders", GENERATION, end="9-1"), 200)
    maker.table.refresh()
    deadline = time.monotonic() + 20
    while served.get("/healthz").json["version"] < maker.table.version:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert served.page("orders", GENERATION).ids == ["1-0", "3-0"]
    _require_a_value(maker, "note")
    refused = wait_for(lambda: served.page("orders", GENERATION, end="9-0"), 503)
    assert "must have a value (note)" in refused.json["detail"]
    starting = completed(
        [sys.executable, "-m", "weir", "history", "serve", "--archive", maker.root.base], timeout=60
    )
    assert starting.returncode == 3
    assert "use the version of Weir that wrote it" in starting.stderr


def test_a_file_that_is_missing_is_named_until_it_is_back(maker: Maker, serve: Serve) -> None:
    """As after a vacuum that came too early; what other files hold is read meanwhile."""
    maker.batch({"orders": ["1-0"]})
    [file] = maker.batch({"orders": ["2-0"]})
    served = serve().start()
    away = file.with_suffix(".away")
    file.rename(away)
    assert served.page("orders", GENERATION, count=1).ids == ["1-0"]
    refused = served.page("orders", GENERATION, after="1-0")
    assert (refused.status, refused.json["code"]) == (503, "history_unavailable")
    assert f"{file.name} is missing, and the table counts on it: restore it" in refused.json["detail"]
    away.rename(file)
    assert served.page("orders", GENERATION, after="1-0").ids == ["2-0"]


def _require_a_value(maker: Maker, column: str) -> None:
    """Change the table's schema as deltalake does not let one."""
    log = Path(maker.root.path("_delta_log"))
    names = sorted(log.glob("*.json"))
    stored = [line for name in names for line in name.read_text().splitlines() if '"metaData"' in line]
    action = json.loads(stored[-1])
    schema = json.loads(action["metaData"]["schemaString"])
    for field in schema["fields"]:
        field["nullable"] = field["nullable"] and field["name"] != column
    action["metaData"]["schemaString"] = json.dumps(schema)
    (log / f"{len(names):020d}.json").write_text(json.dumps(action) + "\n")


def wait_for(ask: Callable[[], Answer], status: int) -> Answer:
    """The first answer with this status: a service looks at its table every half a second at most."""
    deadline = time.monotonic() + 20
    while (found := ask()).status != status:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"after": "x"}, "malformed_id"),
        ({"count": "0"}, "invalid"),
        ({"after": "1-0", "start": "1-0"}, "invalid"),
        ({"what": "1"}, "unknown_parameter"),
    ],
)
def test_what_it_does_not_understand_it_refuses(
    maker: Maker, serve: Serve, query: dict[str, object], code: str
) -> None:
    """With the gateway's problems."""
    refused = serve().start().page("orders", GENERATION, None, **query)
    assert (refused.json["code"], refused.headers["content-type"]) == (code, "application/problem+json")
    assert maker.table.version >= 0


async def test_beyond_its_pages_under_way_it_waits_a_second_before_it_refuses(maker: Maker) -> None:
    """And answers where one of them ends in that time."""
    maker.batch({"orders": ["1-0", "2-0", "3-0"]})
    history = History(maker.root, SystemClock(), lambda: "", 1 << 28)
    page = f"http://history/v1/streams/orders/entries?generation={GENERATION}"
    free = threading.Event()
    history.archive._thread.submit(free.wait)  # noqa: SLF001 - a store that does not answer
    async with httpx.AsyncClient(transport=httpx.ASGITransport(history.app())) as http:
        held = [asyncio.create_task(http.get(page)) for _ in range(64)]
        await asyncio.sleep(0)
        refused = await http.get(page)
        assert (refused.status_code, refused.json()["code"]) == (429, "history_busy")
        late = asyncio.create_task(http.get(page))
        await asyncio.sleep(0)
        free.set()
        answers = await asyncio.gather(*held, late)
    assert [answer.status_code for answer in answers] == [200] * 65
    history.archive.close()
    history.cache.close()


async def test_no_cache_shows_an_answer_unasked(maker: Maker) -> None:
    """Of no path, with the token or without; a page that is asked about has nothing that was deleted."""
    maker.batch({"orders": ["1-0", "2-0", "3-0"]})
    history = History(maker.root, SystemClock(), lambda: "secret", 1 << 20)
    app = history.app()
    query = f"generation={GENERATION}&end=2-0"
    paths = [
        route.path.replace("{stream:path}", "orders") for route in app.routes if isinstance(route, Route)
    ]
    paths.append("/none")
    page = f"/v1/streams/orders/entries?{query}"
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://history") as http:
        allowed = {"authorization": "Bearer secret"}
        for method in ("GET", "HEAD", "POST"):
            for path in paths:
                for headers in ({}, allowed):
                    answer = await http.request(method, f"{path}?{query}", headers=headers)
                    assert is_asked_about(answer.headers), (method, path, answer.status_code)
        before = await http.get(page, headers=allowed)
        held = {"if-none-match": before.headers["etag"]}
        assert (await http.get(page, headers={**allowed, **held})).status_code == 304
        assert (await http.get(page, headers=held)).status_code == 401
        key, gone = StreamKey(GATEWAY, "orders", GENERATION), parse("1-0")
        deletions.record(maker.root, {key: gone}, {key: [gone]})
        maker.batch({"orders": ["4-0"]})
        await history.archive.refresh()
        after = await http.get(page, headers={**allowed, **held})
        assert [one["id"] for one in after.json()["entries"]] == ["2-0"]
    history.archive.close()
    history.cache.close()


def test_new_batches_and_deletions_are_seen_and_compacted_files_are_not_needed(
    maker: Maker, serve: Serve
) -> None:
    """A reader that asks for what its version lacks gets a later one, and so does one whose file is gone."""
    written = [file for number in range(1, 5) for file in maker.batch({"orders": [f"{number}-0"]})]
    served = serve().start()
    assert served.page("orders", GENERATION, end="4-0").ids == ["1-0", "2-0", "3-0", "4-0"]
    assert len(list(compact(maker.table, CompactionRules(1 << 20)))) == 1
    removed = maker.batch({"orders": ["5-0"]})
    key = StreamKey(GATEWAY, "orders", GENERATION)
    deletions.record(maker.root, {key: parse("2-0")}, {key: [parse("2-0")]})
    for path in written:
        path.unlink()
    again = serve().start()
    assert again.page("orders", GENERATION, end="5-0").ids == ["1-0", "3-0", "4-0", "5-0"]
    for path in removed:
        path.unlink()
    refused = serve().start().page("orders", GENERATION, end=ids.format(5 << 64))
    assert (refused.status, refused.json["code"]) == (503, "history_unavailable")
    assert removed[0].name in refused.json["detail"]
