/** One WebSocket connection of a worker, from its handshake to its end. */

import { problemError } from "./client.js";
import type { Frame, Sent } from "./documents/types.js";
import { parseEntry } from "./entries.js";
import {
  ConnectionClosedError,
  ConsumerReplacedError,
  GroupDeletedError,
  InvalidValueError,
  NotAGatewayError,
  StreamDeletedError,
  WeirError,
  type Gap,
  type Problem,
} from "./errors.js";
import type { Holdings } from "./holdings.js";
import { isObject } from "./http.js";
import { batches, type Settlement } from "./settlements.js";

/** Until the gateway has said how often its heartbeat comes. */
const HEARTBEAT_MS_DEFAULT = 15_000;
/** Close codes from here on mean: do not come again. */
const FINAL_CLOSE_MIN = 4500;
const FORBIDDEN: Problem = { status: 403, code: "forbidden", detail: "the token does not allow this any more" };
const BAD_TOKEN: Problem = { status: 401, code: "unauthenticated", detail: "the token is wrong, expired or revoked" };
const CLOSES: Partial<Record<number, Problem>> = { 4500: BAD_TOKEN, 4502: FORBIDDEN };
const CONSUME = "consume";
const UNSUBSCRIBE = "unsubscribe";

/** Consume until the connection ends; whether it was one. Throws what cannot be helped by coming again. */
export async function consumeOverSocket(holdings: Holdings): Promise<boolean> {
  const Socket = holdings.options.webSocket ?? globalThis.WebSocket;
  if (Socket === undefined) throw new InvalidValueError("there is no WebSocket here: pass `webSocket`, or via: 'long-poll'");
  const url = holdings.client.http.endpoint("/v1/ws");
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  const token = await holdings.client.http.token();
  return new Promise((resolve, reject) => {
    new Connection(holdings, new Socket(url, "weir.v1"), token, resolve, reject);
  });
}

class Connection {
  readonly #holdings: Holdings;
  readonly #socket: WebSocket;
  readonly #resolve: (connected: boolean) => void;
  readonly #reject: (error: unknown) => void;
  /** Settlements on their way, by the `ref` of their frame; and the last one sent for each entry. */
  readonly #awaited = new Map<number, Settlement[]>();
  #sent = new Map<string, Settlement>();
  #ref = 0;
  #consuming = false;
  #unsubscribing = false;
  /** Until `caught_up` comes what this consumer had already. */
  #inHistory = true;
  #heartbeatMs = HEARTBEAT_MS_DEFAULT;
  #silence: ReturnType<typeof setTimeout> | undefined;
  #over = false;

  constructor(
    holdings: Holdings,
    socket: WebSocket,
    token: string | undefined,
    resolve: (connected: boolean) => void,
    reject: (error: unknown) => void,
  ) {
    this.#holdings = holdings;
    this.#socket = socket;
    this.#resolve = resolve;
    this.#reject = reject;
    socket.addEventListener("open", () => this.#open(token));
    socket.addEventListener("message", ({ data }) => this.#message(data));
    socket.addEventListener("close", ({ code, reason }) => this.#closed(code, reason));
    // Without a listener for "error", some runtimes end the process.
    socket.addEventListener("error", () => this.#closed(1006, ""));
    this.#listen();
  }

  #open(token: string | undefined): void {
    if (token !== undefined) this.#send({ op: "auth", token });
    const { stream, options } = this.#holdings;
    const { group, consumer, start = "0", claimMinIdleMs: claim_min_idle_ms } = options;
    const credit = this.#holdings.credit;
    const place = { stream, group, consumer, create: start, credit, claim_min_idle_ms };
    this.#send({ op: "consume", ref: CONSUME, sub: "work", ...place });
    void this.#settle();
  }

  #message(data: unknown): void {
    this.#listen();
    try {
      const frame = JSON.parse(String(data)) as Frame;
      if (!isObject(frame)) throw new TypeError("no object");
      if (frame.op === "gap") this.#gap(frame);
      else this.#take(frame);
    } catch (cause) {
      this.#end(new NotAGatewayError("a frame is not a gateway's", { cause }));
    }
  }

  #gap(gap: Gap): void {
    try {
      this.#holdings.reportGap(gap);
    } catch (error) {
      // The program's own.
      this.#end(error as Error);
    }
  }

  #take(frame: Frame): void {
    if (frame.op === "hello" && frame.heartbeat_ms > 0) this.#heartbeatMs = frame.heartbeat_ms;
    else if (frame.op === "hello") throw new TypeError("no heartbeat");
    else if (frame.op === "caught_up") this.#inHistory = false;
    else if (frame.op === "revoked") this.#end(this.#endOf(frame.reason));
    else if (frame.op === "paused" && frame.reason === "backend") this.#holdings.reportAway();
    else if (frame.op === "paused" && frame.reason === "group") this.#holdings.reportPaused(this.#holdings.stream, true);
    else if (frame.op === "resumed") this.#holdings.reportPaused(this.#holdings.stream, false);
    else if (frame.op === "drained") this.#drained();
    else if (frame.op === "error") this.#refused(frame.problem);
    else if (frame.op === "ok") this.#ok(frame.ref);
    else if (frame.op === "entries") {
      for (const wire of frame.entries) {
        this.#holdings.receive(parseEntry(wire, this.#holdings.stream), this.#inHistory);
      }
    }
  }

  /** The stream is closed, and nothing of it is left in the group: the subscription has ended. */
  #drained(): void {
    this.#holdings.stop();
    this.#end();
  }

  /** Why the gateway ended the subscription. */
  #endOf(reason: string): WeirError {
    const { stream, options: { group } } = this.#holdings;
    if (reason === "replaced") return new ConsumerReplacedError();
    if (reason === "stream_deleted") return new StreamDeletedError(stream);
    if (reason === "group_destroyed") return new GroupDeletedError(stream, group);
    if (reason === "forbidden") return problemError(FORBIDDEN);
    return new WeirError(`the gateway ended the subscription: ${reason}`);
  }

  #ok(ref: number | string | undefined): void {
    if (ref === CONSUME) {
      this.#consuming = true;
      this.#holdings.reportReached();
      this.#flush();
    } else if (ref === UNSUBSCRIBE) this.#end();
    else if (typeof ref === "number") {
      this.#holdings.confirm(this.#awaited.get(ref) ?? []);
      this.#awaited.delete(ref);
    }
  }

  #refused(problem: Problem): void {
    const error = problemError(problem);
    // A new connection sends again what was not confirmed.
    this.#end(error.retryable ? undefined : error);
  }

  async #settle(): Promise<void> {
    while (!this.#over) {
      const changed = this.#holdings.changed();
      if (this.#consuming) this.#flush();
      await changed;
    }
  }

  #flush(): void {
    if (this.#unsubscribing) return;
    if (this.#holdings.stopping.aborted) {
      this.#unsubscribing = true;
      this.#send({ op: "unsubscribe", ref: UNSUBSCRIBE, sub: "work" });
      return;
    }
    const unconfirmed = this.#holdings.unconfirmed;
    const unsent = unconfirmed.filter((one) => this.#sent.get(one.id) !== one);
    this.#sent = new Map(unconfirmed.map((one) => [one.id, one]));
    for (const batch of batches(unsent)) {
      const [{ kind, detail, delayMs }] = batch as [Settlement];
      this.#awaited.set(++this.#ref, batch);
      const how = kind === "ack" ? { delete: detail } : { mode: detail, delay_ms: delayMs };
      this.#send({ op: kind, ref: this.#ref, sub: "work", ids: batch.map((one) => one.id), ...how });
    }
  }

  #send(frame: Sent<Frame>): void {
    if (this.#socket.readyState === this.#socket.OPEN) this.#socket.send(JSON.stringify(frame));
  }

  #listen(): void {
    clearTimeout(this.#silence);
    this.#silence = setTimeout(() => this.#end(), 2 * this.#heartbeatMs);
  }

  #closed(code: number, reason: string): void {
    if (code < FINAL_CLOSE_MIN) this.#end();
    else {
      // What HTTP says, where that has a word for it.
      const problem = CLOSES[code];
      this.#end(problem ? problemError(problem) : new ConnectionClosedError(code, reason));
    }
  }

  #end(error?: Error): void {
    if (this.#over) return;
    this.#over = true;
    clearTimeout(this.#silence);
    this.#socket.close();
    if (error) this.#reject(error);
    else this.#resolve(this.#consuming);
  }
}
