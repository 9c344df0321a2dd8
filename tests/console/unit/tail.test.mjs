import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import { parse } from "../../../app/console/live/filter.js";
import { Connection } from "../../../app/console/shared/connection.js";
import { PAGE_COUNT, Tail } from "../../../app/console/live/tail.js";
import { Gateway } from "./gateway.mjs";

/** @type {(() => void)[]} */
let frames = [];
const browser = { requestAnimationFrame: globalThis.requestAnimationFrame, fetch: globalThis.fetch };

beforeEach(() => {
  frames = [];
  globalThis.requestAnimationFrame = (draw) => frames.push(/** @type {() => void} */ (draw));
});
afterEach(() => Object.assign(globalThis, browser));

/** The browser draws once. */
function drawn() {
  const now = frames;
  frames = [];
  for (const draw of now) draw();
}

/** @param {Tail} tail */
const idsOf = (tail) => [...tail.shown].map((row) => (row.kind === "entry" ? row.id : row.text));

/** A tail at the end of a stream with these entries, whose pages come from the same place. @param {string[]} ids */
async function opened(ids = []) {
  const gateway = new Gateway();
  for (const id of ids) gateway.publish(id);
  globalThis.fetch = /** @type {any} */ (async (/** @type {string} */ path) => new Response(JSON.stringify(page(gateway, path))));
  const connection = new Connection("ws://gateway/v1/ws", gateway.ground);
  connection.open();
  gateway.socket.accept();
  const tail = new Tail(connection);
  await tail.open("orders");
  return { gateway, tail };
}

/** What `GET …/entries` answers. @param {Gateway} gateway @param {string} path */
function page({ entries }, path) {
  const asked = new URL(path, "http://gateway").searchParams;
  const count = Number(asked.get("count") ?? asked.get("last") ?? 100);
  const at = (/** @type {string | null} */ id) => (id === null ? -1 : entries.findIndex((one) => one.id === id.replace("(", "")));
  if (asked.has("last")) return { entries: entries.slice(-count), next: entries.at(-1)?.id ?? "0-0", more: false };
  if (asked.get("reverse")) {
    const before = entries.slice(0, at(asked.get("end")));
    return { entries: before.slice(-count).reverse(), next: null, more: before.length > count };
  }
  const from = asked.has("after") ? at(asked.get("after")) + 1 : at(asked.get("start"));
  return { entries: entries.slice(from, from + count), next: null, more: entries.length > from + count };
}

test("what was there, then what comes; each once", async () => {
  const { gateway, tail } = await opened(["5-0", "5-1"]);
  gateway.publish("5-2");
  drawn();
  assert.deepEqual(idsOf(tail), ["5-0", "5-1", "5-2"]);
});

test("credit goes back as the page draws, so that any number of entries comes through", async () => {
  const { gateway, tail } = await opened();
  for (let n = 1; n <= 6_000; n += 1) {
    gateway.publish(`5-${n}`);
    if (n % 100 === 0) drawn();
  }
  drawn();
  assert.deepEqual(idsOf(tail), gateway.entries.map(({ id }) => id));
});

test("a tail that is held gives no credit; released, it shows all that came one at a time meanwhile", async () => {
  const { gateway, tail } = await opened();
  gateway.publish("5-1");
  drawn();
  const granted = gateway.heard.length;
  tail.hold();
  for (let n = 2; n <= 5_000; n += 1) {
    gateway.publish(`5-${n}`);
    drawn();
  }
  assert.deepEqual(idsOf(tail), ["5-1"]);
  assert.ok(tail.starved);
  assert.equal(gateway.heard.length, granted);
  tail.release();
  for (let turn = 0; turn < 20; turn += 1) drawn();
  assert.deepEqual(idsOf(tail), gateway.entries.map(({ id }) => id));
});

test("a break while it is held loses nothing and doubles nothing", async () => {
  const { gateway, tail } = await opened();
  tail.hold();
  for (let n = 1; n <= 300; n += 1) gateway.publish(`5-${n}`);
  gateway.socket.lose(1006);
  for (let n = 301; n <= 900; n += 1) gateway.entries.push({ id: `5-${n}`, fields: {} });
  gateway.nowMs += 20_000;
  tail.connection.watch();
  gateway.socket.accept();
  tail.release();
  for (let turn = 0; turn < 5; turn += 1) drawn();
  assert.deepEqual(idsOf(tail).filter((text) => /^5-\d+$/.test(text)), gateway.entries.map(({ id }) => id));
  assert.equal(idsOf(tail).filter((text) => text.startsWith("Connected again")).length, 1);
});

test("what is skipped on the way to the present is a row, by the order of IDs as numbers", async () => {
  const { gateway, tail } = await opened(["9-0", "10-0"]);
  for (let n = 0; n < PAGE_COUNT; n += 1) gateway.entries.push({ id: `100-${n}`, fields: {} });
  await tail.toLive();
  assert.equal(idsOf(tail)[0], "What lies between 10-0 and 100-0 was skipped.");
  await tail.toLive();
  assert.equal(idsOf(tail)[0], "100-0");
});

test("a filter chooses among what is kept and what comes; notices always pass", async () => {
  const { gateway, tail } = await opened(["5-1", "5-2"]);
  tail.filter(parse("n=5-2"));
  assert.deepEqual(idsOf(tail), ["5-2"]);
  gateway.publish("5-3");
  gateway.socket.push({ op: "gap", sub: "tail-1", requested: "5-3", first_available: "5-9", lost: 5 });
  drawn();
  assert.deepEqual(idsOf(tail), ["5-2", "Gap: 5 entries were removed before 5-9 and could not be read."]);
  tail.filter(null);
  assert.deepEqual(idsOf(tail).slice(0, 3), ["5-1", "5-2", "5-3"]);
});

test("history goes on in both directions without a hole", async () => {
  const ids = Array.from({ length: 1_400 }, (_, n) => `5-${n}`);
  const { tail } = await opened(ids);
  await tail.jump("5-600");
  assert.deepEqual([tail.span?.first, tail.span?.last], ["5-600", "5-1099"]);
  await tail.older();
  await tail.newer();
  assert.deepEqual(idsOf(tail), ids.slice(100));
  assert.ok(tail.atEnd);
  await tail.older();
  assert.ok(tail.atStart);
  assert.deepEqual(idsOf(tail), ids);
});

test("an entry that was deleted here stays as a row without fields", async () => {
  const { tail } = await opened(["5-1", "5-2"]);
  tail.removed("5-1");
  assert.deepEqual([...tail.shown].map((row) => row.kind === "entry" && row.entry.fields === null), [true, false]);
  assert.deepEqual(tail.shown.entries().map(({ id }) => id), ["5-2"]);
});

test("what another stream of the same name holds is followed from its beginning", async () => {
  const { gateway, tail } = await opened(["99-1"]);
  gateway.entries = [];
  tail.recreated();
  gateway.publish("5-1");
  drawn();
  assert.match(idsOf(tail)[1] ?? "", /made anew/);
  assert.equal(idsOf(tail)[2], "5-1");
});

test("a page that comes after another stream was opened is shown nowhere", async () => {
  const { tail } = await opened(Array.from({ length: 1_400 }, (_, n) => `5-${n}`));
  await tail.jump("5-600");
  const late = [tail.older(), tail.newer()];
  await tail.jump("5-900");
  await Promise.all(late);
  assert.deepEqual([tail.span?.first, tail.rows.length], ["5-900", 500]);
});
