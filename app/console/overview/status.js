/*
 * What the gateway says of itself, as figures for people.
 *
 * Knows: the members of `GET /v1/status`. Must never know: elements, streams.
 */

import { bytes, count, duration } from "../shared/format.js";

/**
 * Figures by name, those that this gateway gives, and what is wrong with it ("" for nothing).
 * @param {any} status null where the gateway does not say
 * @returns {{figures: [string, string][], problem: string}}
 */
export function figuresOf(status) {
  if (status === null || status === undefined) return { figures: [], problem: "" };
  const { memory, log, connections, durability, uptime_ms: uptimeMs } = status;
  /** @type {[string, unknown, () => string][]} */
  const wanted = [
    ["Memory", memory, () => (memory.bytes_max === null ? bytes(memory.used_bytes) : `${bytes(memory.used_bytes)} of ${bytes(memory.bytes_max)}`)],
    ["Log", log, () => bytes(log.bytes)],
    ["Not synced yet", log, () => bytes(log.unsynced_bytes)],
    ["Sync", durability, () => String(durability.fsync)],
    ["Connections", connections, () => count(connections.open)],
    ["Following or waiting", connections, () => count(connections.following)],
    ["Up for", uptimeMs, () => duration(uptimeMs)],
  ];
  return {
    figures: wanted.filter(([, given]) => given !== undefined && given !== null).map(([name, , text]) => [name, text()]),
    problem: [
      log?.failure ? `The log takes no writes until a restart: ${log.failure}` : "",
      memory?.full ? "The memory is full: nothing can be published until something is trimmed or deleted." : "",
    ].filter((one) => one !== "").join(" "),
  };
}
