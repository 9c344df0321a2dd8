/*
 * What an action is about to remove, as a sentence: for the preview of every dialog that removes entries.
 *
 * Knows: the gateway's dry runs. Must never know: elements, which dialog asks.
 */

import * as api from "./api.js";
import { countEntries, formatBytes, formatCount } from "./format.js";

/** @param {string} stream @param {Record<string, unknown>[]} trims all of them together @returns {Promise<string>} */
export async function previewTrims(stream, trims) {
  const found = await Promise.all(trims.map((trim) => api.trim(stream, { ...trim, dry_run: true })));
  const deleted = Math.max(0, ...found.map((one) => one.deleted));
  const pending = Math.max(0, ...found.map((one) => one.pending_affected));
  const ofThem = pending > 0 ? ` ${formatCount(pending)} of them are pending in a group.` : "";
  return `This removes ${countEntries(deleted)}.${ofThem}`;
}

/** @param {string} stream @param {import("./api.js").Retention} limits @param {number} groups of the stream
 * @returns {Promise<string>} */
export async function previewLimits(stream, limits, groups) {
  const { max_len: length, max_age_ms: ageMs, max_bytes: bytes } = limits;
  const trims = [length === null ? null : { maxlen: length }, ageMs === null ? null : { older_than_ms: ageMs }].filter((trim) => trim !== null);
  const sentences = [trims.length === 0 ? "" : await previewTrims(stream, trims), bytes === null ? "" : `The oldest beyond ${formatBytes(bytes)} are removed.`];
  const kept = [limits.keep_unacknowledged ? "what a group has not finished" : "", limits.keep_unarchived ? "what is not archived" : ""].filter((what) => what !== "");
  if (kept.length > 0) sentences.push(`Of these, ${kept.join(" and ")} stays until then.`);
  if (limits.keep_unacknowledged && groups === 0) sentences.push("If it never had a group, all but what is beyond the size stays until it has one.");
  return sentences.filter((sentence) => sentence !== "").join(" ") || "This removes nothing.";
}
