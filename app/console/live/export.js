/*
 * Entries as text for other programs: NDJSON, CSV, curl commands.
 *
 * Knows: the three formats and their quoting. Must never know: elements, where entries come from.
 */

import { idMs, pairsOf } from "../shared/entry.js";

/** @typedef {import("../shared/api.js").Entry} Entry */

// Without a limit, entries with different field names would make a table with one column per entry.
const COLUMNS_MAX = 256;
// A spreadsheet runs a cell that begins like this as a formula. Plain numbers are harmless.
const FORMULA = /^[=+\-@\t\r\n]/;
const NUMBER = /^[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?$/i;

/** One JSON object per line, as the gateway exports them. @param {Iterable<Entry>} entries */
export const formatNdjson = (entries) => [...entries].map((entry) => `${JSON.stringify(entry)}\n`).join("");

/**
 * A table by RFC 4180: ID, time, encoding, then one column per field, in order of first appearance. A field that an
 * entry has twice gets a second column. Fields beyond the last column share one, as JSON.
 * @param {Iterable<Entry>} entries
 */
export function formatCsv(entries) {
  const columns = new Columns();
  const lines = [...entries].map((entry) => {
    const { cells, rest } = columns.assign(entry);
    return { start: [entry.id, formatIsoTime(entry.id), entry.encoding ?? ""], cells, rest };
  });
  const hasRest = lines.some(({ rest }) => rest !== "");
  const header = { start: ["id", "time", "encoding"], cells: columns.names, rest: "other fields" };
  return [header, ...lines]
    .map(({ start, cells, rest }) => [...start, ...Array.from(columns.names, (_, index) => cells[index] ?? ""), ...(hasRest ? [rest] : [])])
    .map((line) => `${line.map(quoteCell).join(",")}\r\n`)
    .join("");
}

class Columns {
  constructor() {
    /** @type {string[]} */
    this.names = [];
    /** @type {Map<string, number>} */
    this.known = new Map();
  }

  /** The entry's values by column, and the fields without a column as JSON. @param {Entry} entry */
  assign(entry) {
    /** @type {(string | undefined)[]} */
    const cells = [];
    /** @type {[string, string][]} */
    const rest = [];
    /** @type {Map<string, number>} */
    const seen = new Map();
    for (const [name, value] of pairsOf(entry)) {
      const occurrence = (seen.get(name) ?? 0) + 1;
      seen.set(name, occurrence);
      const column = this.columnOf(name, occurrence);
      if (column === null) rest.push([name, value]);
      else cells[column] = value;
    }
    return { cells, rest: rest.length === 0 ? "" : JSON.stringify(rest) };
  }

  /** @param {string} name @param {number} occurrence 1 for the first field of this name in an entry */
  columnOf(name, occurrence) {
    const key = `${occurrence} ${name}`;
    const found = this.known.get(key);
    if (found !== undefined) return found;
    if (this.names.length === COLUMNS_MAX) return null;
    this.known.set(key, this.names.length);
    this.names.push(occurrence === 1 ? name : `${name} (${occurrence})`);
    return this.names.length - 1;
  }
}

/** @param {string} id its time in ISO 8601, "" if the milliseconds are beyond the range of dates */
function formatIsoTime(id) {
  const at = new Date(idMs(id));
  return Number.isNaN(at.getTime()) ? "" : at.toISOString();
}

/** @param {string} text */
function quoteCell(text) {
  const harmless = FORMULA.test(text) && !NUMBER.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(harmless) ? `"${harmless.replaceAll('"', '""')}"` : harmless;
}

/** A command that reads an entry. @param {string} origin @param {string} stream @param {string} id */
export const formatCurlRead = (origin, stream, id) => `curl -s ${quoteWord(`${origin}${entriesPath(stream)}/${encodeURIComponent(id)}`)}`;

/** A command that publishes the fields of an entry again. @param {string} origin @param {string} stream @param {Entry} entry */
export function formatCurlPublish(origin, stream, entry) {
  const body = JSON.stringify({ fields: pairsOf(entry), ...(entry.encoding === undefined ? {} : { encoding: entry.encoding }) });
  return `curl -s ${quoteWord(`${origin}${entriesPath(stream)}`)} -H 'Content-Type: application/json' --data-raw ${quoteWord(body)}`;
}

/** @param {string} stream */
const entriesPath = (stream) => `/v1/streams/${encodeURIComponent(stream)}/entries`;

/** Quote a text as one word of a POSIX shell. @param {string} text */
const quoteWord = (text) => `'${text.replaceAll("'", "'\\''")}'`;
