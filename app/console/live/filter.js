/*
 * What a reader wants to see: words into a test of entries.
 *
 * Knows: the little language below. Must never know: elements, where entries come from.
 *
 *   word            in a name, in a value or in the ID, whatever the case     "two words"   one piece
 *   field:word      in the value of that field                                field=value   exactly this value
 *   field>10        as numbers; also <, >=, <=                                -anything     not that
 */

import { pairsOf } from "../shared/entry.js";

/** @typedef {import("../shared/api.js").Entry} Entry */
/** @typedef {(entry: Entry) => boolean} Test */

const TERM = /(-?)(?:([^\s":=<>]+)(>=|<=|[:=<>]))?("[^"]*"?|\S+)?/gy;

/** @param {string} text @returns {Test | null} null where everything is wanted */
export function parse(text) {
  /** @type {Test[]} */
  const tests = [];
  for (const word of text.trim().split(/\s+(?=(?:[^"]*"[^"]*")*[^"]*$)/)) {
    TERM.lastIndex = 0;
    const found = TERM.exec(word);
    const [, minus = "", field, operator, quoted = ""] = found ?? [];
    const wanted = quoted.replace(/^"([^"]*)"?$/, "$1");
    if (wanted === "" && operator === undefined) continue;
    const test = field === undefined || operator === undefined ? anywhere(wanted) : ofField(field, operator, wanted);
    tests.push(minus === "" ? test : (entry) => !test(entry));
  }
  return tests.length === 0 ? null : (entry) => tests.every((test) => test(entry));
}

/** @param {string} wanted @returns {Test} */
function anywhere(wanted) {
  const low = wanted.toLowerCase();
  return (entry) =>
    entry.id.includes(low) ||
    pairsOf(entry).some(([name, value]) => name.toLowerCase().includes(low) || value.toLowerCase().includes(low));
}

/** @param {string} field @param {string} operator @param {string} wanted @returns {Test} */
function ofField(field, operator, wanted) {
  const low = wanted.toLowerCase();
  const number = Number(wanted);
  /** @type {Record<string, (value: string) => boolean>} */
  const tests = {
    ":": (value) => value.toLowerCase().includes(low),
    "=": (value) => value === wanted,
    ">": (value) => Number(value) > number,
    "<": (value) => Number(value) < number,
    ">=": (value) => Number(value) >= number,
    "<=": (value) => Number(value) <= number,
  };
  const test = tests[operator];
  return (entry) => pairsOf(entry).some(([name, value]) => name === field && test !== undefined && test(value));
}
