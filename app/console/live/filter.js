/*
 * The filter language: a text becomes a test of entries.
 *
 * Knows: the language below. Must never know: elements, where entries come from.
 *
 *   word          a name, a value or the ID contains it, ignoring case     "two words"   contains the phrase
 *   field:word    the value of the field contains it                       field=value   the value is exactly this
 *   field>10      compared as numbers; also <, >=, <=                      -term         the term does not match
 *
 * All terms must match.
 */

import { pairsOf } from "../shared/entry.js";

/** @typedef {import("../shared/api.js").Entry} Entry */
/** @typedef {(entry: Entry) => boolean} Test */

const TERM = /(-?)(?:([^\s":=<>]+)(>=|<=|[:=<>]))?("[^"]*"?|\S+)?/gy;

/** @param {string} text @returns {Test | null} null if every entry matches */
export function parseFilter(text) {
  /** @type {Test[]} */
  const tests = [];
  for (const word of text.trim().split(/\s+(?=(?:[^"]*"[^"]*")*[^"]*$)/)) {
    TERM.lastIndex = 0;
    const [, minus = "", field, operator, quoted = ""] = TERM.exec(word) ?? [];
    const wanted = quoted.replace(/^"([^"]*)"?$/, "$1");
    if (wanted === "" && operator === undefined) continue;
    const test = field === undefined || operator === undefined ? matchAnywhere(wanted) : matchField(field, operator, wanted);
    tests.push(minus === "" ? test : (entry) => !test(entry));
  }
  return tests.length === 0 ? null : (entry) => tests.every((test) => test(entry));
}

/** @param {string} wanted @returns {Test} */
function matchAnywhere(wanted) {
  const lower = wanted.toLowerCase();
  return (entry) =>
    entry.id.includes(lower) ||
    pairsOf(entry).some(([name, value]) => name.toLowerCase().includes(lower) || value.toLowerCase().includes(lower));
}

/** @param {string} field @param {string} operator @param {string} wanted @returns {Test} */
function matchField(field, operator, wanted) {
  const lower = wanted.toLowerCase();
  const number = Number(wanted);
  /** @type {Record<string, (value: string) => boolean>} */
  const tests = {
    ":": (value) => value.toLowerCase().includes(lower),
    "=": (value) => value === wanted,
    ">": (value) => Number(value) > number,
    "<": (value) => Number(value) < number,
    ">=": (value) => Number(value) >= number,
    "<=": (value) => Number(value) <= number,
  };
  const test = tests[operator];
  return (entry) => pairsOf(entry).some(([name, value]) => name === field && test !== undefined && test(value));
}
