/*
 * The gateway's status as figures for people.
 *
 * Knows: the members of `GET /v1/status`. Must never know: elements, streams.
 */

import { formatBytes, formatCount, formatDuration } from "../shared/format.js";

// What the status says itself.
const SAID = new Set(["log_failed", "memory_full"]);
/** @type {Record<string, string>} */
const FAILURES = {
  disk_full: "the disk is full, so publishing fails",
  entries_damaged: "entries on the disk cannot be read",
  storing_failed: "cold entries cannot be stored, so memory fills",
};

/** @type {Record<string, string>} */
const OUTAGES = {
  backend_unavailable: "the backend does not answer",
  starting: "the gateway is reading its log",
  restarting: "the gateway is restarting",
  draining: "the gateway is stopping",
};
// The gateway serves, or reads at least: the overview says what is wrong.
const SERVING = new Set(["ready", "storage_failed"]);

/** Why a gateway cannot serve, by its health; "" where it can. @param {{status: string}} health */
export const describeOutage = ({ status }) => (SERVING.has(status) ? "" : OUTAGES[status] ?? "the gateway cannot serve now");

/**
 * Name and text of each figure that this gateway reports, and its problems in words ("" for none).
 * @param {any} status null where it is not available
 * @param {string[]} [failing] what needs an operator
 * @returns {{figures: [string, string][], problem: string}}
 */
export function describeStatus(status, failing = []) {
  const unsaid = failing.filter((what) => !SAID.has(what));
  const needs = unsaid.length > 0 ? `An operator is needed: ${unsaid.map((what) => FAILURES[what] ?? what).join("; ")}.` : "";
  if (status === null || status === undefined) return { figures: [], problem: needs };
  const { backend, memory, log, connections, durability, uptime_ms: uptimeMs } = status;
  /** @type {[string, unknown, () => string][]} */
  const known = [
    ["Memory", memory, () => (memory.bytes_max === null ? formatBytes(memory.used_bytes) : `${formatBytes(memory.used_bytes)} of ${formatBytes(memory.bytes_max)}`)],
    ["Log", log, () => formatBytes(log.bytes)],
    ["Cold entries on disk", log?.stored_bytes, () => formatBytes(log.stored_bytes)],
    ["Not yet synced", log, () => formatBytes(log.unsynced_bytes)],
    ["Sync", durability?.fsync, () => String(durability.fsync)],
    ["Backend", log === null ? backend : null, () => String(backend)],
    ["Promise", log === null ? durability : null, () => String(durability.answers)],
    ["Connections", connections, () => formatCount(connections.open)],
    ["Live readers", connections, () => formatCount(connections.following)],
    ["Uptime", uptimeMs, () => formatDuration(uptimeMs)],
  ];
  return {
    figures: known.filter(([, member]) => member !== undefined && member !== null).map(([name, , format]) => [name, format()]),
    problem: [
      status.status === "backend_unavailable" ? "The backend does not answer. Requests fail until it does." : "",
      log?.failure ? `The log failed and accepts no writes until a restart: ${log.failure}` : "",
      memory?.full ? "Memory is full. Acknowledge what is pending, or trim or delete a stream, before you publish more." : "",
      needs,
    ].filter((sentence) => sentence !== "").join(" "),
  };
}
