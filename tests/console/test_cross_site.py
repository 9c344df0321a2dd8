"""A page of another site, in a real browser, attacks an open gateway on this machine.

Knows: the requests that a page can make a browser send. Must never know: how the gateway recognises them.
"""

import json
from collections.abc import Iterator
from http.server import HTTPServer

import pytest
from playwright.async_api import Browser

from tests.console.conftest import ConsoleGateway
from tests.serving import QuietHandler, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

ENTRIES = "/v1/streams/spoils/entries"
GROUP = "/v1/streams/spoils/groups/g"
# Every request that needs no permission, until it has failed or timed out.
ATTACK = """
async ([gateway, entries, group]) => {
  const streams = ["worker", "thief"].map((name) => `${gateway}${group}/consumers/${name}/stream`);
  const over = (element) => new Promise((resolve) => {
    element.onload = element.onerror = resolve;
    document.body.append(element);
    setTimeout(resolve, 1000);
  });
  const made = (kind, given) => Object.assign(document.createElement(kind), given);
  const form = (action, method, enctype) => {
    const frame = made("iframe", { name: `frame${Math.random()}` });
    const sent = made("form", { action, method, enctype, target: frame.name });
    sent.append(made("input", { name: "evil", value: "1" }));
    document.body.append(frame, sent);
    sent.submit();
    return over(frame);
  };
  const accept = { Accept: "text/event-stream" };
  const quiet = (url, given) => fetch(url, { mode: "no-cors", signal: AbortSignal.timeout(1000), ...given })
    .then((answer) => answer.text()).catch(() => 0);
  const socket = new WebSocket(gateway.replace("http", "ws") + "/v1/ws");
  const opened = new Promise((resolve) => {
    socket.onopen = () => resolve(true);
    socket.onerror = () => resolve(false);
  });
  const source = new EventSource(streams[0]);
  const read = (url) => fetch(url, { headers: accept }).then(() => true, () => false);
  await Promise.all([
    ...streams.flatMap((src) => [
      over(made("img", { src })), over(made("script", { src })), over(made("iframe", { src })),
      quiet(src), quiet(src, { headers: accept }), read(src), form(src, "GET", ""),
    ]),
    form(gateway + entries, "POST", "application/x-www-form-urlencoded"),
    form(gateway + entries, "POST", "text/plain"),
    quiet(gateway + entries, { method: "POST", body: "evil" }),
    quiet(gateway + "/v1/commands", { method: "POST", body: '["FLUSHALL"]' }),
    navigator.sendBeacon(gateway + "/v1/commands", '["FLUSHALL"]'),
    opened,
  ]);
  source.close();
  return { socket: await opened, readable: await read(gateway + "/v1/streams") };
}
"""


class ForeignPage(QuietHandler):
    """An empty page."""

    def respond(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>elsewhere</title><body>")


@pytest.fixture
def elsewhere() -> Iterator[int]:
    """The port of another server on this machine."""
    with serving(HTTPServer(("127.0.0.1", 0), ForeignPage)) as server:
        yield server.server_port


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"], ids=["cross-site", "same-site"])
async def test_a_page_of_another_site_takes_no_entry_and_disconnects_no_worker(
    browser: Browser, gateway: ConsoleGateway, elsewhere: int, host: str
) -> None:
    """By image, script, frame, form, link, fetch, beacon, EventSource and WebSocket: nothing changes."""
    http = gateway.http
    await http.delete("/v1/streams/spoils")
    batch = {"entries": [{"id": f"5-{n}", "fields": {"n": str(n)}} for n in range(3)]}
    await http.post(ENTRIES, json=batch)
    await http.put(GROUP, json={"start": "0"})
    headers = {"Accept": "text/event-stream"}
    async with http.stream(
        "GET", f"{GROUP}/consumers/worker/stream?max_in_flight=1", headers=headers
    ) as worker:
        lines = worker.aiter_lines()

        async def next_id() -> str:
            async for line in lines:
                assert not line.startswith("event: end"), "the worker was disconnected"
                if line.startswith("data: "):
                    return str(json.loads(line.removeprefix("data: "))["id"])
            raise AssertionError("the worker's connection is over")

        assert await next_id() == "5-0"
        page = await (await browser.new_context()).new_page()
        await page.goto(f"http://{host}:{elsewhere}/")
        url = gateway.server.url
        assert await page.evaluate(ATTACK, [url, ENTRIES, GROUP]) == {"socket": False, "readable": False}
        # A link navigates the whole page.
        await page.evaluate("url => { location = url; }", f"{url}{GROUP}/consumers/thief/stream")
        await page.wait_for_url("**/thief/stream")
        assert "origin_refused" in await page.content()
        await page.context.close()
        pending = (await http.get(f"{GROUP}/pending")).json()
        assert pending["consumers"] == [{"name": "worker", "count": 1}]
        assert [one["name"] for one in (await http.get(f"{GROUP}/consumers")).json()["consumers"]] == [
            "worker"
        ]
        assert (await http.get("/v1/streams/spoils")).json()["length"] == 3
        await http.post(f"{GROUP}/ack", json={"ids": ["5-0"]})
        assert await next_id() == "5-1"
