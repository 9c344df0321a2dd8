/** A worker: a consumer of a group that acknowledges what it has done. */

import { Client, type Group } from "./client.js";
import type { Page } from "./entries.js";
import { ApiError, ForbiddenError, GroupDeletedError, InvalidValueError, StreamDeletedError } from "./errors.js";
import { Holdings, type Backoff, type Delivery, type WorkerOptions } from "./holdings.js";
import { isTemporary, sleep } from "./http.js";
import { keepLeases } from "./leases.js";
import { batches, settleByRequest } from "./settlements.js";
import { consumeOverSocket } from "./socket.js";

const GRACE_MS_DEFAULT = 30_000;
const POLL_WAIT_MS = 20_000;
// A group read takes entries that were given back only if it claims. No entry that a consumer holds is so old.
const CLAIM_RELEASED_ONLY_MS = Number.MAX_SAFE_INTEGER;
const PAUSE_MS_MIN = 100;
const PAUSE_MS_MAX = 30_000;
/** Else a stream that something deletes again and again would keep the gateway busy. */
const RECREATE_PAUSE_MS = 100;

export type Handler = (delivery: Delivery) => unknown;

/**
 * Consumes a stream, or several, as one consumer of a group; the group is created where it is missing. First come entries that
 * this consumer did not acknowledge in an earlier life, then new ones. A lost connection is made again, for ever;
 * entries that are held meanwhile stay held and are not delivered twice to this worker.
 */
export class Worker {
  readonly client: Client;
  readonly holdings: Holdings;
  readonly #options: WorkerOptions;
  #failure: { error: unknown } | undefined;
  #isPolling = false;

  constructor(client: Client | string, options: WorkerOptions) {
    if (options.orderedBy === undefined && (options.inFlightPerKey ?? 1) !== 1) {
      throw new InvalidValueError("inFlightPerKey needs orderedBy: the field that holds the key");
    }
    this.client = typeof client === "string" ? new Client({ url: client }) : client;
    this.holdings = new Holdings(this.client, options);
    this.#options = options;
  }

  /** Take no more entries: `run` ends once the work in hand is settled. Entries not begun go back to the group. */
  stop(): void {
    this.holdings.stop();
  }

  /**
   * Call `handle` for each delivery, `concurrency` at a time, until `stop`. What it returns from (or resolves) is
   * acknowledged, unless it settled the delivery itself; what it throws is reported and given back.
   */
  async run(handle: Handler, concurrency = 1): Promise<void> {
    const linking = this.#stayLinked().catch((error: unknown) => {
      if (!this.holdings.over.aborted) this.#failure ??= { error };
      this.holdings.notify();
    });
    if (this.holdings.streams.length > 1) this.holdings.credit = this.#options.credit ?? concurrency;
    const leasing = this.#options.lease === "off" ? undefined : keepLeases(this.holdings);
    await Promise.all(Array.from({ length: concurrency }, () => this.#work(handle)));
    const deadline = performance.now() + (this.#options.graceMs ?? GRACE_MS_DEFAULT);
    while (!this.#failure && !this.holdings.isEmpty && performance.now() < deadline) {
      await Promise.race([this.holdings.changed(), sleep(100)]);
    }
    this.holdings.end();
    await linking;
    await leasing?.catch((error: unknown) => (this.#failure ??= { error }));
    if (this.#failure) throw this.#failure.error;
  }

  async #work(handle: Handler): Promise<void> {
    for (;;) {
      const delivery = this.holdings.take();
      if (delivery) await this.#handle(handle, delivery);
      else if (this.holdings.stopping.aborted || this.#failure) return;
      else await this.holdings.changed();
    }
  }

  async #handle(handle: Handler, delivery: Delivery): Promise<void> {
    try {
      await handle(delivery);
      this.holdings.finish(delivery);
    } catch (error) {
      delivery.retryIn(backoff(this.#options.retry, delivery.entry.delivery_count ?? 1));
      if (this.#options.onError) this.#options.onError(error, delivery.entry);
      else console.error(`the handler failed for entry ${delivery.entry.id}`, error);
    } finally {
      this.holdings.leave(delivery);
    }
  }

  async #stayLinked(): Promise<void> {
    for (let gone: string; ; ) {
      try {
        await this.#link();
        return;
      } catch (error) {
        if (!(error instanceof ApiError) || error.status !== 404) throw error;
        const [stream, missing] = await this.#nameMissing(error);
        if (this.#options.onGone !== "recreate") throw missing;
        gone = stream;
      }
      this.holdings.forget(gone);
      if (this.holdings.stopping.aborted) return;
      await this.#recreate(gone);
    }
  }

  /** What is gone, and of which stream: gateways also say `no_group` where the stream is missing. */
  async #nameMissing(error: ApiError): Promise<[string, ApiError]> {
    if (error instanceof StreamDeletedError || error instanceof GroupDeletedError) return [this.holdings.stream, error];
    for (const stream of this.holdings.streams) {
      if (await this.#isMissing(() => this.client.getStream(stream))) return [stream, new StreamDeletedError(stream)];
    }
    const last = this.holdings.streams[this.holdings.streams.length - 1] as string;
    for (const stream of this.holdings.streams) {
      if (stream === last || (await this.#isMissing(() => this.holdings.group(stream).info()))) {
        return [stream, new GroupDeletedError(stream, this.#options.group)];
      }
    }
    throw error;
  }

  /** Whether there is no such thing, as far as this worker may know. */
  async #isMissing(look: () => Promise<unknown>): Promise<boolean> {
    try {
      return !(await this.#unanswered(look));
    } catch (refused) {
      if (refused instanceof ApiError && refused.status === 404) return true;
      if (!(refused instanceof ForbiddenError)) throw refused;
      return false;
    }
  }

  /** Make the group again, and the stream where it is missing. */
  async #recreate(stream: string): Promise<void> {
    await interruptible(RECREATE_PAUSE_MS, this.holdings.stopping);
    await this.#makeGroup(this.holdings.group(stream), "0");
    const requested = this.holdings.lastIds.get(stream) ?? "0-0";
    this.holdings.reportGap({ requested, first_available: "0-0", lost: null, reason: "recreated" }, stream);
    this.holdings.lastIds.delete(stream);
  }

  async #makeGroups(): Promise<void> {
    for (const group of this.holdings.groups.values()) await this.#makeGroup(group, this.#options.start ?? "0");
  }

  async #makeGroup(group: Group, start: string): Promise<void> {
    const { orderedBy: ordered_by, inFlightPerKey: in_flight_per_key = 1 } = this.#options;
    const order = ordered_by === undefined ? {} : { ordered_by, in_flight_per_key };
    const found = await this.#unanswered(() => group.ensure(start, order));
    if (ordered_by === undefined || (found.ordered_by === ordered_by && found.in_flight_per_key === in_flight_per_key)) return;
    const there = found.ordered_by ? `ordered_by=${found.ordered_by}, in_flight_per_key=${found.in_flight_per_key}` : "no order";
    const remedy = "leave the order to it, or change it first";
    throw new InvalidValueError(`the group ${group.name} of ${group.stream} is there with ${there}: ${remedy}`);
  }

  async #link(): Promise<void> {
    const link = new AbortController();
    if (this.#options.via === "long-poll" || this.holdings.streams.length > 1) {
      // When one fails, so does the other, and nothing of it goes on afterwards.
      const both = [this.#poll(link.signal), this.#settleByRequests(link.signal)].map((one) =>
        one.catch((error: unknown) => {
          link.abort();
          this.holdings.notify();
          throw error;
        }),
      );
      await Promise.all(both).finally(() => Promise.allSettled(both));
      return;
    }
    for (let pauseMs = PAUSE_MS_MIN; !this.holdings.stopping.aborted; pauseMs = Math.min(2 * pauseMs, PAUSE_MS_MAX)) {
      // A subscription makes a group without a policy.
      if (this.#options.orderedBy !== undefined) await this.#makeGroups();
      if (await consumeOverSocket(this.holdings)) pauseMs = PAUSE_MS_MIN;
      else if (!this.holdings.stopping.aborted) this.holdings.reportUnreached("no WebSocket could be opened");
      if (!this.holdings.stopping.aborted) await interruptible(pauseMs * (0.5 + Math.random()), this.holdings.stopping);
    }
    // Over a subscription, what is given back would come again at once.
    await this.#settleByRequests(link.signal);
  }

  async #settleByRequests(link: AbortSignal): Promise<void> {
    const over = this.holdings.over;
    while (!over.aborted && !link.aborted && !this.#failure) {
      const change = this.holdings.changed();
      // A read that is being cut off would be given what goes back, and its answer would reach nothing.
      const isCut = this.#isPolling && this.holdings.stopping.aborted;
      const ready = this.holdings.unconfirmed.filter(({ kind }) => kind === "ack" || !isCut);
      for (const batch of batches(ready)) {
        const group = this.holdings.group(batch[0]?.stream ?? this.holdings.stream);
        await this.#unanswered(() => settleByRequest(group, this.#options.consumer, batch, over));
        this.holdings.confirm(batch);
      }
      if (ready.length === 0 || this.holdings.unconfirmed.length === 0) await change;
    }
  }

  async #poll(link: AbortSignal): Promise<void> {
    this.#isPolling = true;
    const signal = AbortSignal.any([this.holdings.stopping, link]);
    await this.#makeGroups();
    await this.#readHistory();
    while (!signal.aborted && !this.#failure) {
      const { room } = this.holdings;
      if (room <= 0) {
        await this.holdings.changed();
        continue;
      }
      try {
        const pages = await this.#readNew(room, signal);
        this.holdings.reportReached();
        for (const [stream, page] of pages) {
          if (page.gap) this.holdings.reportGap(page.gap, stream);
          this.holdings.reportPaused(stream, page.paused ?? false);
          for (const entry of page.entries) this.holdings.receive(entry, false);
        }
        if ([...pages.values()].every(({ drained }) => drained)) this.stop();
      } catch (error) {
        if (signal.aborted) break;
        if (!isTemporary(error)) throw error;
        this.holdings.reportUnreached(error);
        // Entries of a lost answer are delivered all the same.
        await interruptible(PAUSE_MS_MIN, signal);
        await this.#readHistory();
      }
    }
    if (!link.aborted) await this.#giveBackUnseen();
    this.#isPolling = false;
    this.holdings.notify();
  }

  /** Wait for entries that were given back, or are new: of the first stream first. */
  async #readNew(count: number, signal: AbortSignal): Promise<Map<string, Page>> {
    const { group, consumer, claimMinIdleMs = CLAIM_RELEASED_ONLY_MS } = this.#options;
    const options = { count, waitMs: POLL_WAIT_MS, signal, claimMinIdleMs };
    if (this.holdings.streams.length > 1) return this.client.readGroup(this.holdings.streams, { group, consumer, ...options });
    return new Map([[this.holdings.stream, await this.holdings.group(this.holdings.stream).read(consumer, options)]]);
  }

  /** What an answer held that was cut off. Not by reading the history, which would count as a delivery. */
  async #giveBackUnseen(): Promise<void> {
    for (const [stream, group] of this.holdings.groups) {
      const pending = await this.#unanswered(async () => {
        const ids: string[] = [];
        for await (const { id } of group.pending({ consumer: this.#options.consumer })) ids.push(id);
        return ids;
      });
      for (const id of pending) this.holdings.giveBack(stream, id);
    }
  }

  async #readHistory(): Promise<void> {
    for (const group of this.holdings.groups.values()) {
      for (let after: string | null = "0"; after !== null; ) {
        const from: string = after;
        const page = await this.#unanswered(() => group.history(this.#options.consumer, { after: from, count: 1_000 }));
        for (const entry of page.entries) this.holdings.receive(entry, true);
        after = page.entries.length === 0 ? null : page.next;
      }
    }
  }

  /** Repeat for as long as no answer comes: a worker outlives any outage. */
  async #unanswered<T>(request: () => Promise<T>): Promise<T> {
    for (;;) {
      try {
        const answer = await request();
        this.holdings.reportReached();
        return answer;
      } catch (error) {
        if (!isTemporary(error)) throw error;
        this.holdings.reportUnreached(error);
        await sleep(PAUSE_MS_MIN * 10, this.holdings.over);
      }
    }
  }
}

async function interruptible(ms: number, signal: AbortSignal): Promise<void> {
  await sleep(ms, signal).catch(() => undefined);
}

function backoff(retry: Backoff | undefined, deliveries: number): number {
  if (!retry) return 0;
  const { firstMs, factor = 2, maxMs = 3_600_000 } = retry;
  return firstMs === 0 ? 0 : Math.min(maxMs, firstMs * factor ** (deliveries - 1));
}
