/*
 * Numbers, times, names and errors as people read them.
 *
 * Knows: units, lengths. Must never know: elements, where a number comes from.
 */

const COUNT = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

// Characters that are not seen or change the order of those around them: control and format characters, except tabs,
// line ends, and the joiners of scripts and emoji.
const HIDDEN = /((?![\t\n\r\u200c\u200d])[\p{Cc}\p{Cf}\p{Zl}\p{Zp}])/u;

const LABEL_CHARS_MAX = 90;
const LABEL_END_CHARS = 30;

/** @param {number} number */
export const formatCount = (number) => COUNT.format(number);

/** @param {number} number 12345 → 12.3K */
export const formatShort = (number) => (number < 10_000 ? COUNT.format(number) : SHORT.format(number));

/** @param {number} number @param {string} one @param {string} [many] 1 → 1 entry, 2 → 2 entries */
export const pluralize = (number, one, many = `${one}s`) => `${formatCount(number)} ${number === 1 ? one : many}`;

/** @param {number} number */
export const countEntries = (number) => pluralize(number, "entry", "entries");

/** @param {number | null} perSecond */
export function formatRate(perSecond) {
  if (perSecond === null) return "–";
  if (perSecond === 0) return "0/s";
  return `${perSecond < 10 ? perSecond.toFixed(1) : formatShort(Math.round(perSecond))}/s`;
}

/** @param {number} bytes */
export function formatBytes(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) {
    bytes /= 1024;
    unit += 1;
  }
  return `${unit === 0 || bytes >= 100 ? Math.round(bytes) : bytes.toFixed(1)} ${units[unit]}`;
}

/** @param {number | null} ms */
export function formatDuration(ms) {
  if (ms === null) return "–";
  if (ms < 1000) return `${ms < 10 ? Number(ms.toFixed(1)) : Math.round(ms)} ms`;
  if (ms < 10_000) return `${(ms / 1000).toFixed(1)} s`;
  const s = Math.round(ms / 1000);
  if (s < 60) return `${s} s`;
  const minutes = Math.round(s / 60);
  if (s < 3600) return joinUnits(Math.floor(s / 60), "min", s % 60, "s");
  if (minutes < 1440) return joinUnits(Math.floor(minutes / 60), "h", minutes % 60, "min");
  const hours = Math.round(s / 3600);
  return joinUnits(Math.floor(hours / 24), "d", hours % 24, "h");
}

/** @param {number} large @param {string} unit @param {number} small @param {string} lesser */
const joinUnits = (large, unit, small, lesser) => (small === 0 ? `${large} ${unit}` : `${large} ${unit} ${small} ${lesser}`);

/** @param {number} number @param {number} [width] */
const pad = (number, width = 2) => String(number).padStart(width, "0");

/** @param {number} ms a time of day, to the millisecond */
export function formatTime(ms) {
  const at = new Date(ms);
  const day = `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
  return Number.isNaN(at.getTime()) ? "" : `${day}.${pad(at.getMilliseconds(), 3)}`;
}

/** @param {number} ms a date and a time of day */
export function formatDateTime(ms) {
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return "";
  return `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())} ${formatTime(ms)}`;
}

/** A time of day, with the date if it is of another day; one of another year goes without seconds. @param {number} ms @param {number} nowMs */
export function formatWhen(ms, nowMs) {
  const [at, now] = [formatDateTime(ms), formatDateTime(nowMs)];
  if (at.slice(0, 10) === now.slice(0, 10)) return formatTime(ms);
  return at.slice(0, 4) === now.slice(0, 4) ? at.slice(5, -4) : at.slice(0, -7);
}

/** A text cut at its hidden characters: every second part is one of them. @param {string} text */
export const splitHidden = (text) => (HIDDEN.test(text) ? text.split(HIDDEN) : [text]);

/** @param {string} character U+202E */
export const formatCode = (character) => `U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}`;

/** A text whose hidden characters are shown as their codes. @param {string} text */
export const showHidden = (text) => splitHidden(text).map((part, index) => (index % 2 === 0 ? part : `[${formatCode(part)}]`)).join("");

/** The name of a field as a label, which is never empty. @param {string} name */
export const formatName = (name) => (name === "" ? '""' : name);

/** Shorten a long name in the middle, because names often differ at the end. @param {string} name */
export const abbreviate = (name) =>
  name.length <= LABEL_CHARS_MAX ? name : `${name.slice(0, LABEL_CHARS_MAX - LABEL_END_CHARS - 1)}…${name.slice(-LABEL_END_CHARS)}`;

/** @param {unknown} error */
export const formatError = (error) => (error instanceof Error ? error.message : String(error));
