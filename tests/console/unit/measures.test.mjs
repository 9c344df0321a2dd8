import assert from "node:assert/strict";
import { test } from "node:test";
import { Measures, SECONDS_MAX } from "../../../app/console/stream/measures.js";
import { Rate } from "../../../app/console/shared/rate.js";

const counter = (/** @type {number} */ added, generation = "a") => ({ entries_added: added, generation });

test("a rate needs two readings that are a second apart, however many there are between", () => {
  const rate = new Rate();
  assert.equal(rate.read(counter(1_000), 0, 10), null);
  // The page asks twice as it opens: 13 entries in 11 ms are not 1,154 a second.
  assert.equal(rate.read(counter(1_013), 11, 21), null);
  assert.equal(rate.read(counter(1_013), 999, 1_009), null);
  assert.equal(rate.read(counter(1_013), 1_000, 1_010), 13);
});

test("a rate is counted between the moments of asking, not of answers", () => {
  const rate = new Rate();
  rate.read(counter(0), 0, 400);
  assert.equal(rate.read(counter(10), 1_200, 1_200), 10, "the first was read at 200");
  const slow = new Rate();
  slow.read(counter(0), 0, 2_000);
  assert.equal(slow.read(counter(10), 2_000, 4_000), null, "too little is known of when it was read");
});

test("a rate begins anew with another stream of the name, and after a long pause", () => {
  const rate = new Rate();
  rate.read(counter(0), 0, 0);
  assert.equal(rate.read(counter(5), 1_000, 1_000), 5);
  assert.equal(rate.read(counter(0, "b"), 2_000, 2_000), null);
  assert.equal(rate.read(counter(6, "b"), 32_000, 32_000), 0.2);
  assert.equal(rate.read(counter(9, "b"), 62_001, 62_001), null);
  assert.equal(rate.perSecond, null);
});

/** Measures whose clock is known: the gateway is 500 ms ahead. */
function set() {
  const measures = new Measures();
  measures.clock(100_500, 99_999, 100_001);
  assert.equal(measures.offsetMs, 500);
  return measures;
}

test("latency is by the gateway's clock, and unknown before that is known", () => {
  const measures = new Measures();
  measures.arrived([{ id: "100000-0" }], 0, 100_010);
  measures.tick(0);
  assert.deepEqual(measures.series.p50, [null]);
  const known = set();
  known.arrived([{ id: "100510-0" }, { id: "100510-1" }, { id: "100430-0" }], 0, 100_020);
  known.tick(0);
  assert.deepEqual([known.series.p50, known.series.p99], [[10], [90]]);
});

test("what was published before nothing waited for the page was replayed: it is no latency", () => {
  const measures = set();
  measures.arrived([{ id: "100499-0" }], 100_000, 100_030);
  measures.tick(0);
  assert.deepEqual(measures.series.p50, [null]);
  measures.arrived([{ id: "100500-0" }], 100_000, 100_030);
  measures.tick(0);
  assert.deepEqual(measures.series.p50, [null, 30]);
});

test("IDs that no clock has given are no latency", () => {
  const measures = set();
  measures.arrived([{ id: "5-1" }, { id: "18446744073709551615-18446744073709551615" }], 0, 100_030);
  measures.tick(0);
  assert.deepEqual(measures.series.p99, [null]);
});

test("the better measurement of the clock counts, until it is old", () => {
  const measures = set();
  measures.clock(300_000, 200_000, 200_100);
  assert.equal(measures.offsetMs, 500);
  for (let n = 0; n < 100; n += 1) measures.clock(300_050, 200_000, 200_100);
  assert.equal(measures.offsetMs, 100_000);
});

test("the worst of the lags that are known, and each group's own over time", () => {
  const measures = set();
  measures.tick(1_000);
  measures.lags([{ name: "a", lag: 3 }, { name: "b", lag: null }]);
  measures.tick(2_000);
  assert.equal(measures.lag, 3);
  measures.lags([{ name: "b", lag: 7 }]);
  measures.tick(3_000);
  assert.deepEqual(measures.series.lag, [null, 3, 7]);
  assert.deepEqual([...measures.lagSeries], [["a", [null, 3, null]], ["b", [null, null, 7]]]);
  assert.deepEqual(measures.series.at, [1, 2, 3]);
});

test("five minutes are kept, of all alike; a group that is gone goes from sight", () => {
  const measures = set();
  measures.lags([{ name: "a", lag: 1 }]);
  measures.tick(0);
  measures.lags([{ name: "b", lag: 2 }]);
  for (let n = 1; n < SECONDS_MAX; n += 1) measures.tick(n * 1_000);
  assert.deepEqual([...measures.lagSeries.keys()], ["a", "b"]);
  measures.tick(SECONDS_MAX * 1_000);
  assert.deepEqual([...measures.lagSeries.keys()], ["b"]);
  for (const list of [...Object.values(measures.series), ...measures.lagSeries.values()]) assert.equal(list.length, SECONDS_MAX);
  assert.equal(measures.series.at[0], 1);
});

test("a fair choice of very many is taken, not all", () => {
  const measures = set();
  measures.arrived(Array.from({ length: 5_000 }, (_, n) => ({ id: `100500-${n}` })), 0, 100_030);
  assert.equal(measures.samples.length, 1_000);
  assert.equal(measures.seen, 5_000);
});
