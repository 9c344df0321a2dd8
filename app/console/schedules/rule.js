/*
 * The rule of a schedule: in words, and as form fields and back.
 *
 * Knows: when entries for later are appended. Must never know: elements, which stream it is.
 */

import { parseDuration } from "../shared/fields.js";
import { formatCount, formatDuration, formatWhen } from "../shared/format.js";

/** @typedef {import("../shared/api.js").Schedule} Schedule */

/** @param {Schedule} schedule */
export function describeRule({ cron, tz, every_ms, left, paused = false, paused_until: until }) {
  const runs = left === undefined ? "" : `, ${formatCount(left)} left`;
  const waits = until === undefined ? ", paused" : `, paused until ${formatWhen(Date.parse(until), Date.now())}`;
  const pause = paused ? waits : "";
  if (cron !== undefined) return `${cron} ${tz}${runs}${pause}`;
  return `${every_ms === undefined ? "once" : `every ${formatDuration(every_ms)}`}${runs}${pause}`;
}

/** @type {[string, string][]} */
const KINDS = [["cron", "by a cron expression"], ["every", "again and again, every"], ["in", "once, after"], ["at", "once, at"]];

/** @param {boolean} ofAll whether the stream is asked for, too @returns {import("../shared/dialogs.js").Field[]} */
export const scheduleFields = (ofAll) => [
  ...(ofAll ? [{ name: "stream", label: "Stream", required: true }] : []),
  { name: "name", label: "Name", required: true },
  { name: "entry", label: "Fields of the entry, as JSON", value: '{"job": ""}', required: true },
  { name: "kind", label: "Append it", options: KINDS },
  { name: "when", label: "When", required: true, hint: "30 2 * * *, or 5m, or 2035-01-31T12:00:00Z, as chosen above." },
  { name: "tz", label: "Time zone of the cron expression", value: Intl.DateTimeFormat().resolvedOptions().timeZone },
];

/** @param {Record<string, string>} values of the fields @returns {Record<string, unknown>} the body of a schedule. Throws what is wrong */
export function parseSchedule({ entry = "", kind, when = "", tz = "" }) {
  const body = { entry: { fields: parseFields(entry) } };
  if (kind === "cron") return { ...body, cron: when, ...(tz === "" ? {} : { tz }) };
  if (kind === "every") return { ...body, every_ms: parseDuration(when) };
  return kind === "in" ? { ...body, in_ms: parseDuration(when) } : { ...body, at: when };
}

/** @param {string} text */
function parseFields(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error('The fields of the entry are JSON, such as {"job": "report"}.');
  }
}
