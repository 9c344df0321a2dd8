/*
 * What is measured of the stream in sight, second by second: rate, lag, latency.
 *
 * Knows: counters, clocks, samples. Must never know: elements, how it is drawn.
 */

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
    /** @type {number | null} */
    this.rate = null;
    /** @type {number | null} */
    this.lag = null;
    /** @type {{added: number, atMs: number, generation: string} | null} */
    this.counted = null;
    this.seen = 0;
  }

  reset() {
    for (const list of Object.values(this.series)) list.length = 0;
    this.samples = [];
    this.rate = this.lag = this.counted = null;
    this.seen = 0;
  }

  /** What the gateway's clock showed between two moments of ours. @param {number} gatewayMs @param {number} sentMs
   * @param {number} gotMs */
  clock(gatewayMs, sentMs, gotMs) {
    const errorMs = (gotMs - sentMs) / 2;
    if (errorMs > this.offsetErrorMs) {
      // An old measurement gets worse as clocks drift.
      this.offsetErrorMs *= 1.05;
      return;
    }
    this.offsetErrorMs = errorMs;
    this.offsetMs = gatewayMs - (sentMs + gotMs) / 2;
  }

  /** Entries that were pushed just now. @param {{id: string}[]} entries */
  arrived(entries) {
    const nowMs = performance.timeOrigin + performance.now() + this.offsetMs;
    for (const { id } of entries) {
      const ms = nowMs - Number(id.slice(0, id.indexOf("-")));
      if (Math.abs(ms) > LATENCY_MS_MAX) continue;
      this.seen += 1;
      if (this.samples.length < SAMPLES_MAX) this.samples.push(Math.max(0, ms));
      else {
        // A fair choice of all that came in this second.
        const place = Math.floor(Math.random() * this.seen);
        if (place < SAMPLES_MAX) this.samples[place] = Math.max(0, ms);
      }
    }
  }

  /** @param {{entries_added: number, generation: string}} stream @param {number} atMs */
  counter(stream, atMs) {
    const { counted } = this;
    if (counted !== null && counted.generation === stream.generation && atMs > counted.atMs) {
      this.rate = (Math.max(0, stream.entries_added - counted.added) * 1000) / (atMs - counted.atMs);
    }
    this.counted = { added: stream.entries_added, atMs, generation: stream.generation };
  }

  /** @param {(number | null)[]} lags of all groups: the worst counts */
  lags(lags) {
    const known = lags.filter((lag) => lag !== null);
    this.lag = known.length === 0 ? null : Math.max(...known);
  }

  /** A second is over. @param {number} atMs */
  tick(atMs) {
    const sorted = [...this.samples].sort((a, b) => a - b);
    /** @param {number} share */
    const at = (share) => (sorted.length === 0 ? null : sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? null);
    const { series } = this;
    series.at.push(atMs / 1000);
    series.rate.push(this.rate);
    series.lag.push(this.lag);
    series.p50.push(at(0.5));
    series.p99.push(at(0.99));
    this.samples = [];
    this.seen = 0;
    for (const list of Object.values(series)) if (list.length > SECONDS_MAX) list.shift();
  }
}
