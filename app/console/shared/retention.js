/*
 * How much of a stream is kept, as form fields and back.
 *
 * Knows: the retention of a stream. Must never know: elements, which stream it is.
 */

import { numberText, parseMs, parseNumber, secondsText } from "./fields.js";

/** @typedef {import("./api.js").Retention} Retention */

/** @type {Retention} */
export const UNLIMITED = { max_len: null, max_age_ms: null, max_bytes: null };

/** @param {Retention} now @returns {import("./dialogs.js").Field[]} */
export function retentionFields(now) {
  return [
    { name: "max_len", label: "Maximum number of entries", type: "number", min: 0, value: numberText(now.max_len), hint: "Leave a field empty for no limit." },
    { name: "max_age_s", label: "Maximum age in seconds", type: "number", min: 0, value: secondsText(now.max_age_ms) },
    { name: "max_bytes", label: "Maximum size in bytes", type: "number", min: 0, value: numberText(now.max_bytes) },
  ];
}

/** @param {Record<string, string>} values of the fields @returns {Retention} */
export function parseRetention(values) {
  return { max_len: parseNumber(values.max_len), max_age_ms: parseMs(values.max_age_s), max_bytes: parseNumber(values.max_bytes) };
}
