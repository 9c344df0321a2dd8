/*
 * All streams of the gateway, page by page, with the rate of each.
 *
 * Knows: pages of the list, counters. Must never know: elements, which streams are shown.
 */

import * as api from "./api.js";
import { Rate } from "./rate.js";

/** @typedef {import("./api.js").Stream} Stream */
/** @typedef {{name: string, stream: Stream, rate: number | null}} Line */

const PAGE_STREAMS = 200;
// Names are searched here; beyond this many a search asks the gateway for a prefix as well.
export const STREAMS_MAX = 5_000;
// A long list is asked for less often: so much for each of its pages.
const PAGE_MS = 1_000;

/** Fires `changed` when the lines are others. */
export class Catalogue extends EventTarget {
  constructor() {
    super();
    /** In the order of their names. @type {Line[]} */
    this.lines = [];
    this.isComplete = false;
    /** When `lines` was last read to its end, NaN for never. */
    this.readAtMs = Number.NaN;
    /** @type {Map<string, Rate>} */
    this.rates = new Map();
    this.nextAtMs = 0;
    this.isReading = false;
  }

  /** Read the list again, where it is time to. */
  async refresh(now = false) {
    if (this.isReading || (!now && performance.now() < this.nextAtMs)) return;
    this.isReading = true;
    try {
      await this.read();
    } finally {
      this.isReading = false;
    }
  }

  async read() {
    /** @type {Line[]} */
    const lines = [];
    /** @type {string | null} */
    let next = "";
    let pages = 0;
    do {
      const sentMs = performance.now();
      const page = /** @type {{streams: Stream[], next: string | null}} */ (await api.streams({ after: next, limit: PAGE_STREAMS }));
      lines.push(...this.measure(page.streams, sentMs));
      ({ next } = page);
      pages += 1;
      if (Number.isNaN(this.readAtMs)) this.show([...lines], next === null);
    } while (next !== null && lines.length < STREAMS_MAX);
    this.readAtMs = performance.now();
    this.nextAtMs = this.readAtMs + (pages - 1) * PAGE_MS;
    const there = new Set(lines.map(({ name }) => name));
    for (const name of this.rates.keys()) if (!there.has(name)) this.rates.delete(name);
    this.show(lines, next === null);
  }

  /** Streams that begin so, though the list does not reach to them. @param {string} prefix */
  async beginningWith(prefix) {
    const sentMs = performance.now();
    const { streams } = await api.streams({ prefix, limit: PAGE_STREAMS });
    return this.measure(streams, sentMs);
  }

  /** @param {Stream[]} streams @param {number} sentMs @returns {Line[]} */
  measure(streams, sentMs) {
    const gotMs = performance.now();
    return streams.map((stream) => {
      const rate = this.rates.get(stream.name) ?? new Rate();
      this.rates.set(stream.name, rate);
      return { name: stream.name, stream, rate: rate.read(stream, sentMs, gotMs) };
    });
  }

  /** @param {Line[]} lines @param {boolean} isComplete */
  show(lines, isComplete) {
    this.lines = lines;
    this.isComplete = isComplete;
    this.dispatchEvent(new Event("changed"));
  }
}
