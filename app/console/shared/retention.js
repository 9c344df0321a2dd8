/*
 * The limits of a stream: in words, and as form fields and back.
 *
 * Knows: the retention of a stream. Must never know: elements, which stream it is.
 */

import { formatMs, formatNumber, formatSize, parseMs, parseNumber, parseSize } from "./fields.js";
import { countEntries, formatBytes, formatDuration } from "./format.js";

/** @typedef {import("./api.js").Retention} Retention */

/** @type {Retention} */
export const UNLIMITED = { max_len: null, max_age_ms: null, max_bytes: null, keep_unacknowledged: false, keep_unarchived: false };

/** @type {[string, string][]} */
const REMOVED_OR_KEPT = [["", "is removed with the others"], ["keep", "is kept beyond the limits"]];

/** @type {[string, string][]} */
const ACKNOWLEDGED = [["", "is kept within the limits"], ["go", "goes at once, or beyond a limit above; all else is kept"]];

/** @param {Retention} retention @returns {string} "" for no limit */
export function describeRetention({ max_len: length, max_age_ms: ageMs, max_bytes: bytes }) {
  const limits = [
    length === null ? "" : countEntries(length),
    ageMs === null ? "" : formatDuration(ageMs),
    bytes === null ? "" : formatBytes(bytes),
  ].filter((limit) => limit !== "");
  return limits.length === 0 ? "" : `keeps at most ${limits.join(", ")}`;
}

/** What keeps all of it in spite of its limits. @param {import("./api.js").Stream["held_by"]} holder @returns {string} "" for nothing */
export function describeHolder(holder) {
  if (holder === undefined) return "";
  return holder === "no group" ? "keeps all until it has a group" : `keeps all until ${holder.group} has acknowledged ${holder.id}`;
}

/** @param {Retention} now @returns {import("./dialogs.js").Field[]} */
export function retentionFields(now) {
  return [
    { name: "max_len", label: "Maximum number of entries", type: "number", min: 0, value: formatNumber(now.max_len) },
    { name: "max_age", label: "Maximum age", value: formatMs(now.max_age_ms), hint: "Such as 12h or 7d." },
    { name: "max_bytes", label: "Maximum size", value: formatSize(now.max_bytes), hint: "Such as 500mb or 2gb." },
    { name: "unacknowledged", label: "What a group has not read or not acknowledged", options: REMOVED_OR_KEPT, value: now.keep_unacknowledged ? "keep" : "" },
    { name: "acknowledged", label: "What all groups have acknowledged", options: ACKNOWLEDGED, value: now.keep_unacknowledged && now.max_len === 0 ? "go" : "" },
    { name: "unarchived", label: "What is not archived", options: REMOVED_OR_KEPT, value: now.keep_unarchived ? "keep" : "" },
  ];
}

/** @param {Record<string, string>} values of the fields @returns {Retention} */
export function parseRetention(values) {
  const [length, isDoneGone] = [parseNumber(values.max_len), values.acknowledged === "go"];
  return {
    max_len: isDoneGone && length === null && parseMs(values.max_age) === null ? 0 : length,
    max_age_ms: parseMs(values.max_age),
    max_bytes: parseSize(values.max_bytes),
    keep_unacknowledged: isDoneGone || values.unacknowledged === "keep",
    keep_unarchived: values.unarchived === "keep",
  };
}
