/*
 * The groups of all streams, read a few streams at a time, and which of them lag most.
 *
 * Knows: groups. Must never know: elements.
 */

import * as api from "../shared/api.js";

/** @typedef {import("../shared/api.js").Group & {stream: string}} StreamGroup */

// Streams that one round reads; the next round continues after them.
const ROUND_STREAMS = 40;
const CONCURRENT_REQUESTS = 4;
// An unknown lag sorts above no lag and below a lag of one.
const UNKNOWN_LAG = 0.5;

export class GroupLags {
  constructor() {
    /** By stream, those without readable groups included. @type {Map<string, StreamGroup[]>} */
    this.groups = new Map();
    this.nextIndex = 0;
  }

  /** Read the next few streams. @param {string[]} streams those that have groups */
  async refresh(streams) {
    const names = new Set(streams);
    for (const name of this.groups.keys()) if (!names.has(name)) this.groups.delete(name);
    const start = this.nextIndex < streams.length ? this.nextIndex : 0;
    const waiting = streams.slice(start, start + ROUND_STREAMS);
    this.nextIndex = start + waiting.length;
    const work = async () => {
      for (let name = waiting.shift(); name !== undefined; name = waiting.shift()) await this.read(name);
    };
    await Promise.all(Array.from({ length: CONCURRENT_REQUESTS }, work));
  }

  /** @param {string} stream */
  async read(stream) {
    try {
      const { groups } = await api.listGroups(stream);
      this.groups.set(stream, groups.map((group) => ({ ...group, stream })));
    } catch (error) {
      // The stream was deleted or may not be read. If the gateway is away, the last known groups stay.
      if (error instanceof api.ApiError && error.status >= 400 && error.status < 500) this.groups.set(stream, []);
    }
  }

  /** The streams that groups move dead letters to. */
  deadLetterStreams() {
    const groups = [...this.groups.values()].flat();
    return new Set(groups.flatMap(({ dead_letter: target }) => (target === null ? [] : [target.stream])));
  }

  /** The groups that lag most, the worst first. @param {number} countMax */
  worst(countMax) {
    const size = (/** @type {StreamGroup} */ { lag }) => lag ?? UNKNOWN_LAG;
    return [...this.groups.values()].flat().filter((group) => size(group) > 0 || group.pending > 0)
      .sort((a, b) => size(b) - size(a) || b.pending - a.pending).slice(0, countMax);
  }
}
