/** A worker: a consumer of a group that acknowledges what it has done. */

import { Client, Group, type NackMode, type References } from "./client.js";
import type { Entry, Gap, Page } from "./entries.js";
import {
  ApiError,
  describeGap,
  ForbiddenError,
  GroupDeletedError,
  InvalidValueError,
  StreamDeletedError,
} from "./errors.js";
import { isTemporary, sleep } from "./http.js";
import { keepLeases, LostDeliveries, type Holder } from "./leases.js";
import { batches, settleByRequest, type Settlement } from "./settlements.js";
import { consumeOverSocket } from "./socket.js";

const CREDIT_DEFAULT = 100;
const GRACE_MS_DEFAULT = 30_000;
const POLL_WAIT_MS = 20_000;
// A group read takes entries that were given back only if it claims. No entry that a consumer holds is so old.
const CLAIM_RELEASED_ONLY_MS = Number.MAX_SAFE_INTEGER;
const PAUSE_MS_MIN = 100;
/** The gateway's limit, and a week. */
const DELAY_MS_MAX = 7 * 24 * 3_600_000;
const PAUSE_MS_MAX = 30_000;
/** Else a stream that something deletes again and again would keep the gateway busy. */
const RECREATE_PAUSE_MS = 100;

/** `firstMs` after the first delivery, `factor` (2) times as long after each further one, `maxMs` (an hour) at most. */
export interface Backoff {
  firstMs: number;
  factor?: number;
  maxMs?: number;
}

export interface WorkerOptions {
  /** The stream, or in its place several `streams`. */
  stream?: string;
  /**
   * Several streams, over long-polls: entries of the first come before those of the second, and so on. As long as the first
   * has any, none of the others is taken, however long they wait. The worker holds no more than it works on (`credit`).
   */
  streams?: readonly string[];
  priority?: "strict";
  group: string;
  /** A name of this worker's own: what it holds when it dies is found again under that name. */
  consumer: string;
  /** Where a group that is created begins: `0` (default) with the oldest entry, `$` with the next. */
  start?: string;
  /** How many entries it holds at most. */
  credit?: number;
  /** Also take over what other consumers have held for so long. */
  claimMinIdleMs?: number;
  via?: "websocket" | "long-poll";
  /** Node before version 22 has none of its own: pass the one of the package `ws`. */
  webSocket?: typeof WebSocket;
  /** Called for entries that were removed before the group read them; without it a warning is logged. */
  onGap?: (gap: Gap) => void;
  /**
   * What to do when the stream or the group is deleted: end with a StreamDeletedError or GroupDeletedError (`throw`, the
   * default), or make the group again before the oldest entry and go on (`recreate`). Then `onGap` is called with the
   * reason `recreated`, and what is held of the old stream is forgotten: settling it does nothing.
   */
  onGone?: "throw" | "recreate";
  /** How long to wait before an entry that `handle` failed with is given back; without it others get it at once. */
  retry?: Backoff;
  /**
   * Whether what it holds is extended by itself: with `auto`, the default, neither the group's `ack_timeout_ms` nor others'
   * `claimMinIdleMs` takes it while this worker lives.
   */
  lease?: "auto" | "off";
  /** Called with what `handle` threw; without it an error is logged. */
  onError?: (error: unknown, entry: Entry) => void;
  /** How long `run` waits at its end for what is being worked on. */
  graceMs?: number;
}

/** An entry that the worker holds until it acknowledges it or gives it back. */
export interface Delivery {
  readonly entry: Entry;
  /** The work is done. Returns at once; repeated over lost connections until the gateway has confirmed it. */
  ack(remove?: References): void;
  /** Give the entry back. Returns at once, as `ack`. */
  nack(mode?: NackMode): void;
  /**
   * Give the entry back after this number of milliseconds, seven days at most: no consumer gets it before. The gateway
   * keeps the time, even if this worker ends.
   */
  retryIn(ms: number, mode?: NackMode): void;
  /**
   * Say that the work goes on, so that no other consumer takes the entry over; whether it is still held. A worker does
   * that by itself, unless its `lease` is `off`.
   */
  extend(): Promise<boolean>;
  /**
   * Whether the gateway has given the entry to another consumer meanwhile: stop working on it. After that only `ack()`
   * counts, which says that the work is done all the same.
   */
  readonly lost: boolean;
}

export type Handler = (delivery: Delivery) => unknown;

/**
 * Consumes a stream, or several, as one consumer of a group; the group is created where it is missing. First come entries that
 * this consumer did not acknowledge in an earlier life, then new ones. A lost connection is made again, for ever;
 * entries that are held meanwhile stay held and are not delivered twice to this worker.
 */
export class Worker {
  readonly client: Client;
  readonly options: WorkerOptions;
  readonly streams: readonly string[];
  /** The first one. */
  readonly stream: string;
  credit: number;
  readonly #groups: Map<string, Group>;
  /** Of each stream what waits for the handler. */
  readonly #queues: Map<string, Delivery[]>;
  readonly #held = new Map<string, Delivery>();
  readonly #lost = new LostDeliveries();
  /** How often each is being extended: were it given back meanwhile, the gateway might do that first. */
  readonly #extending = new Map<string, number>();
  readonly #unconfirmed = new Map<string, Settlement>();
  readonly #stopping = new AbortController();
  /** Aborted at the very end: nothing is sent any more. */
  readonly #over = new AbortController();
  #changed: () => void = () => undefined;
  #change: Promise<void> = Promise.resolve();
  #failure: { error: unknown } | undefined;
  /** The gateway could not be used last time, and that was said. */
  #away = false;
  #isPolling = false;
  /** The group delivers nothing, as far as this worker knows. */
  readonly #paused = new Set<string>();
  /** The entry that was delivered last, of each stream. */
  readonly #lastIds = new Map<string, string>();

  constructor(client: Client | string, options: WorkerOptions) {
    this.client = typeof client === "string" ? new Client({ url: client }) : client;
    this.options = options;
    const { stream, streams = stream === undefined ? [] : [stream], group } = options;
    if (streams.length === 0 || new Set(streams).size < streams.length || (stream !== undefined && options.streams)) {
      throw new InvalidValueError("a worker has one stream, or several streams, each once");
    }
    this.streams = streams;
    this.stream = streams[0] as string;
    // Of several streams it takes no more than it works on.
    this.credit = options.credit ?? (streams.length > 1 ? 1 : CREDIT_DEFAULT);
    if (!(this.credit >= 1)) throw new InvalidValueError("credit is at least 1");
    this.#groups = new Map(streams.map((one) => [one, new Group(this.client.http, one, group, this.#over.signal)]));
    this.#queues = new Map(streams.map((one) => [one, []]));
    this.#renew();
  }

  /** Aborted once it takes no more entries. */
  get stopping(): AbortSignal {
    return this.#stopping.signal;
  }

  /** What the gateway has not confirmed yet and may be sent. */
  get unconfirmed(): Settlement[] {
    const all = [...this.#unconfirmed.values()];
    return this.#extending.size === 0 ? all : all.filter((one) => one.kind === "ack" || !this.#extending.has(keyOf(one)));
  }

  /** Take no more entries: `run` ends once the work in hand is settled. Entries not begun go back to the group. */
  stop(): void {
    if (this.stopping.aborted) return;
    this.#stopping.abort();
    for (const queue of this.#queues.values()) for (const delivery of queue.splice(0)) delivery.nack("silent");
    this.#notify();
  }

  /**
   * Call `handle` for each delivery, `concurrency` at a time, until `stop`. What it returns from (or resolves) is
   * acknowledged, unless it settled the delivery itself; what it throws is reported and given back.
   */
  async run(handle: Handler, concurrency = 1): Promise<void> {
    const linking = this.#stayLinked().catch((error: unknown) => {
      if (!this.#over.signal.aborted) this.#failure ??= { error };
      this.#notify();
    });
    if (this.streams.length > 1) this.credit = this.options.credit ?? concurrency;
    const groups = [...this.#groups.values()];
    const leasing = this.options.lease === "off" ? undefined : keepLeases(groups, this.#holder(), this.#over.signal);
    await Promise.all(Array.from({ length: concurrency }, () => this.#work(handle)));
    const deadline = performance.now() + (this.options.graceMs ?? GRACE_MS_DEFAULT);
    while (!this.#failure && this.#held.size + this.#unconfirmed.size > 0 && performance.now() < deadline) {
      await Promise.race([this.#change, sleep(100)]);
    }
    this.#over.abort();
    this.#notify();
    await linking;
    await leasing?.catch((error: unknown) => (this.#failure ??= { error }));
    if (this.#failure) throw this.#failure.error;
  }

  /** For links: an entry was delivered; `history` if this consumer had it before the connection was made. */
  receive(entry: Entry, history: boolean): void {
    if (!history) this.reportPaused(entry.stream, false);
    const key = keyOf(entry);
    const settled = this.#unconfirmed.get(key);
    if (this.#held.has(key) || (settled && (history || settled.kind === "ack"))) return;
    this.#lastIds.set(entry.stream, entry.id);
    const lost = this.#lost.takeBack(key);
    if (lost) {
      // It is being worked on: it is not begun a second time.
      this.#held.set(key, lost);
      return;
    }
    // Otherwise a settled entry has been given back, and comes again before the answer to that.
    this.#unconfirmed.delete(key);
    const delivery = this.#delivery(entry);
    this.#held.set(key, delivery);
    if (entry.deleted) delivery.ack();
    else if (this.stopping.aborted) delivery.nack("silent");
    else this.#queues.get(entry.stream)?.push(delivery);
    this.#notify();
  }

  /** For links: the gateway has carried these out. */
  confirm(settlements: readonly Settlement[]): void {
    for (const one of settlements) {
      if (this.#unconfirmed.get(keyOf(one)) === one) this.#unconfirmed.delete(keyOf(one));
    }
    this.#notify();
  }

  /** For links: entries were removed before the group read them. */
  reportGap(gap: Gap, stream = this.stream): void {
    if (this.options.onGap) this.options.onGap(gap);
    else console.warn(`group ${this.options.group}: ${describeGap(stream, gap)}`);
  }

  /** For links: the gateway can be used. */
  reportReached(): void {
    if (this.#away) console.warn(`worker ${this.options.consumer} has reached ${this.client.http.url.href} again`);
    this.#away = false;
  }

  /** For links: the backend of the gateway cannot be used, and entries wait there. */
  reportAway(): void {
    console.warn(`worker ${this.options.consumer} waits: the backend of ${this.client.http.url.href} is away`);
  }

  /** For links: the group of a stream delivers nothing, or again. */
  reportPaused(stream: string, paused: boolean): void {
    if (paused === this.#paused.has(stream)) return;
    if (paused) this.#paused.add(stream);
    else this.#paused.delete(stream);
    console.warn(`group ${this.options.group} of ${stream} ${paused ? "is paused: nothing comes until it is resumed" : "was resumed"}`);
  }

  /** For links: resolves when something was received, settled or confirmed, or it stops. */
  changed(): Promise<void> {
    return this.#change;
  }

  #delivery(entry: Entry): Delivery {
    const [lost, key, { stream }] = [this.#lost, keyOf(entry), entry];
    const delivery: Delivery = {
      entry,
      ack: (remove) => this.#settle(delivery, { stream, id: entry.id, kind: "ack", detail: remove }),
      nack: (mode = "fail") => this.#settle(delivery, { stream, id: entry.id, kind: "nack", detail: mode }),
      retryIn: (ms, mode = "fail") => {
        if (!(ms >= 0 && ms <= DELAY_MS_MAX)) throw new InvalidValueError(`a delay is 0 to ${DELAY_MS_MAX} milliseconds`);
        this.#settle(delivery, { stream, id: entry.id, kind: "nack", detail: mode, delayMs: Math.round(ms) });
      },
      extend: async () => {
        await this.#extend([delivery]);
        return !delivery.lost && this.#held.get(key) === delivery;
      },
      get lost() {
        return lost.tell(key, delivery);
      },
    };
    return delivery;
  }

  #holder(): Holder {
    const { claimMinIdleMs } = this.options;
    return { claimMinIdleMs, held: () => [...this.#held.values()], extend: (some) => this.#extend(some) };
  }

  /** Start the idle time of entries of one stream anew, as far as the program holds them. What is another's is lost. */
  async #extend(deliveries: readonly Delivery[]): Promise<void> {
    const held = deliveries.filter((one) => this.#held.get(keyOf(one.entry)) === one);
    if (held[0] === undefined) return;
    this.#noteExtending(held, 1);
    try {
      const ids = held.map(({ entry }) => entry.id);
      const extended = new Set(await this.#group(held[0].entry.stream).extend(this.options.consumer, ids));
      for (const one of held) if (!extended.has(one.entry.id)) this.#lose(one);
    } finally {
      this.#noteExtending(held, -1);
      this.#notify();
    }
  }

  #noteExtending(deliveries: readonly Delivery[], more: number): void {
    for (const key of deliveries.map(({ entry }) => keyOf(entry))) {
      const times = (this.#extending.get(key) ?? 0) + more;
      if (times > 0) this.#extending.set(key, times);
      else this.#extending.delete(key);
    }
  }

  /** The gateway says that this is not this consumer's: unless the program has settled it meanwhile, it is another's. */
  #lose(delivery: Delivery): void {
    const [key, { id, stream }] = [keyOf(delivery.entry), delivery.entry];
    if (this.#held.get(key) !== delivery) return;
    this.#held.delete(key);
    this.#lost.add(key, delivery);
    console.warn(`entry ${id} of ${stream} is this consumer's no more`);
    this.#notify();
  }

  #settle(delivery: Delivery, settlement: Settlement): void {
    // Settled before: the first word counts. Or of a stream that was deleted: another entry may have its ID by now. Of
    // one that was lost it counts that the work is done.
    const key = keyOf(settlement);
    const counts = this.#lost.settle(key, delivery, settlement.kind === "ack");
    if (!counts && this.#held.get(key) !== delivery) return;
    this.#held.delete(key);
    this.#unconfirmed.set(key, settlement);
    this.#notify();
  }

  async #work(handle: Handler): Promise<void> {
    for (;;) {
      const delivery = this.streams.map((stream) => this.#queues.get(stream)).find((queue) => queue?.length)?.shift();
      if (delivery?.lost) this.#lost.forget(keyOf(delivery.entry), delivery);
      else if (delivery) await this.#handle(handle, delivery);
      else if (this.stopping.aborted || this.#failure) return;
      else await this.#change;
    }
  }

  async #handle(handle: Handler, delivery: Delivery): Promise<void> {
    try {
      await handle(delivery);
      // Unless it was told to stop, the work is done.
      if (!this.#lost.isDropped(delivery)) delivery.ack();
    } catch (error) {
      delivery.retryIn(backoff(this.options.retry, delivery.entry.delivery_count ?? 1));
      if (this.options.onError) this.options.onError(error, delivery.entry);
      else console.error(`the handler failed for entry ${delivery.entry.id}`, error);
    } finally {
      this.#lost.forget(keyOf(delivery.entry), delivery);
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
        if (this.options.onGone !== "recreate") throw missing;
        gone = stream;
      }
      this.#forget(gone);
      if (this.stopping.aborted) return;
      await this.#recreate(gone);
    }
  }

  /** What is gone, and of which stream: gateways also say `no_group` where the stream is missing. */
  async #nameMissing(error: ApiError): Promise<[string, ApiError]> {
    if (error instanceof StreamDeletedError || error instanceof GroupDeletedError) return [this.stream, error];
    for (const stream of this.streams) {
      if (await this.#isMissing(() => this.client.getStream(stream))) return [stream, new StreamDeletedError(stream)];
    }
    const last = this.streams[this.streams.length - 1] as string;
    for (const stream of this.streams) {
      if (stream === last || (await this.#isMissing(() => this.#group(stream).info()))) {
        return [stream, new GroupDeletedError(stream, this.options.group)];
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

  /** What it holds of the stream and has not settled belongs to a group that is gone. */
  #forget(stream: string): void {
    this.#queues.set(stream, []);
    this.#lost.forgetStream(stream);
    for (const [key, { entry }] of this.#held) if (entry.stream === stream) this.#held.delete(key);
    for (const [key, one] of this.#unconfirmed) if (one.stream === stream) this.#unconfirmed.delete(key);
    this.#notify();
  }

  /** Make the group again, and the stream where it is missing. */
  async #recreate(stream: string): Promise<void> {
    await interruptible(RECREATE_PAUSE_MS, this.stopping);
    await this.#unanswered(() => this.#group(stream).ensure("0"));
    const requested = this.#lastIds.get(stream) ?? "0-0";
    this.reportGap({ requested, first_available: "0-0", lost: null, reason: "recreated" }, stream);
    this.#lastIds.delete(stream);
  }

  #group(stream: string): Group {
    return this.#groups.get(stream) as Group;
  }

  async #link(): Promise<void> {
    const link = new AbortController();
    if (this.options.via === "long-poll" || this.streams.length > 1) {
      // When one fails, so does the other, and nothing of it goes on afterwards.
      const both = [this.#poll(link.signal), this.#settleByRequests(link.signal)].map((one) =>
        one.catch((error: unknown) => {
          link.abort();
          this.#notify();
          throw error;
        }),
      );
      await Promise.all(both).finally(() => Promise.allSettled(both));
      return;
    }
    for (let pauseMs = PAUSE_MS_MIN; !this.stopping.aborted; pauseMs = Math.min(2 * pauseMs, PAUSE_MS_MAX)) {
      if (await consumeOverSocket(this)) pauseMs = PAUSE_MS_MIN;
      else if (!this.stopping.aborted) this.#warn("no WebSocket could be opened");
      if (!this.stopping.aborted) await interruptible(pauseMs * (0.5 + Math.random()), this.stopping);
    }
    // Over a subscription, what is given back would come again at once.
    await this.#settleByRequests(link.signal);
  }

  async #settleByRequests(link: AbortSignal): Promise<void> {
    const over = this.#over.signal;
    while (!over.aborted && !link.aborted && !this.#failure) {
      const change = this.#change;
      // A read that is being cut off would be given what goes back, and its answer would reach nothing.
      const isCut = this.#isPolling && this.stopping.aborted;
      const ready = this.unconfirmed.filter(({ kind }) => kind === "ack" || !isCut);
      for (const batch of batches(ready)) {
        const group = this.#group(batch[0]?.stream ?? this.stream);
        await this.#unanswered(() => settleByRequest(group, this.options.consumer, batch, over));
        this.confirm(batch);
      }
      if (ready.length === 0 || this.#unconfirmed.size === 0) await change;
    }
  }

  async #poll(link: AbortSignal): Promise<void> {
    this.#isPolling = true;
    const signal = AbortSignal.any([this.stopping, link]);
    for (const group of this.#groups.values()) await this.#unanswered(() => group.ensure(this.options.start ?? "0"));
    await this.#readHistory();
    while (!signal.aborted && !this.#failure) {
      const room = this.credit - this.#held.size - this.#unconfirmed.size;
      if (room <= 0) {
        await this.#change;
        continue;
      }
      try {
        const pages = await this.#readNew(room, signal);
        this.reportReached();
        for (const [stream, page] of pages) {
          if (page.gap) this.reportGap(page.gap, stream);
          this.reportPaused(stream, page.paused ?? false);
          for (const entry of page.entries) this.receive(entry, false);
        }
        if ([...pages.values()].every(({ drained }) => drained)) this.stop();
      } catch (error) {
        if (signal.aborted) break;
        if (!isTemporary(error)) throw error;
        this.#warn(error);
        // Entries of a lost answer are delivered all the same.
        await interruptible(PAUSE_MS_MIN, signal);
        await this.#readHistory();
      }
    }
    if (!link.aborted) await this.#giveBackUnseen();
    this.#isPolling = false;
    this.#notify();
  }

  /** Wait for entries that were given back, or are new: of the first stream first. */
  async #readNew(count: number, signal: AbortSignal): Promise<Map<string, Page>> {
    const { group, consumer, claimMinIdleMs = CLAIM_RELEASED_ONLY_MS } = this.options;
    const options = { count, waitMs: POLL_WAIT_MS, signal, claimMinIdleMs };
    if (this.streams.length > 1) return this.client.readGroup(this.streams, { group, consumer, ...options });
    return new Map([[this.stream, await this.#group(this.stream).read(consumer, options)]]);
  }

  /** What an answer held that was cut off. Not by reading the history, which would count as a delivery. */
  async #giveBackUnseen(): Promise<void> {
    for (const [stream, group] of this.#groups) {
      const pending = await this.#unanswered(async () => {
        const ids: string[] = [];
        for await (const { id } of group.pending({ consumer: this.options.consumer })) ids.push(id);
        return ids;
      });
      for (const id of pending) {
        const key = keyOf({ stream, id });
        if (this.#held.has(key) || this.#unconfirmed.has(key)) continue;
        this.#unconfirmed.set(key, { stream, id, kind: "nack", detail: "silent" });
        this.#notify();
      }
    }
  }

  async #readHistory(): Promise<void> {
    for (const group of this.#groups.values()) {
      for (let after: string | null = "0"; after !== null; ) {
        const from: string = after;
        const page = await this.#unanswered(() => group.history(this.options.consumer, { after: from, count: 1_000 }));
        for (const entry of page.entries) this.receive(entry, true);
        after = page.entries.length === 0 ? null : page.next;
      }
    }
  }

  /** Repeat for as long as no answer comes: a worker outlives any outage. */
  async #unanswered<T>(request: () => Promise<T>): Promise<T> {
    for (;;) {
      try {
        const answer = await request();
        this.reportReached();
        return answer;
      } catch (error) {
        if (!isTemporary(error)) throw error;
        this.#warn(error);
        await sleep(PAUSE_MS_MIN * 10, this.#over.signal);
      }
    }
  }

  #warn(reason: unknown): void {
    if (this.#away) return;
    this.#away = true;
    const said = reason instanceof Error ? reason.message : String(reason);
    console.warn(`worker ${this.options.consumer} tries again to reach ${this.client.http.url.href}: ${said}`);
  }

  #notify(): void {
    const changed = this.#changed;
    this.#renew();
    changed();
  }

  #renew(): void {
    this.#change = new Promise((resolve) => (this.#changed = resolve));
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

/** Two streams may have entries of one ID. */
function keyOf({ stream, id }: { readonly stream: string; readonly id: string }): string {
  return `${id} ${stream}`;
}
