/*
 * Measurements of the open stream, second by second: rate, lag, latency.
 *
 * Knows: counters, clocks, samples. Must never know: elements, how a chart is drawn.
 */

import { idMs } from "../shared/entry.js";
import { Rate } from "../shared/rate.js";

/** @typedef {{times: number[], rate: (number | null)[], lag: (number | null)[], p50: (number | null)[],
 *   p99: (number | null)[]}} Series */

export const SECONDS_MAX = 300;
const SAMPLES_MAX = 1_000;
// An ID further from now was not made by the gateway's clock, or belongs to an old entry.
const LATENCY_MS_MAX = 60_000;
// Each measurement of the clock that is not better makes the last one worth less, because clocks drift.
const CLOCK_DRIFT = 1.05;

export class Measures {
  constructor() {
    /** @type {Series} */
    this.series = { times: [], rate: [], lag: [], p50: [], p99: [] };
    /** The gateway's clock minus this machine's, and its uncertainty: half a round trip. */
    this.offsetMs = 0;
    this.offsetErrorMs = Number.POSITIVE_INFINITY;
    /** @type {number[]} */
    this.samples = [];
    this.sampledCount = 0;
    this.rate = new Rate();
    /** The current lag of each group. @type {Map<string, number | null>} */
    this.lagNow = new Map();
    /** The lag of each group, as long as `series`. @type {Map<string, (number | null)[]>} */
    this.lagSeries = new Map();
  }

  reset() {
    for (const list of Object.values(this.series)) list.length = 0;
    this.samples = [];
    this.sampledCount = 0;
    this.rate = new Rate();
    this.lagNow.clear();
    this.lagSeries.clear();
  }

  /** Take a reading of the gateway's clock. @param {number} gatewayMs @param {number} sentMs when the request was sent
   * @param {number} receivedMs when the response arrived, both by this machine's clock */
  setClock(gatewayMs, sentMs, receivedMs) {
    // The clocks count whole milliseconds.
    const errorMs = (receivedMs - sentMs) / 2 + 1;
    if (errorMs > this.offsetErrorMs) {
      this.offsetErrorMs *= CLOCK_DRIFT;
      return;
    }
    this.offsetErrorMs = errorMs;
    this.offsetMs = gatewayMs - (sentMs + receivedMs) / 2;
  }

  /**
   * Take the latency of entries that were pushed just now.
   * @param {{id: string}[]} entries
   * @param {number} openSinceMs since when, by this machine's clock, nothing waits for this page: older entries were
   *   replayed and have no latency
   * @param {number} receivedMs by this machine's clock
   */
  addArrivals(entries, openSinceMs, receivedMs) {
    // Without the gateway's clock a difference of the clocks would show as latency.
    if (!Number.isFinite(this.offsetErrorMs)) return;
    const nowMs = receivedMs + this.offsetMs;
    for (const { id } of entries) {
      const publishedMs = idMs(id);
      const latencyMs = nowMs - publishedMs;
      if (publishedMs < openSinceMs + this.offsetMs || Math.abs(latencyMs) > LATENCY_MS_MAX) continue;
      this.sampledCount += 1;
      // Above the limit a random sample of this second stays (reservoir sampling).
      const full = this.samples.length >= SAMPLES_MAX;
      const index = full ? Math.floor(Math.random() * this.sampledCount) : this.samples.length;
      if (index < SAMPLES_MAX) this.samples[index] = Math.max(0, latencyMs);
    }
  }

  /** @param {{name: string, lag: number | null}[]} groups as they are now */
  setLags(groups) {
    this.lagNow = new Map(groups.map(({ name, lag }) => [name, lag]));
  }

  /** The highest lag of all groups, null for unknown. */
  get lag() {
    const known = [...this.lagNow.values()].filter((lag) => lag !== null);
    return known.length === 0 ? null : Math.max(...known);
  }

  /** Called once a second. @param {number} nowMs */
  tick(nowMs) {
    const sorted = [...this.samples].sort((a, b) => a - b);
    /** @param {number} share */
    const percentile = (share) => (sorted.length === 0 ? null : sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? null);
    const { series } = this;
    series.times.push(nowMs / 1000);
    series.rate.push(this.rate.perSecond);
    series.lag.push(this.lag);
    series.p50.push(percentile(0.5));
    series.p99.push(percentile(0.99));
    this.samples = [];
    this.sampledCount = 0;
    for (const list of Object.values(series)) if (list.length > SECONDS_MAX) list.shift();
    this.tickLags(series.times.length);
  }

  /** @param {number} length of all series now */
  tickLags(length) {
    for (const name of this.lagNow.keys()) {
      if (!this.lagSeries.has(name)) this.lagSeries.set(name, new Array(length - 1).fill(null));
    }
    for (const [name, lags] of this.lagSeries) {
      lags.push(this.lagNow.get(name) ?? null);
      if (lags.length > length) lags.shift();
      // The line of a deleted group stays until all of it has left the chart.
      if (lags.every((lag) => lag === null) && !this.lagNow.has(name)) this.lagSeries.delete(name);
    }
  }
}
