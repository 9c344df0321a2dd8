"""Durable Streams from a page of another origin, in a real browser: what it may send and read."""

from pathlib import Path
from typing import Any, Final

import pytest

from tests.browsing import open_page, serve_site
from tests.sdk.durable.test_suite import SDK, TOKEN
from tests.server import Server

CLIENT: Final = SDK / "node_modules" / "@durable-streams" / "client" / "dist"
# Each header of a request needs the preflight's word, each one of an answer has to be exposed.
HEADERS: Final = """
async ([url, authorization]) => {
  const shown = {};
  const ask = async (name, method, path, headers = {}, body = undefined) => {
    const answer = await fetch(url + path, { method, body, headers: { authorization, ...headers } });
    shown[name] = { status: answer.status, ...Object.fromEntries(answer.headers) };
    await answer.body?.cancel();
    return answer;
  };
  const json = { "content-type": "application/json" };
  const batch = (epoch, seq) =>
    ({ ...json, "producer-id": "p", "producer-epoch": `${epoch}`, "producer-seq": `${seq}` });
  await ask("created", "PUT", "/chat", { ...json, "stream-ttl": "60" });
  await ask("appended", "POST", "/chat", batch(0, 0), "[1, 2]");
  await ask("gap", "POST", "/chat", batch(0, 5), "3");
  await ask("claimed", "POST", "/chat", batch(1, 0), "3");
  await ask("stale", "POST", "/chat", batch(0, 1), "4");
  await ask("sequence", "POST", "/chat", { ...json, "stream-seq": "1" }, "5");
  const page = await ask("page", "GET", "/chat?offset=-1");
  await ask("unchanged", "GET", "/chat?offset=-1", { "if-none-match": page.headers.get("etag") });
  await ask("waited", "GET", "/chat?offset=-1&live=long-poll");
  const place = { "stream-fork-offset": shown.appended["stream-next-offset"], "stream-fork-sub-offset": "0" };
  await ask("fork", "PUT", "/fork", { ...json, "stream-forked-from": "/v1/stream/chat", ...place });
  await ask("closed", "POST", "/chat", { "stream-closed": "true" });
  await ask("head", "HEAD", "/chat");
  const end = "2099-01-01T00:00:00Z";
  await ask("bytes", "PUT", "/bytes", { "content-type": "image/png", "stream-expires-at": end }, "1");
  await ask("bytesHead", "HEAD", "/bytes");
  await ask("events", "GET", "/bytes?offset=-1&live=sse");
  await ask("deleted", "DELETE", "/bytes");
  return shown;
}
"""
READABLE: Final = {
    "created": (201, {"location", "stream-next-offset"}),
    "appended": (200, {"stream-next-offset", "producer-epoch", "producer-seq"}),
    "gap": (409, {"producer-expected-seq", "producer-received-seq"}),
    "claimed": (200, {"producer-epoch"}),
    "stale": (403, {"producer-epoch"}),
    "sequence": (204, {"stream-next-offset"}),
    "page": (200, {"stream-next-offset", "stream-up-to-date", "etag", "cache-control"}),
    "unchanged": (304, {"etag"}),
    "waited": (200, {"stream-next-offset", "stream-up-to-date", "stream-cursor"}),
    "fork": (201, {"stream-next-offset"}),
    "closed": (204, {"stream-closed", "stream-next-offset"}),
    "head": (200, {"stream-closed", "stream-ttl", "stream-next-offset"}),
    "bytes": (201, {"location"}),
    "bytesHead": (200, {"stream-expires-at"}),
    "events": (200, {"stream-sse-data-encoding"}),
    "deleted": (204, set[str]()),
}
IN_A_PAGE: Final = """
async ([site, base, live, authorization]) => {
  const { DurableStream, IdempotentProducer, stream } = await import(`${site}/index.js`);
  const url = `${base}/chats/${live}`, headers = { authorization };
  const handle = await DurableStream.create({ url, headers, contentType: "application/json" });
  const read = [], reading = await stream({ url, headers, live });
  const over = (async () => { for await (const token of reading.jsonStream()) read.push(token); })();
  const producer = new IdempotentProducer(handle, "page", { lingerMs: 1 });
  for (let token = 0; token < 20; token += 1) {
    producer.append(JSON.stringify(token));
    await producer.flush();
  }
  await producer.close();
  await over;
  return read;
}
"""


def evaluate(program: str, tmp_path: Path, *arguments: str) -> Any:
    """What a program of a page of another origin returns."""
    with (
        serve_site(CLIENT) as site,
        Server(
            tmp_path / "data", "--set", f"root_token={TOKEN}", "--set", f"allowed_origins={site}"
        ) as server,
        open_page() as page,
    ):
        page.goto(f"{site}/")
        known = {"site": site, "url": f"{server.url}/v1/stream", "authorization": f"Bearer {TOKEN}"}
        return page.evaluate(program, [known.get(one, one) for one in arguments])


def test_a_page_sends_and_reads_every_header(tmp_path: Path) -> None:
    """The protocol is in its headers: one that a page cannot see is not there."""
    shown = evaluate(HEADERS, tmp_path, "url", "authorization")
    assert {name: answer["status"] for name, answer in shown.items()} == {
        name: status for name, (status, _) in READABLE.items()
    }
    hidden = {name: headers - {*shown[name]} for name, (_, headers) in READABLE.items()}
    assert {name: headers for name, headers in hidden.items() if headers} == {}


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_their_client_writes_and_reads_in_a_page(live: str, tmp_path: Path) -> None:
    read = evaluate(IN_A_PAGE, tmp_path, "site", "url", live, "authorization")
    assert read == list(range(20))
