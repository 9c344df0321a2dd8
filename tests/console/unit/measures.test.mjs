import assert from "node:assert/strict";
import { test } from "node:test";
import { Measures, SECONDS_MAX } from "../../../app/console/stream/measures.js";
import { Rate } from "../../../app/console/shared/rate.js";

const counter = (/** @type {number} */ added, generation = "a") => ({ entries_added: added, generation });

test("a rate needs two readings a second apart, with any number between them", () => {
  const rate = new Rate();
  assert.equal(rate.read(counter(1_000), 0, 10), null);
  // The page reads twice as it opens: 13 entries in 11 ms are not 1,154 a second.
  assert.equal(rate.read(counter(1_013), 11, 21), null);
  assert.equal(rate.read(counter(1_013), 999, 1_009), null);
  assert.equal(rate.read(counter(1_013), 1_000, 1_010), 13);
});

test("a rate counts from the middle of each request", () => {
  const rate = new Rate();
  rate.read(counter(0), 0, 400);
  assert.equal(rate.read(counter(10), 1_200, 1_200), 10, "the first was read at 200");
  const slow = new Rate();
  slow.read(counter(0), 0, 2_000);
  assert.equal(slow.read(counter(10), 2_000, 4_000), null, "the time of the reading is too uncertain");
});

test("a rate starts again with a recreated stream and after a long pause", () => {
  const rate = new Rate();
  rate.read(counter(0), 0, 0);
  assert.equal(rate.read(counter(5), 1_000, 1_000), 5);
  assert.equal(rate.read(counter(0, "b"), 2_000, 2_000), null);
  assert.equal(rate.read(counter(6, "b"), 32_000, 32_000), 0.2);
  assert.equal(rate.read(counter(9, "b"), 62_001, 62_001), null);
  assert.equal(rate.perSecond, null);
});

/** Measures with a known clock: the gateway is 500 ms ahead. */
function makeMeasures() {
  const measures = new Measures();
  measures.setClock(100_500, 99_999, 100_001);
  assert.equal(measures.offsetMs, 500);
  return measures;
}

test("latency uses the gateway's clock, and is unknown without it", () => {
  const measures = new Measures();
  measures.addArrivals([{ id: "100000-0" }], 0, 100_010);
  measures.tick(0);
  assert.deepEqual(measures.series.p50, [null]);
  const known = makeMeasures();
  known.addArrivals([{ id: "100510-0" }, { id: "100510-1" }, { id: "100430-0" }], 0, 100_020);
  known.tick(0);
  assert.deepEqual([known.series.p50, known.series.p99], [[10], [90]]);
});

test("replayed entries have no latency", () => {
  const measures = makeMeasures();
  measures.addArrivals([{ id: "100499-0" }], 100_000, 100_030);
  measures.tick(0);
  assert.deepEqual(measures.series.p50, [null]);
  measures.addArrivals([{ id: "100500-0" }], 100_000, 100_030);
  measures.tick(0);
  assert.deepEqual(measures.series.p50, [null, 30]);
});

test("IDs that are not times have no latency", () => {
  const measures = makeMeasures();
  measures.addArrivals([{ id: "5-1" }, { id: "18446744073709551615-18446744073709551615" }], 0, 100_030);
  measures.tick(0);
  assert.deepEqual(measures.series.p99, [null]);
});

test("the better reading of the clock counts, until it is old", () => {
  const measures = makeMeasures();
  measures.setClock(300_000, 200_000, 200_100);
  assert.equal(measures.offsetMs, 500);
  for (let n = 0; n < 100; n += 1) measures.setClock(300_050, 200_000, 200_100);
  assert.equal(measures.offsetMs, 100_000);
});

test("the highest known lag, and the lag of each group over time", () => {
  const measures = makeMeasures();
  measures.tick(1_000);
  measures.setLags([{ name: "a", lag: 3 }, { name: "b", lag: null }]);
  measures.tick(2_000);
  assert.equal(measures.lag, 3);
  measures.setLags([{ name: "b", lag: 7 }]);
  measures.tick(3_000);
  assert.deepEqual(measures.series.lag, [null, 3, 7]);
  assert.deepEqual([...measures.lagSeries], [["a", [null, 3, null]], ["b", [null, null, 7]]]);
  assert.deepEqual(measures.series.times, [1, 2, 3]);
});

test("all series keep five minutes; a deleted group leaves the chart with its last value", () => {
  const measures = makeMeasures();
  measures.setLags([{ name: "a", lag: 1 }]);
  measures.tick(0);
  measures.setLags([{ name: "b", lag: 2 }]);
  for (let n = 1; n < SECONDS_MAX; n += 1) measures.tick(n * 1_000);
  assert.deepEqual([...measures.lagSeries.keys()], ["a", "b"]);
  measures.tick(SECONDS_MAX * 1_000);
  assert.deepEqual([...measures.lagSeries.keys()], ["b"]);
  for (const list of [...Object.values(measures.series), ...measures.lagSeries.values()]) assert.equal(list.length, SECONDS_MAX);
  assert.equal(measures.series.times[0], 1);
});

test("of very many latencies a sample is kept", () => {
  const measures = makeMeasures();
  measures.addArrivals(Array.from({ length: 5_000 }, (_, n) => ({ id: `100500-${n}` })), 0, 100_030);
  assert.equal(measures.samples.length, 1_000);
  assert.equal(measures.sampledCount, 5_000);
});
