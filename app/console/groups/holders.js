/*
 * Who holds pending entries: actions name whom the list shows, and take nothing from who has an entry by then.
 *
 * Knows: rows of pending entries. Must never know: elements, requests.
 */

import { countEntries } from "../shared/format.js";

/** @typedef {import("../shared/api.js").Pending} Pending */

/** The IDs by consumer, "" for those that none holds. @param {Pending[]} rows @returns {Map<string, string[]>} */
export function byConsumer(rows) {
  /** @type {Map<string, string[]>} */
  const found = new Map();
  for (const { id, consumer } of rows) {
    const ids = found.get(consumer ?? "");
    if (ids) ids.push(id);
    else found.set(consumer ?? "", [id]);
  }
  return found;
}

/** Why nothing was done to entries, one clause a holder. @param {string[]} ids @param {Pending[]} rows as they are now */
export function describeKept(ids, rows) {
  const kept = new Set(ids);
  const holders = byConsumer(rows.filter(({ id }) => kept.has(id)));
  return [...holders].map(([name, held]) => {
    const is = held.length === 1 ? "is" : "are";
    return `${countEntries(held.length)} ${is} ${name === "" ? "given back" : `held by ${name}`} since`;
  });
}
