import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import { parseFilter } from "../../../app/console/live/filter.js";
import { Connection } from "../../../app/console/shared/connection.js";
import { PAGE_COUNT, Tail, firstId, lastId } from "../../../app/console/live/tail.js";
import { ROWS_MAX } from "../../../app/console/live/rows.js";
import { Gateway } from "./gateway.mjs";

/** @type {(() => void)[]} */
let frames = [];
const browser = { requestAnimationFrame: globalThis.requestAnimationFrame, fetch: globalThis.fetch };

beforeEach(() => {
  frames = [];
  globalThis.requestAnimationFrame = (draw) => frames.push(/** @type {() => void} */ (draw));
});
afterEach(() => Object.assign(globalThis, browser));

/** Let the browser draw once. */
function drawFrame() {
  const now = frames;
  frames = [];
  for (const draw of now) draw();
}

/** @param {Tail} tail */
const idsOf = (tail) => [...tail.shown].map((row) => (row.kind === "entry" ? row.id : row.text));

/** A live tail of a stream with these entries. @param {string[]} ids @param {number} [pageMax] entries of a page */
async function opened(ids = [], pageMax) {
  const gateway = new Gateway();
  for (const id of ids) gateway.publish(id);
  globalThis.fetch = /** @type {any} */ (async (/** @type {string} */ path) => new Response(JSON.stringify(page(gateway, path, pageMax))));
  const connection = new Connection("ws://gateway/v1/ws", gateway.environment);
  connection.open();
  gateway.socket.accept();
  const tail = new Tail(connection);
  await tail.open("orders");
  return { gateway, tail };
}

/** The response to `GET …/entries`. @param {Gateway} gateway @param {string} path @param {number} pageMax */
function page({ entries }, path, pageMax = Number.POSITIVE_INFINITY) {
  const asked = new URL(path, "http://gateway").searchParams;
  const count = Math.min(pageMax, Number(asked.get("count") ?? asked.get("last") ?? 100));
  const at = (/** @type {string | null} */ id) => (id === null ? -1 : entries.findIndex((one) => one.id === id.replace("(", "")));
  if (asked.has("last")) return { entries: entries.slice(-count), next: entries.at(-1)?.id ?? "0-0", more: false };
  if (asked.get("reverse")) {
    const before = entries.slice(0, at(asked.get("end")));
    return { entries: before.slice(-count).reverse(), next: null, more: before.length > count };
  }
  const from = asked.has("after") ? at(asked.get("after")) + 1 : at(asked.get("start"));
  return { entries: entries.slice(from, from + count), next: null, more: entries.length > from + count };
}

test("existing entries come first, then new ones, each once", async () => {
  const { gateway, tail } = await opened(["5-0", "5-1"]);
  gateway.publish("5-2");
  drawFrame();
  assert.deepEqual(idsOf(tail), ["5-0", "5-1", "5-2"]);
});

test("credit returns as the page draws, so that any number of entries comes through", async () => {
  const { gateway, tail } = await opened();
  for (let n = 1; n <= 6_000; n += 1) {
    gateway.publish(`5-${n}`);
    if (n % 100 === 0) drawFrame();
  }
  drawFrame();
  assert.deepEqual(idsOf(tail), gateway.entries.map(({ id }) => id));
});

test("a paused tail grants no credit; resumed, it shows every entry published during the pause", async () => {
  const { gateway, tail } = await opened();
  gateway.publish("5-1");
  drawFrame();
  const granted = gateway.received.length;
  tail.pause();
  for (let n = 2; n <= 5_000; n += 1) {
    gateway.publish(`5-${n}`);
    drawFrame();
  }
  assert.deepEqual(idsOf(tail), ["5-1"]);
  assert.ok(tail.isOutOfCredit);
  assert.equal(gateway.received.length, granted);
  tail.resume();
  for (let turn = 0; turn < 20; turn += 1) drawFrame();
  assert.deepEqual(idsOf(tail), gateway.entries.map(({ id }) => id));
});

test("a reconnect during a pause loses and repeats no entry", async () => {
  const { gateway, tail } = await opened();
  tail.pause();
  for (let n = 1; n <= 300; n += 1) gateway.publish(`5-${n}`);
  gateway.socket.lose(1006);
  for (let n = 301; n <= 900; n += 1) gateway.entries.push({ id: `5-${n}`, fields: {} });
  gateway.nowMs += 20_000;
  tail.connection.tick();
  gateway.socket.accept();
  tail.resume();
  for (let turn = 0; turn < 5; turn += 1) drawFrame();
  assert.deepEqual(idsOf(tail).filter((text) => /^5-\d+$/.test(text)), gateway.entries.map(({ id }) => id));
  assert.equal(idsOf(tail).filter((text) => text.startsWith("Reconnected")).length, 1);
});

test("skipped entries become a notice, with IDs compared as numbers", async () => {
  const { gateway, tail } = await opened(["9-0", "10-0"]);
  for (let n = 0; n < PAGE_COUNT; n += 1) gateway.entries.push({ id: `100-${n}`, fields: {} });
  await tail.goLive();
  assert.equal(idsOf(tail)[0], "Entries between 10-0 and 100-0 were skipped.");
  await tail.goLive();
  assert.equal(idsOf(tail)[0], "100-0");
});

test("a filter applies to loaded and new entries; notices always match", async () => {
  const { gateway, tail } = await opened(["5-1", "5-2"]);
  tail.filter(parseFilter("n=5-2"));
  assert.deepEqual(idsOf(tail), ["5-2"]);
  gateway.publish("5-3");
  gateway.socket.push({ op: "gap", sub: "tail-1", requested: "5-3", first_available: "5-9", lost: 5 });
  drawFrame();
  assert.deepEqual(idsOf(tail), ["5-2", "Gap: 5 entries were removed before 5-9 and could not be read."]);
  tail.filter(null);
  assert.deepEqual(idsOf(tail).slice(0, 3), ["5-1", "5-2", "5-3"]);
});

test("history loads in both directions without a hole", async () => {
  const ids = Array.from({ length: 1_400 }, (_, n) => `5-${n}`);
  const { tail } = await opened(ids);
  await tail.jump("5-600");
  assert.deepEqual([firstId(tail.rows), lastId(tail.rows)], ["5-600", "5-1099"]);
  await tail.loadOlder();
  await tail.loadNewer();
  assert.deepEqual(idsOf(tail), ids.slice(100));
  assert.ok(tail.atEnd);
  await tail.loadOlder();
  assert.ok(tail.atStart);
  assert.deepEqual(idsOf(tail), ids);
});

test("older entries load though the newest were too large for a whole page", async () => {
  const ids = ["5-0", "5-1", "5-2", "5-3", "5-4", "5-5", "5-6"];
  const { tail } = await opened(ids, 3);
  tail.pause();
  assert.deepEqual(idsOf(tail), ids.slice(4));
  await tail.loadOlder();
  assert.ok(!tail.atStart);
  await tail.loadOlder();
  assert.deepEqual(idsOf(tail), ids);
  assert.ok(tail.atStart);
});

test("a paused tail that keeps the newest rows says when it has no room for older ones", async () => {
  const { tail } = await opened(Array.from({ length: ROWS_MAX + 700 }, (_, n) => `5-${n}`));
  tail.pause();
  while (tail.rows.length < ROWS_MAX) {
    assert.ok(!tail.isFull);
    await tail.loadOlder();
  }
  assert.ok(tail.isFull);
  await tail.jump(firstId(tail.rows) ?? "");
  assert.ok(!tail.isFull);
});

test("a page of history says how many rows it drove out in front of those in sight", async () => {
  const { tail } = await opened(Array.from({ length: ROWS_MAX + 700 }, (_, n) => `5-${n}`));
  await tail.jump("5-0");
  let before = 0;
  tail.addEventListener("rows", (event) => {
    ({ before } = /** @type {CustomEvent} */ (event).detail);
  });
  while (tail.rows.length < ROWS_MAX) {
    await tail.loadNewer();
    assert.equal(before, 0);
  }
  await tail.loadNewer();
  assert.deepEqual([before, firstId(tail.rows)], [-500, "5-500"]);
  await tail.loadNewer();
  assert.deepEqual([before, firstId(tail.rows)], [-200, "5-700"]);
});

test("an entry deleted on this page stays as a row without fields", async () => {
  const { tail } = await opened(["5-1", "5-2"]);
  tail.markDeleted("5-1");
  assert.deepEqual([...tail.shown].map((row) => row.kind === "entry" && row.entry.fields === null), [true, false]);
  assert.deepEqual(tail.shown.entries().map(({ id }) => id), ["5-2"]);
});

test("each reason of a gap is said, one that is not known too", async () => {
  const { gateway, tail } = await opened(["99-1"]);
  for (const reason of ["deleted", "expired", "replaced", "recreated", "restored", "ahead", "failover", "of_tomorrow"]) {
    gateway.socket.push({ op: "gap", sub: "tail-1", requested: "99-1", first_available: "5-1", lost: null, reason, next: "0-0" });
  }
  drawFrame();
  const said = idsOf(tail).slice(1);
  assert.equal(new Set(said).size, 8);
  assert.match(said[3] ?? "", /^Gap: The stream was deleted and created again/);
  assert.equal(said[7], "Gap: Entries were lost (of_tomorrow) before 5-1 and could not be read.");
});

test("a recreated stream is followed from its beginning, also after a reconnect", async () => {
  const { gateway, tail } = await opened(["99-1"]);
  gateway.entries = [];
  gateway.socket.push({ op: "gap", sub: "tail-1", requested: "99-1", first_available: "0-0", lost: null, reason: "deleted", next: "0-0" });
  gateway.socket.lose(1006);
  gateway.entries = [{ id: "5-1", fields: {} }];
  gateway.nowMs += 20_000;
  tail.connection.tick();
  gateway.socket.accept();
  drawFrame();
  assert.match(idsOf(tail)[1] ?? "", /^Gap: The stream was deleted/);
  assert.equal(idsOf(tail).at(-1), "5-1");
  assert.ok(gateway.received.filter(({ op }) => op === "subscribe").every(({ cursor }) => cursor === "generation"));
});

test("a page is asked for once while it is under way, and again after it failed", async () => {
  const { tail } = await opened(Array.from({ length: 1_400 }, (_, n) => `5-${n}`));
  await tail.jump("5-600");
  const { fetch } = globalThis;
  let asked = 0;
  globalThis.fetch = async () => {
    asked += 1;
    throw new TypeError("Failed to fetch");
  };
  const pages = [tail.loadNewer(), tail.loadNewer(), tail.loadOlder(), tail.loadOlder()];
  await Promise.allSettled(pages);
  assert.equal(asked, 2);
  globalThis.fetch = fetch;
  await tail.loadNewer();
  assert.equal(lastId(tail.rows), "5-1399");
});

test("a response that arrives after a new jump is ignored", async () => {
  const { tail } = await opened(Array.from({ length: 1_400 }, (_, n) => `5-${n}`));
  await tail.jump("5-600");
  const late = [tail.loadOlder(), tail.loadNewer()];
  await tail.jump("5-900");
  await Promise.all(late);
  assert.deepEqual([firstId(tail.rows), tail.rows.length], ["5-900", 500]);
});
