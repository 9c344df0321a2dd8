/*
 * The tab's one WebSocket. It reports its state and resumes every subscription where it stopped.
 *
 * Knows: the frames of weir.v1, credit, cursors, when to reconnect. Must never know: elements, what an entry means.
 *
 * A subscription is a cursor: after a reconnect it subscribes again after the last entry received, so that no entry is
 * lost or repeated. The cursor names its stream, so that another one of the same name causes a gap.
 */

/** @typedef {import("./api.js").Entry} Entry */
/** @typedef {import("./api.js").Gap} Gap */
/** @typedef {{phase: "connecting" | "open" | "waiting" | "refused", sinceMs: number, attempt: number,
 *   retryAtMs: number, lostAtMs: number, reason: string, outage: string}} State */
/**
 * @typedef {object} Subscriber
 * @property {(entries: Entry[], chars: number) => void} onEntries `chars` is the length of the frame
 * @property {(gap: Gap) => void} onGap
 * @property {() => void} onCaughtUp
 * @property {() => void} onPaused the credit is used up and more entries wait
 * @property {(reason: string) => void} onRevoked
 * @property {(end: {last_id: string, closed_at: string, reason: string}) => void} onClosed nothing follows
 * @property {(cursor: string, awayMs: number) => void} onResumed after a reconnect
 * @property {(problem: string) => void} onError
 */

const SUBPROTOCOL = "weir.v1";
const RETRY_MS_MIN = 250;
const RETRY_MS_MAX = 10_000;
// After this many missed heartbeats the connection is dead, even if the system still holds it open.
const HEARTBEATS_MISSED_MAX = 3;
const HEARTBEAT_MS_DEFAULT = 15_000;
// Close codes that a reconnect does not cure.
const REFUSED_MIN = 4500;
const REFUSED_MAX = 4999;
const BACKEND_AWAY = "the backend does not answer";
// `WebSocket.OPEN`
const OPEN = 1;

/** @type {Record<number, string>} */
const REASONS = {
  1001: "the gateway stopped",
  1006: "the connection broke",
  1009: "a frame was too large",
  1012: "the gateway is restarting",
  4000: "the gateway failed",
  4001: "the gateway is stopping",
  4002: "the token expired",
  4004: "this page read too slowly",
  4005: "too many requests",
  4500: "the token is not valid",
  4501: "the gateway does not support this protocol",
  4502: "access is not allowed",
  4503: "there are too many connections",
};

/** The subscription of one stream. Its cursor is all that outlives a connection. */
export class Subscription {
  /** @param {Connection} connection @param {string} sub @param {string} stream @param {string} after
   * @param {number} credit @param {Subscriber} subscriber */
  constructor(connection, sub, stream, after, credit, subscriber) {
    this.connection = connection;
    this.sub = sub;
    this.stream = stream;
    this.cursor = after;
    this.credit = credit;
    this.subscriber = subscriber;
    this.isActive = false;
    // Entries published before this time may have waited for the subscription or for credit.
    this.openSinceMs = Number.POSITIVE_INFINITY;
  }

  /** Allow the gateway to send more entries. @param {number} count */
  grant(count) {
    if (this.credit <= 0) this.openSinceMs = this.connection.environment.now();
    this.credit += count;
    if (this.isActive) this.connection.send({ op: "credit", sub: this.sub, n: count });
  }

  stop() {
    this.connection.unsubscribe(this);
  }
}

/**
 * Sockets, time and chance; tests supply their own.
 * @typedef {{connect: (url: string, protocol: string) => WebSocket, now: () => number, random: () => number}} Environment
 */

/** @type {Environment} */
const BROWSER = {
  connect: (url, protocol) => new WebSocket(url, protocol),
  now: () => Date.now(),
  random: () => Math.random(),
};

/** Fires `change` when its state changes. The owner calls `tick` a few times a second. */
export class Connection extends EventTarget {
  /** @param {string} url @param {Environment} [environment] */
  constructor(url, environment = BROWSER) {
    super();
    this.url = url;
    // Shown to the gateway first; "" where it wants none.
    this.token = "";
    this.environment = environment;
    /** @type {State} */
    this.state = { phase: "connecting", sinceMs: environment.now(), attempt: 0, retryAtMs: 0, lostAtMs: 0, reason: "", outage: "" };
    /** @type {WebSocket | null} */
    this.socket = null;
    /** @type {Map<string, Subscription>} */
    this.subscriptions = new Map();
    this.subscriptionCount = 0;
    this.receivedAtMs = 0;
    this.pingAtMs = 0;
    this.heartbeatMs = HEARTBEAT_MS_DEFAULT;
    // When the gateway wants this connection to be closed.
    this.closeAtMs = Number.POSITIVE_INFINITY;
    // Why it will be closed, where that is known before it happens.
    this.closeReason = "";
  }

  open() {
    if (this.socket !== null) return;
    this.setState({ phase: "connecting" });
    const socket = this.environment.connect(this.url, SUBPROTOCOL);
    this.socket = socket;
    this.receivedAtMs = this.environment.now();
    socket.onmessage = (event) => this.handleFrame(String(event.data));
    socket.onclose = (event) => {
      if (this.socket === socket) this.handleClose(event.code, event.reason);
    };
  }

  /** Reconnect now instead of later. */
  retry() {
    if (this.state.phase === "waiting" || this.state.phase === "refused") this.open();
  }

  /** Note why the gateway cannot serve though it is connected, "" where it can. @param {string} outage */
  setOutage(outage) {
    if (outage !== this.state.outage) this.setState({ phase: this.state.phase, outage });
  }

  /** @param {string} stream @param {string} after @param {number} credit @param {Subscriber} subscriber */
  subscribe(stream, after, credit, subscriber) {
    this.subscriptionCount += 1;
    const subscription = new Subscription(this, `tail-${this.subscriptionCount}`, stream, after, credit, subscriber);
    this.subscriptions.set(subscription.sub, subscription);
    if (this.state.phase === "open") this.activate(subscription);
    return subscription;
  }

  /** @param {Subscription} subscription */
  unsubscribe(subscription) {
    if (!this.subscriptions.delete(subscription.sub)) return;
    if (subscription.isActive) this.send({ op: "unsubscribe", sub: subscription.sub });
    subscription.isActive = false;
  }

  /** @param {object} frame */
  send(frame) {
    if (this.socket?.readyState === OPEN) this.socket.send(JSON.stringify(frame));
  }

  /** @param {Subscription} subscription */
  activate(subscription) {
    subscription.isActive = true;
    subscription.openSinceMs = this.environment.now();
    const { sub, stream, cursor, credit } = subscription;
    this.send({ op: "subscribe", ref: sub, sub, streams: { [stream]: cursor }, cursor: "generation", credit });
  }

  /** @param {Partial<State>} change */
  setState(change) {
    const sinceMs = change.phase === this.state.phase ? this.state.sinceMs : this.environment.now();
    this.state = { ...this.state, sinceMs, ...change };
    this.dispatchEvent(new Event("change"));
  }

  /** @param {string} text */
  handleFrame(text) {
    this.receivedAtMs = this.environment.now();
    const frame = JSON.parse(text);
    if (frame.op === "hello") this.handleHello(frame);
    else if (frame.op === "goaway") this.scheduleClose(Number(frame.after_ms ?? 0));
    else if (frame.op === "error") this.handleError(frame);
    else if (typeof frame.sub === "string") this.handlePush(frame, text.length);
  }

  /** @param {any} frame */
  handleHello(frame) {
    this.heartbeatMs = Number(frame.heartbeat_ms ?? HEARTBEAT_MS_DEFAULT);
    const awayMs = this.state.lostAtMs === 0 ? 0 : this.environment.now() - this.state.lostAtMs;
    this.closeReason = "";
    if (this.token !== "") this.send({ op: "auth", token: this.token });
    this.setState({ phase: "open", attempt: 0, lostAtMs: 0, reason: "" });
    for (const subscription of this.subscriptions.values()) {
      if (awayMs > 0) subscription.subscriber.onResumed(subscription.cursor, awayMs);
      this.activate(subscription);
    }
  }

  /** @param {any} frame @param {number} chars */
  handlePush(frame, chars) {
    const subscription = this.subscriptions.get(frame.sub);
    if (subscription === undefined) return;
    const { subscriber } = subscription;
    if (frame.op === "entries") {
      /** @type {Entry[]} */
      const entries = frame.entries;
      subscription.credit -= entries.length;
      subscription.cursor = frame.next ?? entries.at(-1)?.id ?? subscription.cursor;
      subscriber.onEntries(entries, chars);
    } else if (frame.op === "gap") {
      subscription.cursor = frame.next ?? subscription.cursor;
      subscriber.onGap(frame);
    } else if (frame.op === "caught_up") {
      subscription.cursor = frame.next ?? subscription.cursor;
      subscriber.onCaughtUp();
    }
    else if (frame.op === "paused" && frame.reason === "backend") this.setOutage(BACKEND_AWAY);
    else if (frame.op === "resumed") this.setOutage("");
    else if (frame.op === "paused") subscriber.onPaused();
    else if (frame.op === "closed") {
      this.subscriptions.delete(frame.sub);
      subscriber.onClosed(frame);
    }
    else if (frame.op === "revoked") {
      subscription.isActive = false;
      subscriber.onRevoked(String(frame.reason ?? "revoked"));
    }
  }

  /** @param {any} frame */
  handleError(frame) {
    const problem = frame.problem ?? frame;
    this.subscriptions.get(frame.ref ?? frame.sub)?.subscriber.onError(String(problem.detail ?? problem.title ?? "refused"));
  }

  /** The gateway asks each client to close at another moment. @param {number} afterMs */
  scheduleClose(afterMs) {
    this.closeReason = "the gateway is stopping";
    this.closeAtMs = this.environment.now() + afterMs;
  }

  /** @param {number} code @param {string} closeText */
  handleClose(code, closeText) {
    // The time away counts from the first loss, through all attempts to reconnect.
    const lostAtMs = this.state.lostAtMs || this.environment.now();
    this.socket = null;
    this.closeAtMs = Number.POSITIVE_INFINITY;
    for (const subscription of this.subscriptions.values()) subscription.isActive = false;
    // The reason of the first loss is kept: that of a failed attempt says less.
    const reason = this.state.attempt > 0 ? this.state.reason : this.closeReason || REASONS[code] || closeText || `closed with code ${code}`;
    if (code >= REFUSED_MIN && code <= REFUSED_MAX) {
      this.setState({ phase: "refused", lostAtMs, reason });
      return;
    }
    const attempt = this.state.attempt + 1;
    const waitMsMax = Math.min(RETRY_MS_MAX, RETRY_MS_MIN * 2 ** attempt);
    // Half of the wait is random, so that a thousand tabs do not reconnect at once.
    const waitMs = waitMsMax / 2 + (this.environment.random() * waitMsMax) / 2;
    this.setState({ phase: "waiting", attempt, lostAtMs, reason, retryAtMs: this.environment.now() + waitMs });
  }

  /** Do what is due: reconnect, close, detect a dead connection, ping. */
  tick() {
    const nowMs = this.environment.now();
    if (this.state.phase === "waiting" && nowMs >= this.state.retryAtMs) this.open();
    if (this.socket === null) return;
    if (nowMs >= this.closeAtMs) {
      this.closeAtMs = Number.POSITIVE_INFINITY;
      this.socket.close(1000);
      return;
    }
    if (nowMs - this.receivedAtMs > this.heartbeatMs * HEARTBEATS_MISSED_MAX) {
      const { socket } = this;
      this.closeReason = "the gateway missed three heartbeats";
      this.handleClose(1006, "");
      socket.close();
    } else if (this.state.phase === "open" && nowMs - this.pingAtMs > this.heartbeatMs / 3) {
      this.pingAtMs = nowMs;
      this.send({ op: "ping" });
    }
  }
}
