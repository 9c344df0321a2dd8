/*
 * All streams of the gateway, read page by page, with the rate of each.
 *
 * Knows: pages of the list, counters. Must never know: elements, which streams are shown.
 */

import * as api from "./api.js";
import { Rate } from "./rate.js";

/** @typedef {import("./api.js").Stream} Stream */
/** @typedef {{name: string, stream: Stream, rate: number | null}} CatalogueItem */

const PAGE_STREAMS = 200;
// Up to here names are searched in the page; beyond it a search also asks the gateway for a prefix.
export const STREAMS_MAX = 5_000;
// A list of many pages is read less often: this much longer for each page after the first.
const PAGE_MS = 1_000;

/** Fires `change` when the items are replaced. */
export class Catalogue extends EventTarget {
  constructor() {
    super();
    /** Ordered by name. @type {CatalogueItem[]} */
    this.items = [];
    this.isComplete = false;
    /** When the list was last read to its end, NaN for never. */
    this.readAtMs = Number.NaN;
    /** @type {Map<string, Rate>} */
    this.rates = new Map();
    this.nextReadAtMs = 0;
    this.isReading = false;
  }

  /** Read the list again if it is due, or now. */
  async refresh(now = false) {
    if (this.isReading || (!now && performance.now() < this.nextReadAtMs)) return;
    this.isReading = true;
    try {
      await this.read();
    } finally {
      this.isReading = false;
    }
  }

  async read() {
    /** @type {CatalogueItem[]} */
    const items = [];
    /** @type {string | null} */
    let next = "";
    let pages = 0;
    do {
      const sentMs = performance.now();
      const page = /** @type {{streams: Stream[], next: string | null}} */ (await api.listStreams({ after: next, limit: PAGE_STREAMS }));
      items.push(...this.measure(page.streams, sentMs));
      ({ next } = page);
      pages += 1;
      // The first time, each page is shown as it comes.
      if (Number.isNaN(this.readAtMs)) this.publish([...items], next === null);
    } while (next !== null && items.length < STREAMS_MAX);
    this.readAtMs = performance.now();
    this.nextReadAtMs = this.readAtMs + (pages - 1) * PAGE_MS;
    const names = new Set(items.map(({ name }) => name));
    for (const name of this.rates.keys()) if (!names.has(name)) this.rates.delete(name);
    this.publish(items, next === null);
  }

  /** Streams whose name begins with a prefix, also those beyond the end of the list. @param {string} prefix */
  async findByPrefix(prefix) {
    const sentMs = performance.now();
    const { streams } = await api.listStreams({ prefix, limit: PAGE_STREAMS });
    return this.measure(streams, sentMs);
  }

  /** @param {Stream[]} streams @param {number} sentMs @returns {CatalogueItem[]} */
  measure(streams, sentMs) {
    const receivedMs = performance.now();
    return streams.map((stream) => {
      const rate = this.rates.get(stream.name) ?? new Rate();
      this.rates.set(stream.name, rate);
      return { name: stream.name, stream, rate: rate.read(stream, sentMs, receivedMs) };
    });
  }

  /** @param {string} name @returns {number | null} null for a stream that is not listed */
  lengthOf(name) {
    return this.items.find((item) => item.name === name)?.stream.length ?? null;
  }

  /** @param {CatalogueItem[]} items @param {boolean} isComplete */
  publish(items, isComplete) {
    this.items = items;
    this.isComplete = isComplete;
    this.dispatchEvent(new Event("change"));
  }
}

/** The rates of several streams together. @param {CatalogueItem[]} items @returns {number | null} null for unknown */
export function sumRates(items) {
  const known = items.filter(({ rate }) => rate !== null);
  return known.length === 0 ? null : known.reduce((sum, { rate }) => sum + (rate ?? 0), 0);
}
