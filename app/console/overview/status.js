/*
 * The gateway's status as figures for people.
 *
 * Knows: the members of `GET /v1/status`. Must never know: elements, streams.
 */

import { formatBytes, formatCount, formatDuration } from "../shared/format.js";

/**
 * Name and text of each figure that this gateway reports, and its problems in words ("" for none).
 * @param {any} status null where it is not available
 * @returns {{figures: [string, string][], problem: string}}
 */
export function describeStatus(status) {
  if (status === null || status === undefined) return { figures: [], problem: "" };
  const { backend, memory, log, connections, durability, uptime_ms: uptimeMs } = status;
  /** @type {[string, unknown, () => string][]} */
  const known = [
    ["Memory", memory, () => (memory.bytes_max === null ? formatBytes(memory.used_bytes) : `${formatBytes(memory.used_bytes)} of ${formatBytes(memory.bytes_max)}`)],
    ["Log", log, () => formatBytes(log.bytes)],
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
      memory?.full ? "Memory is full. Trim or delete a stream before you publish more." : "",
    ].filter((sentence) => sentence !== "").join(" "),
  };
}
