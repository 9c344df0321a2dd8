"""`weir mcp`: its tools, asked by the protocol's own client over both transports."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from tests.cli.command import WEIR, environment, weir
from tests.server import Server, free_port
from tests.waiting import completed, until
from weir import AsyncClient
from weir.mcp import RETRY_S, UNTRUSTED, VALUE_CHARS_MAX, serve

READS = {"list_streams", "describe_stream", "read", "watch", "group_status"}
WRITES = {"publish", "nack", "redrive"}


@contextlib.asynccontextmanager
async def asked(url: str, *, allow_write: bool = False) -> AsyncIterator[Client]:
    """A client of the protocol, in this process."""
    async with (
        AsyncClient(url, retry_s=RETRY_S) as client,
        Client(serve(client, allow_write=allow_write)) as asking,
    ):
        yield asking


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    """What a tool answers."""
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, answer.content
    return answer.structured_content


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    answer = await client.call_tool(tool, arguments)
    assert answer.is_error
    return " ".join(one.text for one in answer.content if one.type == "text")


async def test_without_allow_write_nothing_can_be_changed(url: str, stream: str) -> None:
    async with asked(url) as client:
        tools = (await client.list_tools()).tools
        assert {one.name for one in tools} == READS
        assert all(one.annotations and one.annotations.read_only_hint for one in tools)
        assert "publish" in await refused(client, "publish", stream=stream, fields={"n": "1"})
    async with asked(url, allow_write=True) as client:
        assert {one.name for one in (await client.list_tools()).tools} == READS | WRITES


async def test_streams_are_listed_described_and_read_page_by_page(url: str, stream: str) -> None:
    """What others have written is said to be that; of a long value the beginning is shown."""
    async with AsyncClient(url) as writer, asked(url) as client:
        await writer.publish_batch(stream, [{"n": n} for n in range(3)], key=None)
        await writer.publish(
            stream, [("text", "x" * (VALUE_CHARS_MAX + 1)), ("text", "again"), ("raw", b"\xff")]
        )
        page = await call(client, "list_streams", prefix=stream)
        assert [(one["name"], one["length"]) for one in page["streams"]] == [(stream, 4)]
        described = await call(client, "describe_stream", stream=stream)
        assert described["length"] == 4
        assert not {"first_entry", "last_entry"} & described.keys()
        page = await call(client, "read", stream=stream, count=2)
        assert page["note"] == UNTRUSTED
        assert [one["fields"]["n"] for one in page["entries"]] == ["0", "1"]
        page = await call(client, "read", stream=stream, after=page["next"], count=2)
        assert [len(one["fields"]) for one in page["entries"]] == [1, 2]
        long = page["entries"][1]
        assert (long["encoding"], long["shortened"]) == ("base64", "ask with whole=true")
        assert {len(value) for _, value in long["pairs"]} == {VALUE_CHARS_MAX, 8, 4}
        newest = await call(client, "read", stream=stream, newest=True, whole=True, count=1)
        assert "shortened" not in newest["entries"][0]
        assert len(newest["entries"][0]["pairs"][0][1]) > VALUE_CHARS_MAX


async def test_a_watch_gets_each_entry_once_also_across_a_restart(tmp_path: Path) -> None:
    """A message that is posted once the gateway is back reaches the watch that waited before it went."""
    with Server(tmp_path / "weir-data", "--fsync", "always") as server:
        async with AsyncClient(server.url) as writer, asked(server.url) as client:
            await writer.publish("hooks", {"n": "before"})
            first = await call(client, "watch", stream="hooks", wait_s=0)
            assert first["entries"] == []
            waiting = asyncio.create_task(
                call(client, "watch", stream="hooks", cursor=first["next"], wait_s=50)
            )
            await asyncio.sleep(0.3)
            assert not waiting.done()
            await asyncio.to_thread(server.restart)
            await writer.publish("hooks", {"n": "after"})
            found = await waiting
            assert [one["fields"]["n"] for one in found["entries"]] == ["after"]
            again = await call(client, "watch", stream="hooks", cursor=found["next"], wait_s=1)
            assert again["entries"] == []
            await writer.publish("hooks", {"n": "then"})
            again = await call(client, "watch", stream="hooks", cursor=again["next"])
            assert [one["fields"]["n"] for one in again["entries"]] == ["then"]


async def test_a_watch_without_a_cursor_waits_for_what_comes(url: str, stream: str) -> None:
    async with AsyncClient(url) as writer, asked(url) as client:
        waiting = asyncio.create_task(call(client, "watch", stream=stream))
        await asyncio.sleep(0.3)
        await writer.publish(stream, {"n": 1})
        assert [one["fields"] for one in (await waiting)["entries"]] == [{"n": "1"}]


async def test_what_was_removed_unread_is_a_gap(url: str, stream: str) -> None:
    async with AsyncClient(url) as writer, asked(url) as client:
        first = await writer.publish(stream, {"n": 1})
        await writer.publish_batch(stream, [{"n": 2}, {"n": 3}])
        await writer.trim(stream, maxlen=1)
        page = await call(client, "watch", stream=stream, cursor=first.id)
        assert (page["gap"]["requested"], [one["fields"]["n"] for one in page["entries"]]) == (
            first.id,
            ["3"],
        )


async def test_a_group_says_who_holds_what(url: str, stream: str) -> None:
    async with AsyncClient(url) as writer, asked(url) as client:
        await writer.publish_batch(stream, [{"n": 1}, {"n": 2}])
        group = writer.group(stream, "g")
        await group.ensure(start="0")
        await group.read("anna", count=1)
        found = await call(client, "group_status", stream=stream)
        assert [(one["name"], one["lag"], one["pending"]) for one in found["groups"]] == [("g", 1, 1)]
        found = await call(client, "group_status", stream=stream, group="g")
        assert found["group"]["pending"] == 1
        assert [one["name"] for one in found["consumers"]] == ["anna"]
        assert [one["consumer"] for one in found["oldest_pending"]] == ["anna"]


async def test_with_allow_write_it_publishes_gives_back_and_redrives(url: str, stream: str) -> None:
    dead = f"{stream}:dead"
    async with AsyncClient(url) as writer, asked(url, allow_write=True) as client:
        one = await call(client, "publish", stream=stream, fields={"n": "1"}, key="a key")
        again = await call(client, "publish", stream=stream, fields={"n": "1"}, key="a key")
        assert again == {**one, "duplicate": True}
        group = writer.group(stream, "g")
        await group.ensure(start="0", dead_letter={"stream": dead})
        await group.read("anna")
        given = {"stream": stream, "group": "g", "ids": [one["id"]]}
        assert (await call(client, "nack", **given, consumer="bert"))["not_held"] == [one["id"]]
        assert (await call(client, "nack", **given, consumer="anna"))["not_held"] == []
        assert len((await group.read("bert", claim_min_idle_ms=10**9)).entries) == 1
        await group.dead_letter(one["id"])
        shown = await call(client, "redrive", stream=stream, group="g")
        assert [row["id"] for row in shown["entries"]] == [None]
        done = await call(client, "redrive", stream=stream, group="g", dry_run=False)
        assert done["redriven"] == 1


async def test_a_refusal_is_for_the_model_to_read(url: str, stream: str) -> None:
    """With the gateway's sentence; arguments that the schema does not allow are named."""
    async with asked(url) as client:
        assert "no_stream" in await refused(client, "describe_stream", stream=stream)
        assert "not a stream name" in await refused(client, "read", stream="a//b")
        assert "count" in await refused(client, "read", stream=stream, count=10_000)
        assert "wait_s" in await refused(client, "watch", stream=stream, wait_s=3_600)


async def test_it_is_served_over_standard_input_and_output(url: str, stream: str) -> None:
    words = [*WEIR[1:], "mcp", "--allow-write"]
    parameters = StdioServerParameters(command=sys.executable, args=words, env=environment(url))
    async with Client(stdio_client(parameters)) as client:
        await call(client, "publish", stream=stream, fields={"n": "1"})
        assert len((await call(client, "read", stream=stream))["entries"]) == 1


@pytest.fixture
def mcp_url(url: str, tmp_path: Path) -> Iterator[str]:
    """`weir mcp --http`."""
    port = free_port()
    with (tmp_path / "mcp.log").open("wb") as log:
        process = subprocess.Popen(
            [*WEIR, "mcp", "--http", f"127.0.0.1:{port}"], env=environment(url), stdout=log, stderr=log
        )
    place = f"http://127.0.0.1:{port}/mcp"

    def answers() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True
        return False

    try:
        until(answers, "it listens")
        yield place
    finally:
        process.terminate()
        process.wait()


async def test_it_is_served_over_http_without_sessions(mcp_url: str, stream: str) -> None:
    async with Client(mcp_url) as client:
        assert {one.name for one in (await client.list_tools()).tools} == READS
    # Each request stands for itself: no initialization, no session.
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    arguments = {"name": "list_streams", "arguments": {"prefix": stream}}
    accepts = {"accept": "application/json, text/event-stream"}
    async with httpx.AsyncClient(headers=accepts) as http:
        answer = await http.post(mcp_url, json={**asked, "params": arguments})
        assert "mcp-session-id" not in answer.headers
        assert answer.json()["result"]["structuredContent"] == {"streams": [], "next": None}
        # A page elsewhere whose name leads to this machine is no caller.
        foreign = await http.post(
            mcp_url, json={**asked, "params": arguments}, headers={"host": "evil.example"}
        )
        assert foreign.status_code == 421


@pytest.mark.parametrize("address", ["0.0.0.0:8765", "example.com:1", "127.0.0.1", "127.0.0.1:0"])
def test_it_listens_on_this_machine_alone(url: str, address: str) -> None:
    """Who reaches it acts by its token."""
    done = weir(url, "mcp", "--http", address)
    assert done.code == 2
    assert "127.0.0.1:8765" in done.err


def test_without_its_extra_it_says_what_is_missing(url: str, tmp_path: Path) -> None:
    (tmp_path / "mcp.py").write_text("raise ModuleNotFoundError('none', name='mcp')")
    own = {
        **environment(url),
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{environment(url).get('PYTHONPATH', '')}",
    }
    done = completed([*WEIR, "mcp"], env=own)
    assert (done.returncode, done.stderr) == (
        1,
        "weir: mcp is not installed: it is in the extra `mcp` of weir-client\n",
    )


CONFORMANCE = Path(__file__).parents[1] / "sdk/node_modules/@modelcontextprotocol/conformance/dist/index.js"


@pytest.mark.parametrize("scenario", ["server-initialize", "ping", "tools-list", "dns-rebinding-protection"])
def test_it_passes_the_conformance_tests_of_the_protocol(mcp_url: str, tmp_path: Path, scenario: str) -> None:
    """Those for every server; the others ask for tools of their own."""
    words = ["server", "--url", mcp_url.replace("127.0.0.1", "localhost"), "--scenario", scenario]
    done = completed(["node", CONFORMANCE, *words], cwd=tmp_path, env=os.environ)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failed" in done.stdout, done.stdout
