/*
 * Numbers, durations and sizes as the text of form fields, and back. An empty field is null.
 *
 * Knows: text, numbers, units as the command line has them. Must never know: elements, what a field is for.
 */

/** @type {Record<string, number>} */
const UNITS_MS = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/** @param {string} text a number with its unit, as on the command line: 250ms, 30s, 5m, 2h, 7d @returns {number} milliseconds */
export function parseDuration(text) {
  const [, number, unit = ""] = /^(\d{1,12})(ms|s|m|h|d)$/.exec(text.trim()) ?? [];
  if (number === undefined) throw new Error(`${text} is no duration such as 250ms, 30s, 5m, 2h or 7d`);
  return Number(number) * (UNITS_MS[unit] ?? 1);
}

/** @type {Record<string, number>} */
const UNITS_BYTES = { "": 1, kb: 2 ** 10, mb: 2 ** 20, gb: 2 ** 30, tb: 2 ** 40 };

/** A number with the largest unit that it is whole in. @param {number | null} value @param {Record<string, number>} units "" for null */
function formatUnit(value, units) {
  if (value === null || value === 0) return formatNumber(value);
  const [unit, size] = Object.entries(units).findLast(([, one]) => value % one === 0) ?? ["", 1];
  return `${value / size}${unit}`;
}

/** @param {number | null} value a number as the text of a field, "" for null */
export const formatNumber = (value) => (value === null ? "" : String(value));

/** @param {number | null} ms milliseconds as `parseMs` reads them: 1500ms, 90s, 5m; "" for null */
export const formatMs = (ms) => formatUnit(ms, UNITS_MS);

/** @param {number | null} bytes as `parseSize` reads them: 64kb, 2gb; "" for null */
export const formatSize = (bytes) => formatUnit(bytes, UNITS_BYTES);

/** @param {string | undefined} text of a field @returns {number | null} null for an empty field */
export const parseNumber = (text) => (text === undefined || text === "" ? null : Number(text));

/** @param {string | undefined} text of a field, a duration or 0 @returns {number | null} milliseconds, null for an empty field */
export const parseMs = (text) => (text === undefined || text === "" || text === "0" ? parseNumber(text) : parseDuration(text));

/** @param {string | undefined} text of a field: 1000, 64kb, 128MiB @returns {number | null} bytes, null for an empty field */
export function parseSize(text) {
  if (text === undefined || text === "") return null;
  const [, number, unit = ""] = /^(\d{1,15})(?:([kmgt])(?:i?b)?)?$/.exec(text.trim().toLowerCase()) ?? [];
  if (number === undefined) throw new Error(`${text} is no size such as 64kb, 500mb or 2gb`);
  return Number(number) * (UNITS_BYTES[unit && `${unit}b`] ?? 1);
}
