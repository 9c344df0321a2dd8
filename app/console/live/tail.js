/*
 * A stream as it is looked at: live, held still, or at some place in its past; history joins live at a cursor.
 *
 * Knows: pages, the connection, rows, credit. Must never know: elements.
 *
 * Credit is given back when rows have been taken up, which happens when the browser draws. A page that is held still,
 * or a tab that nobody sees, therefore takes at most the credit that is out; everything else waits in the stream.
 */

import * as api from "../shared/api.js";
import { compareIds } from "../shared/entry.js";
import { duration, plural } from "../shared/format.js";
import { CHARS_MAX, ROWS_MAX, Rows, entryRow, notice } from "./rows.js";

/** @typedef {import("../shared/api.js").Entry} Entry */
/** @typedef {import("./rows.js").Row} Row */
/** @typedef {"loading" | "live" | "held" | "past"} Mode */

export const PAGE_COUNT = 500;
const CREDIT_START = 500;
const CREDIT_MAX = 4_000;
// What may be under way to the page, by the size of the entries seen so far.
const FLIGHT_CHARS_MAX = 8 << 20;

/** Fires `rows` when rows were added or replaced, `mode` when it is another, `arrived` with entries that are new. */
export class Tail extends EventTarget {
  /** @param {import("../shared/connection.js").Connection} connection */
  constructor(connection) {
    super();
    this.connection = connection;
    this.stream = "";
    /** @type {Mode} */
    this.mode = "loading";
    this.rows = new Rows();
    this.shown = new Rows();
    /** @type {import("./filter.js").Test | null} */
    this.test = null;
    /** @type {import("../shared/connection.js").Following | null} */
    this.following = null;
    /** @type {Row[]} */
    this.inbox = [];
    this.taken = 0;
    this.total = 0;
    this.charsMean = 200;
    this.caughtUp = false;
    this.starved = false;
    this.since = 0;
    this.error = "";
    this.atStart = false;
    this.atEnd = false;
    this.drawing = 0;
    // A page that was asked for before another stream was opened is nobody's when it comes.
    this.opened = 0;
  }

  /** @param {string} stream */
  async open(stream) {
    this.close();
    this.stream = stream;
    await this.toLive();
  }

  close() {
    this.opened += 1;
    this.following?.stop();
    this.following = null;
    this.inbox = [];
    this.taken = 0;
    this.total = 0;
    this.rows.clear();
    this.shown.clear();
    this.error = "";
    this.become("loading");
  }

  /** The newest entries, then what comes. */
  async toLive() {
    const seen = firstId(this.rows, true);
    const page = await this.load({ last: PAGE_COUNT });
    if (page === null) return;
    const first = page.entries[0]?.id;
    if (seen !== null && first !== undefined && compareIds(seen, first) < 0) {
      const skipped = notice("info", `What lies between ${seen} and ${first} was skipped.`);
      this.rows.unshift([skipped]);
      this.shown.unshift([skipped]);
      this.dispatchEvent(new Event("rows"));
    }
    this.atStart = page.entries.length < PAGE_COUNT;
    // An empty stream answers with the place from which everything is new.
    this.follow(page.next ?? "0-0");
  }

  /** @param {string} id the smallest that is wanted */
  async jump(id) {
    const page = await this.load({ start: id, count: PAGE_COUNT });
    if (page === null) return;
    this.atStart = false;
    this.atEnd = !page.more;
    this.become("past");
  }

  /** Replace all rows by a page of history. @param {Record<string, string | number | boolean>} range */
  async load(range) {
    this.close();
    const { opened } = this;
    try {
      const page = await api.entries(this.stream, range);
      if (opened !== this.opened) return null;
      this.takePage(page);
      return page;
    } catch (error) {
      if (opened !== this.opened) return null;
      this.error = String(error instanceof Error ? error.message : error);
      this.dispatchEvent(new Event("rows"));
      return null;
    }
  }

  /** @param {import("../shared/api.js").Page} page */
  takePage(page) {
    if (page.gap) this.add(gapNotice(page.gap));
    for (const entry of page.entries) this.add(entryRow(entry, sizeOf(entry)));
    this.dispatchEvent(new Event("rows"));
  }

  /** What comes before the first row; the past only, for what is live moves on by itself. */
  async older() {
    const first = firstId(this.rows, false);
    if (first === null || this.atStart || this.mode === "live" || !this.hasRoom(first)) return;
    const { opened } = this;
    const page = await api.entries(this.stream, { reverse: true, end: `(${first}`, count: PAGE_COUNT });
    if (opened !== this.opened || first !== firstId(this.rows, false)) return;
    this.atStart = !page.more;
    const rows = page.entries.reverse().map((entry) => entryRow(entry, sizeOf(entry)));
    if (this.mode === "past" && this.rows.length + rows.length > this.rows.slots.length) this.atEnd = false;
    this.rows.unshift(rows);
    const wanted = rows.filter((row) => this.test === null || this.test(row.entry));
    this.shown.unshift(wanted);
    this.dispatchEvent(new CustomEvent("rows", { detail: { before: wanted.length } }));
  }

  /** Whether older rows may come in: not where the newest would have to go, or where a filter kept older ones.
   * @param {string} first */
  hasRoom(first) {
    const kept = firstId(this.shown, false);
    if (kept !== null && compareIds(kept, first) < 0) return false;
    return this.mode === "past" || (this.rows.length + PAGE_COUNT <= ROWS_MAX && this.rows.chars < CHARS_MAX / 2);
  }

  /** What comes after the last row; at the present it goes on live. */
  async newer() {
    const last = firstId(this.rows, true);
    if (last === null || this.mode !== "past") return;
    const { opened } = this;
    const page = await api.entries(this.stream, { after: last, count: PAGE_COUNT });
    if (opened !== this.opened || last !== firstId(this.rows, true)) return;
    this.atEnd = !page.more;
    if (page.entries.length > 0) this.atStart = false;
    this.takePage(page);
  }

  /** @param {string} after */
  follow(after) {
    this.caughtUp = false;
    this.starved = false;
    this.become("live");
    this.following = this.connection.follow(this.stream, after, CREDIT_START, {
      entries: (entries, chars) => this.receive(entries, chars),
      gap: (gap) => this.tell(gapNotice(gap)),
      caughtUp: () => {
        this.caughtUp = true;
        this.starved = false;
        this.dispatchEvent(new Event("mode"));
      },
      paused: () => {
        this.starved = true;
      },
      revoked: (reason) => this.revoked(reason),
      resumed: (cursor, awayMs) => {
        this.caughtUp = false;
        this.tell(notice("good", `Connected again after ${duration(awayMs)}: goes on after ${cursor}, nothing is missed.`));
      },
      failed: (problem) => this.tell(notice("gap", `The gateway refused to follow this stream: ${problem}`)),
    });
  }

  /** @param {string} reason */
  revoked(reason) {
    this.following = null;
    const text = reason === "stream_deleted" ? "The stream was deleted." : `The gateway ended this: ${reason}.`;
    this.tell(notice("gap", text));
  }

  /** Another stream of the same name has taken the place of this one: its entries start anew. */
  recreated() {
    const { mode } = this;
    if (mode === "past" || mode === "loading") return;
    this.following?.stop();
    this.tell(notice("gap", "The stream was deleted and made anew: what follows is another one, from its beginning."));
    this.follow("0-0");
    if (mode === "held") this.become("held");
  }

  /** @param {Entry[]} entries @param {number} chars */
  receive(entries, chars) {
    const each = Math.ceil(chars / Math.max(1, entries.length));
    this.charsMean = 0.9 * this.charsMean + 0.1 * each;
    for (const entry of entries) this.inbox.push(entryRow(entry, each));
    this.total += entries.length;
    this.dispatchEvent(new CustomEvent("arrived", { detail: { entries, live: this.caughtUp, openSinceMs: this.following?.openSinceMs } }));
    this.schedule();
  }

  /** @param {Row} row */
  tell(row) {
    this.inbox.push(row);
    this.dispatchEvent(new CustomEvent("told", { detail: row }));
    this.schedule();
  }

  schedule() {
    if (this.drawing === 0) this.drawing = requestAnimationFrame(() => this.draw());
  }

  /** Once a frame: take up what has come, give its credit back. */
  draw() {
    this.drawing = 0;
    if (this.mode === "held" || this.mode === "past" || this.inbox.length === 0) return;
    const rows = this.inbox;
    this.inbox = [];
    for (const row of rows) this.add(row);
    this.starved = false;
    this.refill();
    this.dispatchEvent(new Event("rows"));
  }

  refill() {
    if (this.following === null) return;
    const wanted = Math.max(20, Math.min(CREDIT_MAX, Math.floor(FLIGHT_CHARS_MAX / this.charsMean)));
    const missing = wanted - this.following.credit;
    // In portions: not a frame for every few entries.
    if (missing >= wanted / 4) this.following.grant(missing);
  }

  /** @param {Row} row */
  add(row) {
    this.rows.push(row);
    if (this.test === null || row.kind === "notice" || this.test(row.entry)) this.shown.push(row);
  }

  /** @param {import("./filter.js").Test | null} test */
  filter(test) {
    this.test = test;
    this.shown.clear();
    for (const row of this.rows) {
      if (test === null || row.kind === "notice" || test(row.entry)) this.shown.push(row);
    }
    this.dispatchEvent(new CustomEvent("rows", { detail: { refiltered: true } }));
  }

  hold() {
    if (this.mode !== "live") return;
    this.since = Date.now();
    this.become("held");
  }

  /** Go on where it was held: nothing is left out. */
  release() {
    if (this.mode !== "held") return;
    this.become("live");
    this.schedule();
  }

  /** Entries that came while it is held; more may wait in the stream. */
  get waiting() {
    return this.inbox.filter((row) => row.kind === "entry").length;
  }

  /** @param {Mode} mode */
  become(mode) {
    if (mode === this.mode) return;
    this.mode = mode;
    this.dispatchEvent(new Event("mode"));
  }

  /** Take entries that were deleted here out of sight. @param {string} id */
  removed(id) {
    for (const row of this.rows) if (row.kind === "entry" && row.id === id) row.entry = { ...row.entry, fields: null };
    this.dispatchEvent(new Event("rows"));
  }

  /** The IDs that are shown, for charts and captions. */
  get span() {
    const first = firstId(this.rows, false);
    const last = firstId(this.rows, true);
    return first === null || last === null || compareIds(first, last) > 0 ? null : { first, last };
  }
}

/** @param {Rows} rows @param {boolean} backwards */
function firstId(rows, backwards) {
  for (let i = 0; i < rows.length; i += 1) {
    const row = rows.at(backwards ? rows.length - 1 - i : i);
    if (row?.kind === "entry") return row.id;
  }
  return null;
}

/** @param {Entry} entry about as many characters as it has */
function sizeOf(entry) {
  let chars = 60;
  for (const [name, value] of entry.pairs ?? Object.entries(entry.fields ?? {})) chars += name.length + value.length + 6;
  return chars;
}

/** @param {import("../shared/api.js").Gap} gap */
function gapNotice(gap) {
  const lost = gap.lost === null || gap.lost === undefined ? "Entries were" : `${plural(gap.lost, "entry", "entries")} ${gap.lost === 1 ? "was" : "were"}`;
  return notice("gap", `Gap: ${lost} removed before ${gap.first_available} and could not be read.`);
}

