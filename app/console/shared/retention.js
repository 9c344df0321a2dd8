/*
 * The limits of a stream: in words, and as form fields and back.
 *
 * Knows: the retention of a stream. Must never know: elements, which stream it is.
 */

import { formatNumber, formatSeconds, parseMs, parseNumber } from "./fields.js";
import { countEntries, formatBytes, formatDuration } from "./format.js";

/** @typedef {import("./api.js").Retention} Retention */

/** @type {Retention} */
export const UNLIMITED = { max_len: null, max_age_ms: null, max_bytes: null };

/** @param {Retention} retention @returns {string} "" for no limit */
export function describeRetention({ max_len: length, max_age_ms: ageMs, max_bytes: bytes }) {
  const limits = [
    length === null ? "" : countEntries(length),
    ageMs === null ? "" : formatDuration(ageMs),
    bytes === null ? "" : formatBytes(bytes),
  ].filter((limit) => limit !== "");
  return limits.length === 0 ? "" : `keeps at most ${limits.join(", ")}`;
}

/** @param {Retention} now @returns {import("./dialogs.js").Field[]} */
export function retentionFields(now) {
  return [
    { name: "max_len", label: "Maximum number of entries", type: "number", min: 0, value: formatNumber(now.max_len) },
    { name: "max_age_s", label: "Maximum age in seconds", type: "number", min: 0, value: formatSeconds(now.max_age_ms) },
    { name: "max_bytes", label: "Maximum size in bytes", type: "number", min: 0, value: formatNumber(now.max_bytes) },
  ];
}

/** @param {Record<string, string>} values of the fields @returns {Retention} */
export function parseRetention(values) {
  return { max_len: parseNumber(values.max_len), max_age_ms: parseMs(values.max_age_s), max_bytes: parseNumber(values.max_bytes) };
}
