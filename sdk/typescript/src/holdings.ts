/**
 * What a worker holds, what it has settled, and what of that the gateway has confirmed.
 *
 * Knows: that neither a lost connection nor an entry that comes again changes it, and what others were given. Must never
 * know: frames, or when a connection is made.
 */

import { Group, type Client, type NackMode, type References } from "./client.js";
import type { Entry } from "./entries.js";
import { describeGap, InvalidValueError, type Gap } from "./errors.js";
import type { Settlement } from "./settlements.js";

const CREDIT_DEFAULT = 100;
/** The gateway's limit, and a week. */
const DELAY_MS_MAX = 7 * 24 * 3_600_000;

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
  /**
   * Make the group with this order: entries with the same value of this field are worked on one after the other, or
   * `inFlightPerKey` (1) at a time, by all workers of the group together. A group that is there with another order is refused.
   */
  orderedBy?: string;
  inFlightPerKey?: number;
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

  /** Whether the program has decided about it after it was lost, or had to stop. */
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

/** Of a stream, or of several, as one consumer of a group. */
export class Holdings {
  readonly client: Client;
  readonly options: WorkerOptions;
  readonly streams: readonly string[];
  /** The first one. */
  readonly stream: string;
  readonly groups: ReadonlyMap<string, Group>;
  credit: number;
  /** Of each stream what waits for the handler. */
  readonly #queues: Map<string, Delivery[]>;
  readonly #held = new Map<string, Delivery>();
  readonly #lost = new LostDeliveries();
  /** How often each is being extended: were it given back meanwhile, the gateway might do that first. */
  readonly #extending = new Map<string, number>();
  readonly #unconfirmed = new Map<string, Settlement>();
  readonly #stopping = new AbortController();
  readonly #over = new AbortController();
  #changed: () => void = () => undefined;
  #change: Promise<void> = Promise.resolve();
  /** The gateway could not be used last time, and that was said. */
  #away = false;
  /** The group delivers nothing, as far as this worker knows. */
  readonly #paused = new Set<string>();
  /** The entry that was delivered last, of each stream. */
  readonly lastIds = new Map<string, string>();

  constructor(client: Client, options: WorkerOptions) {
    const { stream, streams = stream === undefined ? [] : [stream], group } = options;
    if (streams.length === 0 || new Set(streams).size < streams.length || (stream !== undefined && options.streams)) {
      throw new InvalidValueError("a worker has one stream, or several streams, each once");
    }
    this.client = client;
    this.options = options;
    this.streams = streams;
    this.stream = streams[0] as string;
    // Of several streams it takes no more than it works on.
    this.credit = options.credit ?? (streams.length > 1 ? 1 : CREDIT_DEFAULT);
    if (!(this.credit >= 1)) throw new InvalidValueError("credit is at least 1");
    this.groups = new Map(streams.map((one) => [one, new Group(client.http, one, group, this.over)]));
    this.#queues = new Map(streams.map((one) => [one, []]));
    this.#renew();
  }

  /** Aborted once it takes no more entries. */
  get stopping(): AbortSignal {
    return this.#stopping.signal;
  }

  /** Aborted at the very end: nothing is sent any more. */
  get over(): AbortSignal {
    return this.#over.signal;
  }

  /** What the program holds or is about to get. */
  get held(): Delivery[] {
    return [...this.#held.values()];
  }

  /** What the gateway has not confirmed yet and may be sent. */
  get unconfirmed(): Settlement[] {
    const all = [...this.#unconfirmed.values()];
    return this.#extending.size === 0 ? all : all.filter((one) => one.kind === "ack" || !this.#extending.has(keyOf(one)));
  }

  /** Nothing is held, and the gateway has confirmed everything. */
  get isEmpty(): boolean {
    return this.#held.size + this.#unconfirmed.size === 0;
  }

  /**
   * How many more entries may be taken: none while the gateway is about to confirm more than that, since one read takes
   * those as well.
   */
  get room(): number {
    const room = this.credit - this.#held.size - this.#unconfirmed.size;
    return room < this.unconfirmed.length ? 0 : room;
  }

  group(stream: string): Group {
    return this.groups.get(stream) as Group;
  }

  /** Take no more entries. Those not begun go back to the group. */
  stop(): void {
    if (this.stopping.aborted) return;
    this.#stopping.abort();
    for (const queue of this.#queues.values()) for (const delivery of queue.splice(0)) delivery.nack("silent");
    this.notify();
  }

  /** Send nothing more. */
  end(): void {
    this.#over.abort();
    this.notify();
  }

  /** The next one that the program has not lost. */
  take(): Delivery | undefined {
    for (;;) {
      const delivery = this.streams.map((stream) => this.#queues.get(stream)).find((queue) => queue?.length)?.shift();
      if (!delivery?.lost) return delivery;
      this.leave(delivery);
    }
  }

  /** The program has left it without a decision: the work is done, unless it had to stop. */
  finish(delivery: Delivery): void {
    if (!this.#lost.isDropped(delivery)) delivery.ack();
  }

  /** The program works on it no more. */
  leave(delivery: Delivery): void {
    this.#lost.forget(keyOf(delivery.entry), delivery);
  }

  /** An entry was delivered; `history` if this consumer had it before the connection was made. */
  receive(entry: Entry, history: boolean): void {
    if (!history) this.reportPaused(entry.stream, false);
    const key = keyOf(entry);
    const settled = this.#unconfirmed.get(key);
    if (this.#held.has(key) || (settled && (history || settled.kind === "ack"))) return;
    this.lastIds.set(entry.stream, entry.id);
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
    this.notify();
  }

  /** The gateway has carried these out. */
  confirm(settlements: readonly Settlement[]): void {
    for (const one of settlements) {
      if (this.#unconfirmed.get(keyOf(one)) === one) this.#unconfirmed.delete(keyOf(one));
    }
    this.notify();
  }

  /** Entries were removed before the group read them. */
  reportGap(gap: Gap, stream = this.stream): void {
    if (this.options.onGap) this.options.onGap(gap);
    else console.warn(`group ${this.options.group}: ${describeGap(stream, gap)}`);
  }

  /** The gateway can be used. */
  reportReached(): void {
    if (this.#away) console.warn(`worker ${this.options.consumer} has reached ${this.client.http.url.href} again`);
    this.#away = false;
  }

  /** The backend of the gateway cannot be used, and entries wait there. */
  reportAway(): void {
    console.warn(`worker ${this.options.consumer} waits: the backend of ${this.client.http.url.href} is away`);
  }

  /** The group of a stream delivers nothing, or again. */
  reportPaused(stream: string, paused: boolean): void {
    if (paused === this.#paused.has(stream)) return;
    if (paused) this.#paused.add(stream);
    else this.#paused.delete(stream);
    console.warn(`group ${this.options.group} of ${stream} ${paused ? "is paused: nothing comes until it is resumed" : "was resumed"}`);
  }

  /** Resolves when something was received, settled or confirmed, or it stops. */
  changed(): Promise<void> {
    return this.#change;
  }

  /** An entry was delivered to this consumer and never reached this program. */
  giveBack(stream: string, id: string): void {
    const key = keyOf({ stream, id });
    if (this.#held.has(key) || this.#unconfirmed.has(key)) return;
    this.#unconfirmed.set(key, { stream, id, kind: "nack", detail: "silent" });
    this.notify();
  }

  /** What it holds of the stream and has not settled belongs to a group that is gone. */
  forget(stream: string): void {
    this.#queues.set(stream, []);
    this.#lost.forgetStream(stream);
    for (const [key, { entry }] of this.#held) if (entry.stream === stream) this.#held.delete(key);
    for (const [key, one] of this.#unconfirmed) if (one.stream === stream) this.#unconfirmed.delete(key);
    this.notify();
  }

  /** Start the idle time of entries of one stream anew, as far as the program holds them. What is another's is lost. */
  async extend(deliveries: readonly Delivery[]): Promise<void> {
    const held = deliveries.filter((one) => this.#held.get(keyOf(one.entry)) === one);
    if (held[0] === undefined) return;
    this.#noteExtending(held, 1);
    try {
      const ids = held.map(({ entry }) => entry.id);
      const extended = new Set(await this.group(held[0].entry.stream).extend(this.options.consumer, ids));
      for (const one of held) if (!extended.has(one.entry.id)) this.#lose(one);
    } finally {
      this.#noteExtending(held, -1);
      this.notify();
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
    this.notify();
  }

  #settle(delivery: Delivery, settlement: Settlement): void {
    // Settled before: the first word counts. Or of a stream that was deleted: another entry may have its ID by now. Of
    // one that was lost it counts that the work is done.
    const key = keyOf(settlement);
    const counts = this.#lost.settle(key, delivery, settlement.kind === "ack");
    if (!counts && this.#held.get(key) !== delivery) return;
    this.#held.delete(key);
    this.#unconfirmed.set(key, settlement);
    this.notify();
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
        await this.extend([delivery]);
        return !delivery.lost && this.#held.get(key) === delivery;
      },
      get lost() {
        return lost.tell(key, delivery);
      },
    };
    return delivery;
  }

  /** The gateway cannot be used: said once. */
  reportUnreached(reason: unknown): void {
    if (this.#away) return;
    this.#away = true;
    const said = reason instanceof Error ? reason.message : String(reason);
    console.warn(`worker ${this.options.consumer} tries again to reach ${this.client.http.url.href}: ${said}`);
  }

  /** Something was received, settled or confirmed, or it stops. */
  notify(): void {
    const changed = this.#changed;
    this.#renew();
    changed();
  }

  #renew(): void {
    this.#change = new Promise((resolve) => (this.#changed = resolve));
  }
}

/** Two streams may have entries of one ID. */
function keyOf({ stream, id }: { readonly stream: string; readonly id: string }): string {
  return `${id} ${stream}`;
}
