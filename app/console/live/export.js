/*
 * Entries as text that other programs read: lines of JSON, CSV, a curl command.
 *
 * Knows: the three forms and their quoting. Must never know: elements, where entries come from.
 */

import { pairsOf } from "../shared/entry.js";

/** @typedef {import("../shared/api.js").Entry} Entry */

// Entries whose fields all have other names would make a table of the square of their number.
const COLUMNS_MAX = 256;
// A spreadsheet takes a cell that begins so for a formula; a plain number is harmless.
const FORMULA = /^[=+\-@\t\r\n]/;
const NUMBER = /^[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?$/i;

/** One JSON object a line, as the gateway exports them. @param {Iterable<Entry>} entries */
export const ndjson = (entries) => [...entries].map((entry) => `${JSON.stringify(entry)}\n`).join("");

/**
 * A table by RFC 4180: ID, time, encoding, then a column for each field in the order in which fields are first seen. A
 * field that an entry has twice gets a second column; fields beyond the last column stand together as JSON.
 * @param {Iterable<Entry>} entries
 */
export function csv(entries) {
  const columns = new Columns();
  const lines = [...entries].map((entry) => {
    const { cells, rest } = columns.place(entry);
    return { start: [entry.id, timeOf(entry.id), entry.encoding ?? ""], cells, rest };
  });
  const hasRest = lines.some(({ rest }) => rest !== "");
  const head = { start: ["id", "time", "encoding"], cells: columns.names, rest: "other fields" };
  return [head, ...lines]
    .map(({ start, cells, rest }) => [...start, ...Array.from(columns.names, (_, at) => cells[at] ?? ""), ...(hasRest ? [rest] : [])])
    .map((line) => `${line.map(cell).join(",")}\r\n`)
    .join("");
}

class Columns {
  constructor() {
    /** @type {string[]} */
    this.names = [];
    /** @type {Map<string, number>} */
    this.known = new Map();
  }

  /** The entry's values, each in its column, and what has none. @param {Entry} entry */
  place(entry) {
    /** @type {(string | undefined)[]} */
    const cells = [];
    /** @type {[string, string][]} */
    const rest = [];
    /** @type {Map<string, number>} */
    const seen = new Map();
    for (const [name, value] of pairsOf(entry)) {
      const times = (seen.get(name) ?? 0) + 1;
      seen.set(name, times);
      const column = this.column(name, times);
      if (column === null) rest.push([name, value]);
      else cells[column] = value;
    }
    return { cells, rest: rest.length === 0 ? "" : JSON.stringify(rest) };
  }

  /** @param {string} name @param {number} times the first, second … field of this name in one entry */
  column(name, times) {
    const key = `${times} ${name}`;
    const found = this.known.get(key);
    if (found !== undefined) return found;
    if (this.names.length === COLUMNS_MAX) return null;
    this.known.set(key, this.names.length);
    this.names.push(times === 1 ? name : `${name} (${times})`);
    return this.names.length - 1;
  }
}

/** @param {string} id ISO 8601, empty where no date has these milliseconds */
function timeOf(id) {
  const at = new Date(Number(id.slice(0, id.indexOf("-"))));
  return Number.isNaN(at.getTime()) ? "" : at.toISOString();
}

/** @param {string} text */
function cell(text) {
  const harmless = FORMULA.test(text) && !NUMBER.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(harmless) ? `"${harmless.replaceAll('"', '""')}"` : harmless;
}

/** A command that reads this entry. @param {string} origin @param {string} stream @param {string} id */
export const curlRead = (origin, stream, id) => `curl -s ${quoted(`${origin}${entryPath(stream)}/${encodeURIComponent(id)}`)}`;

/** A command that publishes the same fields again. @param {string} origin @param {string} stream @param {Entry} entry */
export function curlPublish(origin, stream, entry) {
  const body = JSON.stringify({ fields: pairsOf(entry), ...(entry.encoding === undefined ? {} : { encoding: entry.encoding }) });
  return `curl -s ${quoted(`${origin}${entryPath(stream)}`)} -H 'Content-Type: application/json' --data-raw ${quoted(body)}`;
}

/** @param {string} stream */
const entryPath = (stream) => `/v1/streams/${encodeURIComponent(stream)}/entries`;

/** Quotes a text as one word of a POSIX shell. @param {string} text */
const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
