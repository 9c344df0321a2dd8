/*
 * Numbers and durations as the text of form fields, and back. An empty field is null.
 *
 * Knows: text, numbers, seconds. Must never know: elements, what a field is for.
 */

/** @param {number | null} value a number as the text of a field, "" for null */
export const formatNumber = (value) => (value === null ? "" : String(value));

/** @param {number | null} ms milliseconds as seconds in a field, "" for null */
export const formatSeconds = (ms) => formatNumber(ms === null ? null : ms / 1000);

/** @param {string | undefined} text of a field @returns {number | null} null for an empty field */
export const parseNumber = (text) => (text === undefined || text === "" ? null : Number(text));

/** @param {string | undefined} text of a field in seconds @returns {number | null} whole milliseconds */
export function parseMs(text) {
  const seconds = parseNumber(text);
  return seconds === null ? null : Math.round(seconds * 1000);
}
