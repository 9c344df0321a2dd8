/**
 * A worker's lease on the entries that it holds: extended for as long as the worker lives.
 *
 * Knows: how often the gateway has to hear that the work goes on, and which entries others were given. Must never know:
 * how entries come, what the program does with them.
 */

import type { Group } from "./client.js";
import type { GroupInfo } from "./entries.js";
import { WeirError } from "./errors.js";
import { sleep } from "./http.js";
import type { Delivery } from "./worker.js";

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

/** What keeps its entries: a worker. */
export interface Holder {
  readonly claimMinIdleMs: number | undefined;
  /** What the program holds or is about to get. */
  held(): Delivery[];
  /** Start the idle time of some of them anew, of one stream. */
  extend(deliveries: readonly Delivery[]): Promise<void>;
}

/** What was given to other consumers while the program held it. */
export class LostDeliveries {
  readonly #lost = new Map<string, Delivery>();
  /** Those about which the program has decided since, or of which it knows that they were lost. */
  readonly #dropped = new WeakSet<Delivery>();

  /** The gateway says that it is not this consumer's any more. */
  add(key: string, delivery: Delivery): void {
    this.#lost.set(key, delivery);
  }

  /** Whether it was lost. Then the program stops working on it. */
  tell(key: string, delivery: Delivery): boolean {
    const isLost = this.#lost.get(key) === delivery;
    if (isLost) this.#dropped.add(delivery);
    return isLost;
  }

  /** Whether the program has decided about it after it was lost, or was told to stop. */
  isDropped(delivery: Delivery): boolean {
    return this.#dropped.has(delivery);
  }

  /** The program has decided about it. Whether that counts though it was lost: if the work is done. */
  settle(key: string, delivery: Delivery, isDone: boolean): boolean {
    const counts = this.tell(key, delivery) && isDone;
    if (counts) this.#lost.delete(key);
    return counts;
  }

  /** The one on which the program still works, if there is one: it is this consumer's again. */
  takeBack(key: string): Delivery | undefined {
    const delivery = this.#lost.get(key);
    if (delivery === undefined || this.#dropped.has(delivery)) return undefined;
    this.#lost.delete(key);
    return delivery;
  }

  /** The program has left it. */
  forget(key: string, delivery: Delivery): void {
    if (this.#lost.get(key) === delivery) this.#lost.delete(key);
  }

  /** The stream is gone. */
  forgetStream(stream: string): void {
    for (const [key, { entry }] of this.#lost) if (entry.stream === stream) this.#lost.delete(key);
  }
}

/** Extend what the worker holds, until aborted. */
export async function keepLeases(groups: readonly Group[], holder: Holder, over: AbortSignal): Promise<void> {
  let [intervalMs, knownUntil] = [INTERVAL_MS_DEFAULT, 0];
  while (!over.aborted) {
    try {
      if (performance.now() >= knownUntil) {
        const infos = await Promise.all(groups.map((group) => group.info()));
        intervalMs = Math.min(...infos.map((info) => interval(info, holder.claimMinIdleMs)));
        knownUntil = performance.now() + POLICY_MS_MAX;
      }
      await sleep(intervalMs, over);
      for (const { stream } of groups) {
        const held = holder.held().filter(({ entry }) => entry.stream === stream);
        for (let start = 0; start < held.length; start += IDS_MAX) await holder.extend(held.slice(start, start + IDS_MAX));
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
