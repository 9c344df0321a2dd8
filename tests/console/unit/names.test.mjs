/* Names in paths and in the tree; streams and groups read page by page. */
import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import * as api from "../../../app/console/shared/api.js";
import { Catalogue } from "../../../app/console/shared/catalogue.js";
import { GroupLags } from "../../../app/console/overview/group_lags.js";
import { abbreviate } from "../../../app/console/shared/format.js";
import { fold, matches } from "../../../app/console/shell/name_tree.js";

const { fetch } = globalThis;
/** @type {{method: string, path: string, body: any}[]} */
let asked = [];
/** @type {(path: string) => Response} */
let answer = () => new Response("{}");

beforeEach(() => {
  asked = [];
  answer = () => new Response("{}");
  globalThis.fetch = /** @type {any} */ (async (/** @type {string} */ path, /** @type {RequestInit} */ { method = "", body }) => {
    asked.push({ method, path, body: body === undefined ? undefined : String(body) });
    return answer(path);
  });
});
afterEach(() => Object.assign(globalThis, { fetch }));

test("every name is one segment of the path", async () => {
  const name = "a/b?c#d%20 ä";
  const segment = "a%2Fb%3Fc%23d%2520%20%C3%A4";
  await api.getStream(name);
  await api.getEntry(name, "5-1");
  await api.deleteConsumer(name, name, name, `transfer:${name}`);
  await api.redrive(name, name, { ids: ["5-1"] });
  assert.deepEqual(asked.map(({ path }) => path), [
    `/v1/streams/${segment}`,
    `/v1/streams/${segment}/entries/5-1`,
    `/v1/streams/${segment}/groups/${segment}/consumers/${segment}?pending=transfer%3Aa%2Fb%3Fc%23d%2520+%C3%A4`,
    `/v1/streams/${segment}/groups/${segment}/dead-letters/redrive`,
  ]);
});

test("empty parameters are left out, zero and false are sent", async () => {
  await api.listPending("s", "g", { count: 100, consumer: "", min_idle_ms: 0 });
  await api.listStreams({ prefix: "", after: "x" });
  assert.deepEqual(asked.map(({ path }) => path), ["/v1/streams/s/groups/g/pending?count=100&min_idle_ms=0", "/v1/streams?after=x"]);
});

test("a claim carries IDs, consumer and milliseconds", async () => {
  await api.claim("s", "g", ["5-1", "5-2"], "anna", 2_500);
  assert.deepEqual(JSON.parse(asked[0]?.body), { ids: ["5-1", "5-2"], consumer: "anna", min_idle_ms: 2_500 });
});

test("an error has the gateway's message", async () => {
  answer = () => new Response(JSON.stringify({ code: "no_stream", detail: "there is no stream x" }), { status: 404 });
  await assert.rejects(api.getStream("x"), (error) => error instanceof api.ApiError && error.code === "no_stream" && error.message === "there is no stream x");
  answer = () => new Response("<html>", { status: 502 });
  await assert.rejects(api.getStream("x"), /502 and not with JSON/);
  answer = () => {
    throw new TypeError("failed to fetch");
  };
  await assert.rejects(api.getStream("x"), /cannot be reached/);
});

test("an unavailable status is no error", async () => {
  for (const status of [401, 403, 404]) {
    answer = () => new Response("{}", { status });
    assert.equal(await api.getStatus(), null);
  }
  answer = () => new Response("{}", { status: 503 });
  await assert.rejects(api.getStatus());
});

/** @param {string[]} names @param {(prefix: string) => boolean} [isOpen] */
const tree = (names, isOpen = () => true) =>
  fold(names.map((name) => ({ name })), isOpen).map((row) => `${"  ".repeat(row.depth)}${row.label}${row.kind === "folder" ? ` [${row.items.length}]` : ""}`);

test("names with a common prefix fold into a folder", () => {
  assert.deepEqual(tree(["audit", "eu:orders:paid", "eu:orders:sent", "eu:stock", "us:orders"]), [
    "audit", "eu: [3]", "  orders: [2]", "    paid", "    sent", "  stock", "us:orders",
  ]);
  assert.deepEqual(tree(["eu:orders:paid", "eu:orders:sent", "eu:stock"], (prefix) => prefix !== "eu:orders:"), ["eu: [3]", "  orders: [2]", "  stock"]);
  assert.deepEqual(tree(["a.b.c.x", "a.b.c.y"]), ["a.b.c. [2]", "  x", "  y"]);
});

test("a dash separates only if many names share the prefix; a folder may be a stream too", () => {
  assert.deepEqual(tree(["orders", "orders-dead"]), ["orders", "orders-dead"]);
  assert.deepEqual(tree([1, 2, 3, 4, 5].map((n) => `s-${n}`)).length, 5);
  assert.deepEqual(tree([1, 2, 3, 4, 5, 6].map((n) => `s-${n}`)), ["s- [6]", ...[1, 2, 3, 4, 5, 6].map((n) => `  ${n}`)]);
  assert.deepEqual(tree(["a-b:1", "a-b:2"]), ["a-b: [2]", "  1", "  2"]);
  assert.deepEqual(tree(["a:", "a:b"]), ["a: [2]", "  ", "  b"]);
});

test("a search finds words anywhere in a name; long names are shortened in the middle", () => {
  assert.ok(matches("tenant-1:Orders:paid", "orders"));
  assert.ok(matches("tenant-1:orders:paid", "paid tenant"));
  assert.ok(!matches("tenant-1:orders:paid", "orders unpaid"));
  const long = `${"head".repeat(30)}-the-tail-that-differs`;
  assert.equal(abbreviate("short"), "short");
  assert.ok(abbreviate(long).length === 90 && abbreviate(long).endsWith("-the-tail-that-differs") && abbreviate(long).startsWith("headhead"));
});

/** @param {string} name */
const stream = (name) => ({ name, entries_added: 0, generation: "a" });

test("the list of streams is read page by page to its end", async () => {
  const names = Array.from({ length: 450 }, (_, n) => `s${String(n).padStart(4, "0")}`);
  answer = (path) => {
    const { searchParams } = new URL(path, "http://gateway");
    const from = names.indexOf(searchParams.get("after") ?? "") + 1;
    const page = names.slice(from, from + 200);
    return new Response(JSON.stringify({ streams: page.map(stream), next: from + 200 < names.length ? page.at(-1) : null }));
  };
  const catalogue = new Catalogue();
  await catalogue.refresh();
  assert.deepEqual(catalogue.items.map(({ name }) => name), names);
  assert.ok(catalogue.isComplete);
  assert.equal(asked.length, 3);
  await catalogue.refresh();
  assert.equal(asked.length, 3, "a long list is not read again at once");
  names.splice(0, 440);
  await catalogue.refresh(true);
  assert.deepEqual(catalogue.items.map(({ name }) => name), names);
  assert.equal(catalogue.rates.size, 10, "deleted streams are dropped");
});

test("an endless list is cut off at the limit", async () => {
  let n = 0;
  answer = () => new Response(JSON.stringify({ streams: Array.from({ length: 200 }, () => stream(`s${(n += 1)}`)), next: "more" }));
  const catalogue = new Catalogue();
  await catalogue.refresh();
  assert.equal(catalogue.items.length, 5_000);
  assert.equal(catalogue.isComplete, false);
});

test("the groups of any number of streams are read a few at a time, in turn; the highest lag comes first", async () => {
  const streams = Array.from({ length: 100 }, (_, n) => `s${n}`);
  answer = (path) => {
    const n = Number(/s(\d+)\/groups$/.exec(path)?.[1]);
    return new Response(JSON.stringify({ groups: [{ name: "team", lag: n === 50 ? null : n, pending: 0 }] }));
  };
  const lags = new GroupLags();
  for (let round = 1; round <= 3; round += 1) {
    await lags.refresh(streams);
    assert.equal(asked.length, Math.min(100, round * 40));
  }
  assert.deepEqual(lags.worst(3).map(({ stream, lag }) => [stream, lag]), [["s99", 99], ["s98", 98], ["s97", 97]]);
  assert.equal(lags.worst(100).at(-1)?.lag, null, "an unknown lag sorts above none");
  await lags.refresh(streams.slice(0, 2));
  assert.deepEqual(lags.worst(3).map(({ stream }) => stream), ["s1"], "deleted streams are dropped");
});

test("a stream that may not be read is left out; while the gateway is away the known groups stay", async () => {
  answer = () => new Response(JSON.stringify({ groups: [{ name: "team", lag: 5, pending: 0 }] }));
  const lags = new GroupLags();
  await lags.refresh(["a"]);
  answer = () => new Response("{}", { status: 503 });
  await lags.refresh(["a"]);
  assert.equal(lags.worst(1).length, 1);
  answer = () => new Response("{}", { status: 403 });
  await lags.refresh(["a"]);
  assert.equal(lags.worst(1).length, 0);
});
