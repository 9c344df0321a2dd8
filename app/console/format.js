/*
 * Numbers, times and IDs as people read them.
 *
 * Knows: units and IDs. Must never know: elements, where a number comes from.
 */

const COUNT = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

/** @param {number} number */
export const count = (number) => COUNT.format(number);

/** @param {number} number 12345 → 12.3K */
export const short = (number) => (number < 10_000 ? COUNT.format(number) : SHORT.format(number));

/** @param {number} number @param {string} one @param {string} [many] */
export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

/** @param {number | null} perSecond */
export function rate(perSecond) {
  if (perSecond === null) return "–";
  if (perSecond === 0) return "0/s";
  return `${perSecond < 10 ? perSecond.toFixed(1) : short(Math.round(perSecond))}/s`;
}

/** @param {number} bytes */
export function bytes(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) {
    bytes /= 1024;
    unit += 1;
  }
  return `${unit === 0 || bytes >= 100 ? Math.round(bytes) : bytes.toFixed(1)} ${units[unit]}`;
}

/** @param {number | null} ms */
export function duration(ms) {
  if (ms === null) return "–";
  if (ms < 1000) return `${ms < 10 ? Number(ms.toFixed(1)) : Math.round(ms)} ms`;
  if (ms < 10_000) return `${(ms / 1000).toFixed(1)} s`;
  const s = Math.round(ms / 1000);
  if (s < 60) return `${s} s`;
  const minutes = Math.round(s / 60);
  if (s < 3600) return parts(Math.floor(s / 60), "min", s % 60, "s");
  if (minutes < 1440) return parts(Math.floor(minutes / 60), "h", minutes % 60, "min");
  const hours = Math.round(s / 3600);
  return parts(Math.floor(hours / 24), "d", hours % 24, "h");
}

/** @param {number} large @param {string} unit @param {number} small @param {string} lesser */
const parts = (large, unit, small, lesser) => (small === 0 ? `${large} ${unit}` : `${large} ${unit} ${small} ${lesser}`);

/** @param {number} number @param {number} [width] */
const two = (number, width = 2) => String(number).padStart(width, "0");

/** @param {number} ms the time of day, to the millisecond */
export function clock(ms) {
  const at = new Date(ms);
  const day = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return Number.isNaN(at.getTime()) ? "" : `${day}.${two(at.getMilliseconds(), 3)}`;
}

/** @param {number} ms day and time */
export function moment(ms) {
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return "";
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock(ms)}`;
}

/** @param {string} id the milliseconds of an ID: a double is exact enough to show */
export const idMs = (id) => Number(id.slice(0, id.indexOf("-")));

/** @param {string} a @param {string} b which ID comes first: negative, zero, positive */
export function compareIds(a, b) {
  const [aMs = "0", aSeq = "0"] = a.split("-");
  const [bMs = "0", bSeq = "0"] = b.split("-");
  return compareDigits(aMs, bMs) || compareDigits(aSeq, bSeq);
}

/** @param {string} a @param {string} b both without leading zeros, as the gateway writes them */
const compareDigits = (a, b) => a.length - b.length || (a < b ? -1 : a > b ? 1 : 0);

/**
 * Where somebody wants to go: an ID, a time of day, a date, or so long ago; as the smallest ID there.
 * @param {string} text @param {number} nowMs
 * @returns {string | null}
 */
export function place(text, nowMs) {
  const wanted = text.trim();
  if (/^\d+(-\d+)?$/.test(wanted)) return wanted;
  const ago = /^-?\s*(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)(?:\s+ago)?$/.exec(wanted);
  if (ago) {
    const unit = { ms: 1, s: 1000, m: 60_000, min: 60_000, h: 3_600_000, d: 86_400_000 }[ago[2] ?? "s"] ?? 1;
    return String(Math.max(0, Math.round(nowMs - Number(ago[1]) * unit)));
  }
  const time = /^(\d{1,2}):(\d{2})(?::(\d{2})(\.\d{1,3})?)?$/.exec(wanted);
  if (time) {
    const at = new Date(nowMs);
    at.setHours(Number(time[1]), Number(time[2]), Number(time[3] ?? 0), Math.round(Number(time[4] ?? 0) * 1000));
    return String(at.getTime());
  }
  const date = /^\d{4}-\d{2}-\d{2}/.test(wanted) ? new Date(wanted.replace(" ", "T")).getTime() : Number.NaN;
  return Number.isNaN(date) ? null : String(Math.max(0, date));
}
