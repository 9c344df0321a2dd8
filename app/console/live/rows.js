/*
 * The rows that are kept: a ring, bounded in number and in characters, so that a page that runs for weeks does not grow.
 *
 * Knows: rows. Must never know: elements, where they come from.
 */

/** @typedef {import("../shared/api.js").Entry} Entry */
/** @typedef {{kind: "entry", id: string, ms: number, entry: Entry, chars: number}} EntryRow */
/** @typedef {{kind: "notice", tone: "gap" | "info" | "good", text: string, chars: number}} NoticeRow */
/** @typedef {EntryRow | NoticeRow} Row */

export const ROWS_MAX = 10_000;
export const CHARS_MAX = 32 << 20;

/** @param {Entry} entry @param {number} chars @returns {EntryRow} */
export const entryRow = (entry, chars) => ({
  kind: "entry",
  id: entry.id,
  ms: Number(entry.id.slice(0, entry.id.indexOf("-"))),
  entry,
  chars,
});

/** @param {"gap" | "info" | "good"} tone @param {string} text @returns {NoticeRow} */
export const notice = (tone, text) => ({ kind: "notice", tone, text, chars: text.length });

export class Rows {
  /** @param {number} [rowsMax] @param {number} [charsMax] */
  constructor(rowsMax = ROWS_MAX, charsMax = CHARS_MAX) {
    /** @type {(Row | undefined)[]} */
    this.slots = new Array(rowsMax);
    this.charsMax = charsMax;
    this.start = 0;
    this.length = 0;
    this.chars = 0;
    /** How many have gone at the front since the beginning: row `i` is the `dropped + i`th there ever was. */
    this.dropped = 0;
  }

  /** @param {number} i @returns {Row | undefined} */
  at(i) {
    return i < 0 || i >= this.length ? undefined : this.slots[(this.start + i) % this.slots.length];
  }

  /** @param {Row} row */
  push(row) {
    while (this.length === this.slots.length || (this.length > 0 && this.chars + row.chars > this.charsMax)) this.shift();
    this.slots[(this.start + this.length) % this.slots.length] = row;
    this.length += 1;
    this.chars += row.chars;
  }

  /** Rows that come before the others; what then is too much goes at the end. @param {Row[]} rows */
  unshift(rows) {
    for (const row of [...rows].reverse()) {
      while (this.length === this.slots.length || (this.length > 0 && this.chars + row.chars > this.charsMax)) this.pop();
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
    for (let i = 0; i < this.length; i += 1) {
      const row = this.at(i);
      if (row !== undefined && test(row)) return i;
    }
    return -1;
  }

  /** The entries among them, without those that were deleted. @returns {Entry[]} */
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
