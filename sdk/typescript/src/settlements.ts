/** What a program decided about its entries, and how the gateway comes to know it. */

import type { Group, NackMode, References } from "./client.js";
import { NoAnswerError } from "./errors.js";
import { sleep } from "./http.js";

export interface Settlement {
  readonly stream: string;
  readonly id: string;
  readonly kind: "ack" | "nack";
  /** What to delete, or the mode. */
  readonly detail: string | undefined;
  /** After how many milliseconds it is given back. */
  readonly delayMs?: number;
}

/** At most this many IDs a request: no gateway takes more where they are given back, or deleted. */
const IDS_MAX = 500;
const PAUSE_MS = 500;

/** Runs of equal decisions, in order. */
export function* batches(settlements: readonly Settlement[]): Generator<Settlement[]> {
  let batch: Settlement[] = [];
  for (const one of settlements) {
    const [first] = batch;
    const isAlike =
      first?.stream === one.stream &&
      first.kind === one.kind &&
      first.detail === one.detail &&
      first.delayMs === one.delayMs;
    if (first && (!isAlike || batch.length === IDS_MAX)) {
      yield batch;
      batch = [];
    }
    batch.push(one);
  }
  if (batch.length > 0) yield batch;
}

export async function settleByRequest(
  group: Group,
  consumer: string,
  batch: readonly Settlement[],
  over: AbortSignal,
): Promise<void> {
  let ids = batch.map((one) => one.id);
  const [first] = batch;
  if (first?.kind === "ack") {
    await group.ack(ids, first.detail as References | undefined, consumer);
    return;
  }
  while (ids.length > 0) {
    try {
      await group.nack(ids, first?.detail as NackMode, first?.delayMs, consumer);
      return;
    } catch (error) {
      if (!(error instanceof NoAnswerError)) throw error;
      // Perhaps done: giving back again what another consumer holds by now would take it away.
      await sleep(PAUSE_MS, over);
      const held = new Set<string>();
      for await (const one of group.pending({ consumer })) held.add(one.id);
      ids = ids.filter((id) => held.has(id));
    }
  }
}
