/*
 * The jump field: an ID, a time of day, a date, or a time ago, as the ID to jump to.
 *
 * Knows: the notations below. Must never know: elements, streams.
 */

/** @type {Record<string, number>} */
const UNIT_MS = { ms: 1, s: 1_000, m: 60_000, min: 60_000, h: 3_600_000, d: 86_400_000 };

/**
 * The smallest ID of a point in time: `5-1`, `12:30`, `12:30:05.250`, `2026-01-31 12:30`, `5m`, `1.5 h ago`.
 * @param {string} text @param {number} nowMs
 * @returns {string | null} null for anything else
 */
export function parseJump(text, nowMs) {
  const wanted = text.trim();
  if (/^\d+(-\d+)?$/.test(wanted)) return wanted;
  const ago = /^-?\s*(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)(?:\s+ago)?$/.exec(wanted);
  if (ago) return String(Math.max(0, Math.round(nowMs - Number(ago[1]) * (UNIT_MS[ago[2] ?? ""] ?? 1))));
  const time = /^(\d{1,2}):(\d{2})(?::(\d{2})(\.\d{1,3})?)?$/.exec(wanted);
  if (time) {
    const at = new Date(nowMs);
    at.setHours(Number(time[1]), Number(time[2]), Number(time[3] ?? 0), Math.round(Number(time[4] ?? 0) * 1000));
    return String(at.getTime());
  }
  const date = /^\d{4}-\d{2}-\d{2}/.test(wanted) ? new Date(wanted.replace(" ", "T")).getTime() : Number.NaN;
  return Number.isNaN(date) ? null : String(Math.max(0, date));
}
