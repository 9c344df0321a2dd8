/*
 * The rows in memory: a ring buffer, limited in rows and in characters, so that a page can run for weeks.
 *
 * Knows: rows. Must never know: elements, where rows come from.
 */

import { idMs } from "../shared/entry.js";

/** @typedef {import("../shared/api.js").Entry} Entry */
/** @typedef {{kind: "entry", id: string, ms: number, entry: Entry, chars: number}} EntryRow */
/** @typedef {{kind: "notice", tone: "gap" | "info" | "good", text: string, chars: number}} NoticeRow */
/** @typedef {EntryRow | NoticeRow} Row */

export const ROWS_MAX = 10_000;
export const CHARS_MAX = 32 << 20;

/** @param {Entry} entry @param {number} chars @returns {EntryRow} */
export const makeEntryRow = (entry, chars) => ({
  kind: "entry",
  id: entry.id,
  ms: idMs(entry.id),
  entry,
  chars,
});

/** @param {"gap" | "info" | "good"} tone @param {string} text @returns {NoticeRow} */
export const makeNotice = (tone, text) => ({ kind: "notice", tone, text, chars: text.length });

export class Rows {
  /** @param {number} [rowsMax] @param {number} [charsMax] */
  constructor(rowsMax = ROWS_MAX, charsMax = CHARS_MAX) {
    /** @type {(Row | undefined)[]} */
    this.slots = new Array(rowsMax);
    this.charsMax = charsMax;
    this.start = 0;
    this.length = 0;
    this.chars = 0;
    /** How many rows have left at the front: row `i` has the number `dropped + i` among all rows ever. */
    this.dropped = 0;
  }

  /** @param {number} i @returns {Row | undefined} */
  at(i) {
    return i < 0 || i >= this.length ? undefined : this.slots[(this.start + i) % this.slots.length];
  }

  /** A single row fits, even if it is larger than the limit. @param {Row} row */
  hasRoomFor(row) {
    return this.length === 0 || (this.length < this.slots.length && this.chars + row.chars <= this.charsMax);
  }

  /** @param {Row} row */
  push(row) {
    while (!this.hasRoomFor(row)) this.shift();
    this.slots[(this.start + this.length) % this.slots.length] = row;
    this.length += 1;
    this.chars += row.chars;
  }

  /** Insert rows at the front; rows beyond the limits leave at the end. @param {Row[]} rows */
  unshift(rows) {
    for (const row of [...rows].reverse()) {
      while (!this.hasRoomFor(row)) this.pop();
      this.start = (this.start + this.slots.length - 1) % this.slots.length;
      this.slots[this.start] = row;
      this.length += 1;
      this.chars += row.chars;
      this.dropped -= 1;
    }
  }

  shift() {
    this.chars -= this.at(0)?.chars ?? 0;
    this.slots[this.start] = undefined;
    this.start = (this.start + 1) % this.slots.length;
    this.length -= 1;
    this.dropped += 1;
  }

  pop() {
    const last = (this.start + this.length - 1) % this.slots.length;
    this.chars -= this.slots[last]?.chars ?? 0;
    this.slots[last] = undefined;
    this.length -= 1;
  }

  clear() {
    this.slots.fill(undefined);
    this.dropped += this.length;
    this.start = this.length = this.chars = 0;
  }

  /** @param {(row: Row) => boolean} test @returns {number} -1 for none */
  findIndex(test) {
    let i = 0;
    for (const row of this) {
      if (test(row)) return i;
      i += 1;
    }
    return -1;
  }

  /** The entries among the rows, without deleted ones. @returns {Entry[]} */
  entries() {
    return [...this].flatMap((row) => (row.kind === "entry" && row.entry.fields !== null ? [row.entry] : []));
  }

  /** @returns {Generator<Row>} */
  *[Symbol.iterator]() {
    for (let i = 0; i < this.length; i += 1) {
      const row = this.at(i);
      if (row !== undefined) yield row;
    }
  }
}
