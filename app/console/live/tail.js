/*
 * A stream as rows: live, paused, or at some point of its history. Pages of history join the live tail at a cursor.
 *
 * Knows: pages, the connection, rows, credit. Must never know: elements.
 *
 * Credit returns to the gateway when rows are added, and rows are added when the browser draws. A paused page or a
 * hidden tab therefore receives only the credit it has granted; all other entries wait in the stream.
 */

import * as api from "../shared/api.js";
import { compareIds, pairsOf } from "../shared/entry.js";
import { countEntries, formatDuration, formatError } from "../shared/format.js";
import { CHARS_MAX, ROWS_MAX, Rows, makeEntryRow, makeNotice } from "./rows.js";

/** @typedef {import("../shared/api.js").Entry} Entry */
/** @typedef {import("./rows.js").Row} Row */
/** @typedef {import("./filter.js").Test} Test */
/** @typedef {"loading" | "live" | "paused" | "history"} Mode */

export const PAGE_COUNT = 500;
const CREDIT_START = 500;
const CREDIT_MIN = 20;
const CREDIT_MAX = 4_000;
// What may be on its way to the page, by the mean size of the entries so far.
const FLIGHT_CHARS_MAX = 8 << 20;
const CHARS_MEAN_START = 200;
// Characters of JSON around an entry, and around each of its fields.
const ENTRY_CHARS = 60;
const FIELD_CHARS = 6;

/**
 * Fires `rows` when rows were added or replaced (with `before`, the rows inserted at the front, negative if rows left
 * there, or `refiltered`), `mode`
 * when the mode or the progress changes, `arrival` with new entries, `notice` with a notice row.
 */
export class Tail extends EventTarget {
  /** @param {import("../shared/connection.js").Connection} connection */
  constructor(connection) {
    super();
    this.connection = connection;
    this.stream = "";
    /** @type {Mode} */
    this.mode = "loading";
    /** All rows in memory. */
    this.rows = new Rows();
    /** Those that match the filter. */
    this.shown = new Rows();
    /** @type {Test | null} */
    this.test = null;
    /** @type {import("../shared/connection.js").Subscription | null} */
    this.subscription = null;
    /** Rows that wait for the next frame, or for the end of a pause. @type {Row[]} */
    this.incoming = [];
    this.receivedCount = 0;
    this.charsMean = CHARS_MEAN_START;
    this.isCaughtUp = false;
    // The credit is used up, and more entries wait in the stream.
    this.isOutOfCredit = false;
    this.pausedAtMs = 0;
    this.error = "";
    // What the stream's end says, once it is reached: no entry comes behind it.
    this.end = "";
    // Why no more rows could be loaded beside those shown.
    this.trouble = "";
    this.atStart = false;
    this.atEnd = false;
    this.frameRequest = 0;
    // Counts calls of `close`: a response to an earlier request is ignored.
    this.epoch = 0;
    /** The pages that are being read. @type {Set<string>} */
    this.underWay = new Set();
  }

  /** @param {string} stream */
  async open(stream) {
    this.close();
    this.stream = stream;
    await this.goLive();
  }

  close() {
    this.epoch += 1;
    this.subscription?.stop();
    this.subscription = null;
    this.incoming = [];
    this.receivedCount = 0;
    this.rows.clear();
    this.shown.clear();
    this.error = this.end = "";
    this.trouble = "";
    this.setMode("loading");
  }

  /** Load the newest entries, then follow. */
  async goLive() {
    const lastSeen = lastId(this.rows);
    const page = await this.load({ last: PAGE_COUNT, cursor: "generation" });
    if (page === null) return;
    const first = page.entries[0]?.id;
    if (lastSeen !== null && first !== undefined && compareIds(lastSeen, first) < 0) {
      const skipped = makeNotice("info", `Entries between ${lastSeen} and ${first} were skipped.`);
      this.rows.unshift([skipped]);
      this.shown.unshift([skipped]);
      this.dispatchEvent(new Event("rows"));
    }
    // A page of large entries has fewer than asked for.
    this.atStart = page.entries.length === 0;
    this.follow(page.next ?? "0-0");
  }

  /** @param {string} id the first entry at or after this ID is the first row */
  async jump(id) {
    const page = await this.load({ start: id, count: PAGE_COUNT });
    if (page === null) return;
    this.atStart = false;
    this.atEnd = !page.more;
    this.setMode("history");
  }

  /** Replace all rows by a page of history; null if it failed. @param {Record<string, string | number | boolean>} range */
  async load(range) {
    this.close();
    const { epoch } = this;
    try {
      const page = await api.listEntries(this.stream, range);
      if (epoch !== this.epoch) return null;
      this.addPage(page);
      return page;
    } catch (error) {
      if (epoch !== this.epoch) return null;
      this.error = formatError(error);
      this.dispatchEvent(new Event("rows"));
      return null;
    }
  }

  /** @param {import("../shared/api.js").Page} page */
  addPage(page) {
    const { dropped } = this.shown;
    if (page.gap) this.add(makeGapNotice(page.gap));
    for (const entry of page.entries) this.add(makeEntryRow(entry, estimateChars(entry)));
    this.dispatchEvent(new CustomEvent("rows", { detail: { before: dropped - this.shown.dropped } }));
  }

  /** Load entries before the first row, unless the tail is live. */
  async loadOlder() {
    const first = firstId(this.rows);
    if (first === null || this.atStart || this.mode === "live" || !this.hasRoomBefore(first)) return;
    const page = await this.fetchPage({ reverse: true, end: `(${first}`, count: PAGE_COUNT });
    if (page === null || first !== firstId(this.rows)) return;
    this.atStart = !page.more;
    const rows = page.entries.reverse().map((entry) => makeEntryRow(entry, estimateChars(entry)));
    if (this.mode === "history" && this.rows.length + rows.length > this.rows.slots.length) this.atEnd = false;
    this.rows.unshift(rows);
    const shown = rows.filter((row) => this.matches(row));
    this.shown.unshift(shown);
    this.dispatchEvent(new CustomEvent("rows", { detail: { before: shown.length } }));
  }

  /** A page of the history shown; null if it is under way already, if it failed, or if other rows are shown meanwhile.
   * @param {Record<string, string | number | boolean>} range */
  async fetchPage(range) {
    const { epoch, underWay } = this;
    const key = JSON.stringify(range);
    if (underWay.has(key)) return null;
    underWay.add(key);
    try {
      const page = await api.listEntries(this.stream, range);
      if (epoch !== this.epoch) return null;
      this.setTrouble("");
      return page;
    } catch (error) {
      if (epoch === this.epoch) this.setTrouble(formatError(error));
      return null;
    } finally {
      underWay.delete(key);
    }
  }

  /** Whether older rows fit: not if the newest would have to leave, or if the filter still keeps older rows.
   * @param {string} first */
  hasRoomBefore(first) {
    const firstShown = firstId(this.shown);
    if (firstShown !== null && compareIds(firstShown, first) < 0) return false;
    return this.mode === "history" || (this.rows.length + PAGE_COUNT <= ROWS_MAX && this.rows.chars < CHARS_MAX / 2);
  }

  /** Whether there may be older entries that do not fit beside the newest. */
  get isFull() {
    const first = firstId(this.rows);
    return first !== null && !this.atStart && !this.hasRoomBefore(first);
  }

  /** Load entries after the last row of history. */
  async loadNewer() {
    const last = lastId(this.rows);
    if (last === null || this.mode !== "history") return;
    const page = await this.fetchPage({ after: last, count: PAGE_COUNT });
    if (page === null || last !== lastId(this.rows)) return;
    this.atEnd = !page.more;
    if (page.entries.length > 0) this.atStart = false;
    this.addPage(page);
  }

  /** @param {string} after */
  follow(after) {
    this.isCaughtUp = false;
    this.isOutOfCredit = false;
    this.setMode("live");
    this.subscription = this.connection.subscribe(this.stream, after, CREDIT_START, {
      onEntries: (entries, chars) => this.receive(entries, chars),
      onGap: (gap) => this.notify(makeGapNotice(gap)),
      onCaughtUp: () => {
        this.isCaughtUp = true;
        this.isOutOfCredit = false;
        this.dispatchEvent(new Event("mode"));
      },
      onPaused: () => {
        this.isOutOfCredit = true;
      },
      onRevoked: (reason) => this.endSubscription(reason),
      onClosed: ({ last_id, reason }) => {
        this.subscription = null;
        this.end = `The stream ends behind ${last_id}${reason ? `: ${reason}` : ""}.`;
        this.dispatchEvent(new CustomEvent("notice", { detail: makeNotice("info", this.end) }));
        this.dispatchEvent(new Event("mode"));
      },
      onResumed: (cursor, awayMs) => {
        this.isCaughtUp = false;
        this.notify(makeNotice("good", `Reconnected after ${formatDuration(awayMs)}. Continues after ${cursor.split(".")[0]}; no entry was missed.`));
      },
      onError: (problem) => this.notify(makeNotice("gap", `The gateway refused to follow this stream: ${problem}`)),
    });
  }

  /** @param {string} reason */
  endSubscription(reason) {
    this.subscription = null;
    const text = reason === "stream_deleted" ? "The stream was deleted." : `The gateway ended the live tail: ${reason}.`;
    this.notify(makeNotice("gap", text));
  }

  /** @param {Entry[]} entries @param {number} chars */
  receive(entries, chars) {
    const charsEach = Math.ceil(chars / Math.max(1, entries.length));
    this.charsMean = 0.9 * this.charsMean + 0.1 * charsEach;
    for (const entry of entries) this.incoming.push(makeEntryRow(entry, charsEach));
    this.receivedCount += entries.length;
    this.dispatchEvent(new CustomEvent("arrival", { detail: { entries, isLive: this.isCaughtUp, openSinceMs: this.subscription?.openSinceMs } }));
    this.requestFrame();
  }

  /** @param {import("./rows.js").NoticeRow} notice */
  notify(notice) {
    this.incoming.push(notice);
    this.dispatchEvent(new CustomEvent("notice", { detail: notice }));
    this.requestFrame();
  }

  requestFrame() {
    if (this.frameRequest === 0) this.frameRequest = requestAnimationFrame(() => this.addIncoming());
  }

  /** Once a frame: add the rows that arrived, and grant credit for more. */
  addIncoming() {
    this.frameRequest = 0;
    if (this.mode === "paused" || this.mode === "history" || this.incoming.length === 0) return;
    const rows = this.incoming;
    this.incoming = [];
    for (const row of rows) this.add(row);
    this.isOutOfCredit = false;
    this.grantCredit();
    this.dispatchEvent(new Event("rows"));
  }

  grantCredit() {
    if (this.subscription === null) return;
    const target = Math.max(CREDIT_MIN, Math.min(CREDIT_MAX, Math.floor(FLIGHT_CHARS_MAX / this.charsMean)));
    const missing = target - this.subscription.credit;
    // In portions, not with a frame for every few entries.
    if (missing >= target / 4) this.subscription.grant(missing);
  }

  /** Notices match every filter. @param {Row} row */
  matches(row) {
    return this.test === null || row.kind === "notice" || this.test(row.entry);
  }

  /** @param {Row} row */
  add(row) {
    this.rows.push(row);
    if (this.matches(row)) this.shown.push(row);
  }

  /** @param {Test | null} test */
  filter(test) {
    this.test = test;
    this.shown.clear();
    for (const row of this.rows) if (this.matches(row)) this.shown.push(row);
    this.dispatchEvent(new CustomEvent("rows", { detail: { refiltered: true } }));
  }

  pause() {
    if (this.mode !== "live") return;
    this.pausedAtMs = Date.now();
    this.setMode("paused");
  }

  /** Continue after a pause, without leaving out an entry. */
  resume() {
    if (this.mode !== "paused") return;
    this.setMode("live");
    this.requestFrame();
  }

  /** The number of entries that arrived during the pause; more may wait in the stream. */
  get waitingCount() {
    return this.incoming.filter((row) => row.kind === "entry").length;
  }

  /** @param {Mode} mode */
  setMode(mode) {
    if (mode === this.mode) return;
    this.mode = mode;
    this.dispatchEvent(new Event("mode"));
  }

  /** @param {string} trouble */
  setTrouble(trouble) {
    if (trouble === this.trouble) return;
    this.trouble = trouble;
    this.dispatchEvent(new Event("mode"));
  }

  /** Show an entry as deleted. @param {string} id */
  markDeleted(id) {
    for (const row of this.rows) if (row.kind === "entry" && row.id === id) row.entry = { ...row.entry, fields: null };
    this.dispatchEvent(new Event("rows"));
  }
}

/** @param {Iterable<Row>} rows @returns {string | null} */
export function firstId(rows) {
  for (const row of rows) if (row.kind === "entry") return row.id;
  return null;
}

/** @param {Rows} rows @returns {string | null} */
export function lastId(rows) {
  for (let i = rows.length - 1; i >= 0; i -= 1) {
    const row = rows.at(i);
    if (row?.kind === "entry") return row.id;
  }
  return null;
}

/** @param {Entry} entry its size as JSON, estimated */
const estimateChars = (entry) =>
  pairsOf(entry).reduce((sum, [name, value]) => sum + name.length + value.length + FIELD_CHARS, ENTRY_CHARS);

/** What happened to the stream, by the reason of a gap. @type {Record<string, string>} */
const FATES = {
  deleted: "The stream was deleted. A new one of this name follows from its beginning.",
  expired: "The stream has expired. A new one of this name follows from its beginning.",
  replaced: "The stream was replaced by another one, which follows from its beginning.",
  recreated: "The stream was deleted and created again. The new stream follows from its beginning.",
  restored: "The stream was restored from an older state.",
  ahead: "The stream ends before the place that was read up to: entries were lost, or it is another stream.",
};

/** A reason that is not known here is a gap too. @param {import("../shared/api.js").Gap} gap */
function makeGapNotice({ lost, first_available: first, reason = "trimmed" }) {
  const fate = FATES[reason];
  if (fate !== undefined) return makeNotice("gap", `Gap: ${fate}`);
  const subject = lost === null || lost === undefined ? "Entries were" : `${countEntries(lost)} ${lost === 1 ? "was" : "were"}`;
  const end = reason === "trimmed" ? "removed" : `lost (${reason})`;
  return makeNotice("gap", `Gap: ${subject} ${end} before ${first} and could not be read.`);
}
