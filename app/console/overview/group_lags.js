/*
 * The groups of all streams, read a few streams at a time: which are furthest behind.
 *
 * Knows: groups. Must never know: elements.
 */

import * as api from "../shared/api.js";

/** @typedef {import("../shared/api.js").Group & {stream: string}} GroupOf */

// Streams that are asked in one round, and at once; the next round goes on where this one ends.
const ROUND_STREAMS = 40;
const AT_ONCE = 4;

export class Lags {
  constructor() {
    /** @type {Map<string, GroupOf[]>} */
    this.groups = new Map();
    this.next = 0;
  }

  /** Ask the next few. @param {string[]} streams those that have groups */
  async refresh(streams) {
    const there = new Set(streams);
    for (const name of this.groups.keys()) if (!there.has(name)) this.groups.delete(name);
    const from = this.next < streams.length ? this.next : 0;
    const round = streams.slice(from, from + ROUND_STREAMS);
    this.next = from + round.length;
    const waiting = [...round];
    const ask = async () => {
      for (let name = waiting.shift(); name !== undefined; name = waiting.shift()) await this.read(name);
    };
    await Promise.all(Array.from({ length: AT_ONCE }, ask));
  }

  /** @param {string} stream */
  async read(stream) {
    try {
      const { groups } = await api.groups(stream);
      this.groups.set(stream, groups.map((group) => ({ ...group, stream })));
    } catch (error) {
      // Deleted meanwhile, or not ours to read; a gateway that is away keeps what was known.
      if (error instanceof api.Refused && error.status >= 400 && error.status < 500) this.groups.delete(stream);
    }
  }

  /** The furthest behind first; a lag that is not known counts as more than none. @param {number} most */
  worst(most) {
    const size = (/** @type {GroupOf} */ { lag }) => lag ?? 0.5;
    return [...this.groups.values()].flat().filter((group) => size(group) > 0 || group.pending > 0)
      .sort((a, b) => size(b) - size(a) || b.pending - a.pending).slice(0, most);
  }
}
