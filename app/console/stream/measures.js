/*
 * What is measured of the stream in sight, second by second: rate, lag, latency.
 *
 * Knows: counters, clocks, samples. Must never know: elements, how it is drawn.
 */

import { idMs } from "../shared/entry.js";
import { Rate } from "../shared/rate.js";

/** @typedef {{at: number[], rate: (number | null)[], lag: (number | null)[], p50: (number | null)[],
 *   p99: (number | null)[]}} Series */

export const SECONDS_MAX = 300;
const SAMPLES_MAX = 1_000;
// An ID that is further from now was not given by the gateway's clock, or came from history.
const LATENCY_MS_MAX = 60_000;

export class Measures {
  constructor() {
    /** @type {Series} */
    this.series = { at: [], rate: [], lag: [], p50: [], p99: [] };
    /** The gateway's clock minus this machine's, and how well that is known: half a round trip. */
    this.offsetMs = 0;
    this.offsetErrorMs = Number.POSITIVE_INFINITY;
    /** @type {number[]} */
    this.samples = [];
    this.rate = new Rate();
    /** The lag of each group now. @type {Map<string, number | null>} */
    this.lagNow = new Map();
    /** The lag of each group, as long as `series`. @type {Map<string, (number | null)[]>} */
    this.lagSeries = new Map();
    this.seen = 0;
  }

  reset() {
    for (const list of Object.values(this.series)) list.length = 0;
    this.samples = [];
    this.rate = new Rate();
    this.lagNow.clear();
    this.lagSeries.clear();
    this.seen = 0;
  }

  /** What the gateway's clock showed between two moments of ours. @param {number} gatewayMs @param {number} sentMs
   * @param {number} gotMs */
  clock(gatewayMs, sentMs, gotMs) {
    // The clocks count whole milliseconds.
    const errorMs = (gotMs - sentMs) / 2 + 1;
    if (errorMs > this.offsetErrorMs) {
      // An old measurement gets worse as clocks drift.
      this.offsetErrorMs *= 1.05;
      return;
    }
    this.offsetErrorMs = errorMs;
    this.offsetMs = gatewayMs - (sentMs + gotMs) / 2;
  }

  /**
   * Entries that were pushed just now.
   * @param {{id: string}[]} entries
   * @param {number} openSinceMs since when, by our clock, nothing waits for this page: what was published before was
   *   replayed, and says nothing of latency
   * @param {number} ourMs now
   */
  arrived(entries, openSinceMs, ourMs) {
    // Before the gateway's clock was asked for, a difference of clocks would show as latency.
    if (!Number.isFinite(this.offsetErrorMs)) return;
    const nowMs = ourMs + this.offsetMs;
    for (const { id } of entries) {
      const publishedMs = idMs(id);
      const ms = nowMs - publishedMs;
      if (publishedMs < openSinceMs + this.offsetMs || Math.abs(ms) > LATENCY_MS_MAX) continue;
      this.seen += 1;
      if (this.samples.length < SAMPLES_MAX) this.samples.push(Math.max(0, ms));
      else {
        // A fair choice of all that came in this second.
        const place = Math.floor(Math.random() * this.seen);
        if (place < SAMPLES_MAX) this.samples[place] = Math.max(0, ms);
      }
    }
  }

  /** @param {{name: string, lag: number | null}[]} groups as they are now */
  lags(groups) {
    this.lagNow = new Map(groups.map(({ name, lag }) => [name, lag]));
  }

  /** The worst of all groups. */
  get lag() {
    const known = [...this.lagNow.values()].filter((lag) => lag !== null);
    return known.length === 0 ? null : Math.max(...known);
  }

  /** A second is over. @param {number} atMs */
  tick(atMs) {
    const sorted = [...this.samples].sort((a, b) => a - b);
    /** @param {number} share */
    const at = (share) => (sorted.length === 0 ? null : sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? null);
    const { series } = this;
    series.at.push(atMs / 1000);
    series.rate.push(this.rate.perSecond);
    series.lag.push(this.lag);
    series.p50.push(at(0.5));
    series.p99.push(at(0.99));
    this.samples = [];
    this.seen = 0;
    for (const list of Object.values(series)) if (list.length > SECONDS_MAX) list.shift();
    this.tickLags(series.at.length);
  }

  /** @param {number} length of all series now */
  tickLags(length) {
    for (const name of this.lagNow.keys()) {
      if (!this.lagSeries.has(name)) this.lagSeries.set(name, new Array(length - 1).fill(null));
    }
    for (const [name, lags] of this.lagSeries) {
      lags.push(this.lagNow.get(name) ?? null);
      if (lags.length > length) lags.shift();
      // Of a group that is deleted, the line ends; it goes when all of it is out of sight.
      if (lags.every((lag) => lag === null) && !this.lagNow.has(name)) this.lagSeries.delete(name);
    }
  }
}
