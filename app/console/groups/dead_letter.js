/*
 * The fields that the gateway adds to a dead letter: where the entry came from and why it was moved.
 *
 * Knows: those fields. Must never know: elements, how dead letters are found.
 */

import { pairsOf } from "../shared/entry.js";

/** @typedef {import("../shared/api.js").Entry} Entry */
/** @typedef {{id: string, source: string, entryId: string, group: string, consumer: string, deliveries: string,
 *   reason: string}} DeadLetter */

/** @param {Entry} entry @returns {DeadLetter} */
export function parseDeadLetter(entry) {
  // The gateway's fields come last. An entry that was a dead letter before also has older ones, which the map drops.
  const fields = new Map(pairsOf(entry));
  const read = (/** @type {string} */ name) => decode(fields.get(`weir-${name}`) ?? "", entry.encoding);
  return {
    id: entry.id,
    source: read("source"),
    entryId: read("id"),
    group: read("group"),
    consumer: read("consumer"),
    deliveries: read("deliveries"),
    reason: read("reason"),
  };
}

/** @param {string} value @param {string | undefined} encoding */
function decode(value, encoding) {
  if (encoding !== "base64") return value;
  try {
    return new TextDecoder().decode(Uint8Array.from(atob(value), (char) => char.charCodeAt(0)));
  } catch {
    return value;
  }
}
