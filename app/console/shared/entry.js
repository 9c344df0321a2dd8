/*
 * Entries and their IDs.
 *
 * Knows: the two forms of fields, the two numbers of an ID. Must never know: elements, where entries come from.
 */

/** @typedef {import("./api.js").Entry} Entry */

/** The field pairs of an entry in order; a name that was published twice appears twice. @param {Entry} entry
 * @returns {[string, string][]} */
export const pairsOf = (entry) => entry.pairs ?? Object.entries(entry.fields ?? {});

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
