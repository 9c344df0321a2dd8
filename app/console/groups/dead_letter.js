/*
 * What a dead letter says of the entry that it was.
 *
 * Knows: the fields that the gateway adds. Must never know: elements, how dead letters are found.
 */

import { pairsOf } from "../shared/entry.js";

/** @typedef {import("../shared/api.js").Entry} Entry */
/** @typedef {{id: string, source: string, entryId: string, group: string, consumer: string, deliveries: string,
 *   reason: string}} Letter */

/** @param {Entry} entry @returns {Letter} */
export function letter(entry) {
  // The gateway's own fields stand last: an entry that died twice has those of its first death before them.
  const fields = new Map(pairsOf(entry));
  const field = (/** @type {string} */ name) => text(fields.get(`weir-${name}`) ?? "", entry.encoding);
  return {
    id: entry.id,
    source: field("source"),
    entryId: field("id"),
    group: field("group"),
    consumer: field("consumer"),
    deliveries: field("deliveries"),
    reason: field("reason"),
  };
}

/** @param {string} value @param {string | undefined} encoding */
function text(value, encoding) {
  if (encoding !== "base64") return value;
  try {
    return new TextDecoder().decode(Uint8Array.from(atob(value), (letter) => letter.charCodeAt(0)));
  } catch {
    return value;
  }
}
