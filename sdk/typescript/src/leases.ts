/**
 * A worker's lease on the entries that it holds: extended for as long as the worker lives.
 *
 * Knows: how often the gateway has to hear that the work goes on. Must never know: how entries come, what the program does
 * with them.
 */

import type { GroupInfo } from "./entries.js";
import { WeirError } from "./errors.js";
import type { Holdings } from "./holdings.js";
import { sleep } from "./http.js";

/** Where neither the group nor the worker says after which time others take an entry. */
const INTERVAL_MS_DEFAULT = 10_000;
const INTERVAL_MS_MIN = 50;
/** Two extensions may fail. */
const INTERVALS_OF_TIMEOUT = 3;
/** The policy of a group may change. */
const POLICY_MS_MAX = 30_000;
/** The group may not be there yet, or the gateway is away. */
const RETRY_MS = 500;
/** A request names no more IDs. */
const IDS_MAX = 500;

/** Extend what the worker holds, until aborted. */
export async function keepLeases(holdings: Holdings): Promise<void> {
  const { groups, over, options: { claimMinIdleMs } } = holdings;
  let [intervalMs, knownUntil] = [INTERVAL_MS_DEFAULT, 0];
  while (!over.aborted) {
    try {
      if (performance.now() >= knownUntil) {
        const infos = await Promise.all([...groups.values()].map((group) => group.info()));
        intervalMs = Math.min(...infos.map((info) => interval(info, claimMinIdleMs)));
        knownUntil = performance.now() + POLICY_MS_MAX;
      }
      await sleep(intervalMs, over);
      for (const stream of groups.keys()) {
        const held = holdings.held.filter(({ entry }) => entry.stream === stream);
        for (let start = 0; start < held.length; start += IDS_MAX) await holdings.extend(held.slice(start, start + IDS_MAX));
      }
    } catch (error) {
      if (over.aborted) return;
      if (!(error instanceof WeirError)) throw error;
      // The link says what is wrong, and ends the worker where that is for good. A worker that may not look at its
      // group extends as if nothing was known.
      knownUntil = performance.now() + RETRY_MS;
      await sleep(RETRY_MS, over).catch(() => undefined);
    }
  }
}

/** A part of the time after which the gateway, or another worker with the same options, takes an entry. */
function interval(info: GroupInfo, claimMinIdleMs: number | undefined): number {
  const timeouts = [info.ack_timeout_ms, claimMinIdleMs].filter((ms) => typeof ms === "number");
  const part = Math.min(...timeouts) / INTERVALS_OF_TIMEOUT;
  return Math.min(INTERVAL_MS_DEFAULT, Math.max(INTERVAL_MS_MIN, part));
}
