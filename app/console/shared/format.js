/*
 * Numbers, times and IDs as people read them.
 *
 * Knows: units and IDs. Must never know: elements, where a number comes from.
 */

const COUNT = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

const LABEL_CHARS_MAX = 90;
const LABEL_END_CHARS = 30;

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

/** Head and tail of a long name: what tells names apart is often at the end. @param {string} name */
export const abbreviate = (name) =>
  name.length <= LABEL_CHARS_MAX ? name : `${name.slice(0, LABEL_CHARS_MAX - LABEL_END_CHARS - 1)}…${name.slice(-LABEL_END_CHARS)}`;
