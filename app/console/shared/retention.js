/*
 * The limits of a stream: in words, and as form fields and back.
 *
 * Knows: the retention of a stream. Must never know: elements, which stream it is.
 */

import { formatNumber, formatSeconds, parseMs, parseNumber } from "./fields.js";
import { countEntries, formatBytes, formatDuration } from "./format.js";

/** @typedef {import("./api.js").Retention} Retention */

/** @type {Retention} */
export const UNLIMITED = { max_len: null, max_age_ms: null, max_bytes: null, keep_unacknowledged: false, keep_unarchived: false };

/** @type {[string, string][]} */
const REMOVED_OR_KEPT = [["", "is removed with the others"], ["keep", "is kept beyond the limits"]];

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
    { name: "unacknowledged", label: "What a group has not read or not acknowledged", options: REMOVED_OR_KEPT, value: now.keep_unacknowledged ? "keep" : "" },
    { name: "unarchived", label: "What is not archived", options: REMOVED_OR_KEPT, value: now.keep_unarchived ? "keep" : "" },
  ];
}

/** @param {Record<string, string>} values of the fields @returns {Retention} */
export function parseRetention(values) {
  return {
    max_len: parseNumber(values.max_len),
    max_age_ms: parseMs(values.max_age_s),
    max_bytes: parseNumber(values.max_bytes),
    keep_unacknowledged: values.unacknowledged === "keep",
    keep_unarchived: values.unarchived === "keep",
  };
}
