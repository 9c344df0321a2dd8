/*
 * The tab's one WebSocket: it says honestly how it is, and takes up every stream where it stopped.
 *
 * Knows: the frames of weir.v1, credit, cursors, when to try again. Must never know: elements, what an entry means.
 *
 * A followed stream is a cursor: after a break the same subscription is made again after the last entry that came, so
 * that nothing is missed and nothing comes twice.
 */

/** @typedef {import("./api.js").Entry} Entry */
/** @typedef {import("./api.js").Gap} Gap */
/** @typedef {{phase: "connecting" | "open" | "waiting" | "refused", sinceMs: number, attempt: number,
 *   retryAtMs: number, lostAtMs: number, reason: string}} State */
/**
 * What a follower is told. `chars` is the length of the frame, `resumed` after which ID, and how long it was away.
 * @typedef {object} Follower
 * @property {(entries: Entry[], chars: number) => void} entries
 * @property {(gap: Gap) => void} gap
 * @property {() => void} caughtUp
 * @property {() => void} paused
 * @property {(reason: string) => void} revoked
 * @property {(after: string, awayMs: number) => void} resumed
 * @property {(problem: string) => void} failed
 */

const SUBPROTOCOL = "weir.v1";
const RETRY_MS_MIN = 250;
const RETRY_MS_MAX = 10_000;
// Three heartbeats that did not come are a dead connection, whatever the system thinks of it.
const HEARTBEATS_MISSED_MAX = 3;
const HEARTBEAT_MS_DEFAULT = 15_000;
const REFUSED_FROM = 4500;
// `WebSocket.OPEN`
const OPEN = 1;

/** @type {Record<number, string>} */
const REASONS = {
  1001: "the gateway stopped",
  1006: "the connection broke",
  1009: "a frame was too large",
  1012: "the gateway restarts",
  4000: "the gateway failed",
  4001: "the gateway is stopping",
  4002: "the token expired",
  4004: "this page read too slowly",
  4005: "too many requests",
  4500: "the token is not valid",
  4501: "the gateway does not speak this protocol",
  4502: "this is not allowed",
  4503: "there are too many connections",
};

/** One stream that is followed: the cursor is the only state that outlives a connection. */
export class Following {
  /** @param {Connection} connection @param {string} sub @param {string} stream @param {string} after
   * @param {number} credit @param {Follower} follower */
  constructor(connection, sub, stream, after, credit, follower) {
    this.connection = connection;
    this.sub = sub;
    this.stream = stream;
    this.cursor = after;
    this.credit = credit;
    this.follower = follower;
    this.subscribed = false;
    // Entries published before this may have waited for the subscription or for credit.
    this.openSinceMs = Number.POSITIVE_INFINITY;
  }

  /** Entries that may come yet. @param {number} more */
  grant(more) {
    if (this.credit <= 0) this.openSinceMs = this.connection.ground.now();
    this.credit += more;
    if (this.subscribed) this.connection.send({ op: "credit", sub: this.sub, n: more });
  }

  stop() {
    this.connection.forget(this);
  }
}

/**
 * What the connection stands on: given, so that time and chance can be chosen.
 * @typedef {{connect: (url: string, protocol: string) => WebSocket, now: () => number, random: () => number}} Ground
 */

/** @type {Ground} */
const BROWSER = {
  connect: (url, protocol) => new WebSocket(url, protocol),
  now: () => Date.now(),
  random: () => Math.random(),
};

/** Fires `change` with the state, `rtt` with milliseconds. `watch` is called a few times a second. */
export class Connection extends EventTarget {
  /** @param {string} url @param {Ground} [ground] */
  constructor(url, ground = BROWSER) {
    super();
    this.url = url;
    this.ground = ground;
    /** @type {State} */
    this.state = { phase: "connecting", sinceMs: ground.now(), attempt: 0, retryAtMs: 0, lostAtMs: 0, reason: "" };
    /** @type {WebSocket | null} */
    this.socket = null;
    /** @type {Map<string, Following>} */
    this.followings = new Map();
    this.serials = 0;
    this.heardAtMs = 0;
    this.pingAtMs = 0;
    this.heartbeatMs = HEARTBEAT_MS_DEFAULT;
    // When the gateway wants this connection to be closed.
    this.leaveAtMs = Number.POSITIVE_INFINITY;
    this.goodbye = "";
  }

  open() {
    if (this.socket !== null) return;
    this.change({ phase: "connecting", reason: this.state.reason });
    const socket = this.ground.connect(this.url, SUBPROTOCOL);
    this.socket = socket;
    this.heardAtMs = this.ground.now();
    socket.onmessage = (event) => this.heard(String(event.data));
    socket.onclose = (event) => {
      if (this.socket === socket) this.lost(event.code, event.reason);
    };
  }

  /** Try now rather than later, where it waits. */
  retry() {
    if (this.state.phase === "waiting" || this.state.phase === "refused") this.open();
  }

  /** @param {string} stream @param {string} after @param {number} credit @param {Follower} follower */
  follow(stream, after, credit, follower) {
    this.serials += 1;
    const following = new Following(this, `tail-${this.serials}`, stream, after, credit, follower);
    this.followings.set(following.sub, following);
    if (this.state.phase === "open") this.subscribe(following);
    return following;
  }

  /** @param {Following} following */
  forget(following) {
    if (!this.followings.delete(following.sub)) return;
    if (following.subscribed) this.send({ op: "unsubscribe", sub: following.sub });
    following.subscribed = false;
  }

  /** @param {object} frame */
  send(frame) {
    if (this.socket?.readyState === OPEN) this.socket.send(JSON.stringify(frame));
  }

  /** @param {Following} following */
  subscribe(following) {
    following.subscribed = true;
    following.openSinceMs = this.ground.now();
    const { sub, stream, cursor, credit } = following;
    this.send({ op: "subscribe", ref: sub, sub, streams: { [stream]: cursor }, credit });
  }

  /** @param {Partial<State>} now */
  change(now) {
    const sinceMs = now.phase === this.state.phase ? this.state.sinceMs : this.ground.now();
    this.state = { ...this.state, sinceMs, ...now };
    this.dispatchEvent(new CustomEvent("change", { detail: this.state }));
  }

  /** @param {string} text */
  heard(text) {
    this.heardAtMs = this.ground.now();
    const frame = JSON.parse(text);
    if (frame.op === "hello") this.welcomed(frame);
    else if (frame.op === "pong") this.dispatchEvent(new CustomEvent("rtt", { detail: this.ground.now() - this.pingAtMs }));
    else if (frame.op === "goaway") this.leave(Number(frame.after_ms ?? 0));
    else if (typeof frame.sub === "string") this.pushed(frame, text.length);
    else if (frame.op === "error") this.failed(frame);
  }

  /** @param {any} frame */
  welcomed(frame) {
    this.heartbeatMs = Number(frame.heartbeat_ms ?? HEARTBEAT_MS_DEFAULT);
    const awayMs = this.state.lostAtMs === 0 ? 0 : this.ground.now() - this.state.lostAtMs;
    this.goodbye = "";
    this.change({ phase: "open", attempt: 0, lostAtMs: 0, reason: "" });
    for (const following of this.followings.values()) {
      if (awayMs > 0) following.follower.resumed(following.cursor, awayMs);
      this.subscribe(following);
    }
  }

  /** @param {any} frame @param {number} chars */
  pushed(frame, chars) {
    const following = this.followings.get(frame.sub);
    if (following === undefined) return;
    const { follower } = following;
    if (frame.op === "entries") {
      /** @type {Entry[]} */
      const entries = frame.entries;
      following.credit -= entries.length;
      following.cursor = frame.next ?? entries.at(-1)?.id ?? following.cursor;
      follower.entries(entries, chars);
    } else if (frame.op === "gap") follower.gap(frame.gap ?? frame);
    else if (frame.op === "caught_up") follower.caughtUp();
    else if (frame.op === "paused") follower.paused();
    else if (frame.op === "revoked") {
      following.subscribed = false;
      follower.revoked(String(frame.reason ?? "revoked"));
    } else if (frame.op === "error") this.failed(frame);
  }

  /** @param {any} frame */
  failed(frame) {
    const problem = frame.problem ?? frame;
    this.followings.get(frame.ref ?? frame.sub)?.follower.failed(String(problem.detail ?? problem.title ?? "refused"));
  }

  /** The gateway wants to be left: a moment later, not all at once. @param {number} afterMs */
  leave(afterMs) {
    this.goodbye = "the gateway is stopping";
    this.leaveAtMs = this.ground.now() + afterMs;
  }

  /** @param {number} code @param {string} told */
  lost(code, told) {
    // The whole time away counts from the first loss, however often it is tried since.
    const lostAtMs = this.state.lostAtMs || this.ground.now();
    this.socket = null;
    this.leaveAtMs = Number.POSITIVE_INFINITY;
    for (const following of this.followings.values()) following.subscribed = false;
    // Why it went is told; that it is not back yet, everybody sees.
    const reason = this.state.attempt > 0 ? this.state.reason : this.goodbye || REASONS[code] || told || `it was closed with ${code}`;
    if (code >= REFUSED_FROM && code < 5000) {
      this.change({ phase: "refused", lostAtMs, reason });
      return;
    }
    const attempt = this.state.attempt + 1;
    const mostMs = Math.min(RETRY_MS_MAX, RETRY_MS_MIN * 2 ** attempt);
    // Half of it by chance: a thousand tabs do not come back in the same moment.
    const waitMs = mostMs / 2 + (this.ground.random() * mostMs) / 2;
    this.change({ phase: "waiting", attempt, lostAtMs, reason, retryAtMs: this.ground.now() + waitMs });
  }

  watch() {
    const nowMs = this.ground.now();
    if (this.state.phase === "waiting" && nowMs >= this.state.retryAtMs) this.open();
    if (this.socket === null) return;
    if (nowMs >= this.leaveAtMs) {
      this.leaveAtMs = Number.POSITIVE_INFINITY;
      this.socket.close(1000);
    }
    if (nowMs - this.heardAtMs > this.heartbeatMs * HEARTBEATS_MISSED_MAX) {
      const socket = this.socket;
      this.goodbye = "nothing was heard for three heartbeats";
      this.lost(1006, "");
      socket.close();
    } else if (this.state.phase === "open" && nowMs - this.pingAtMs > this.heartbeatMs / 3) {
      this.pingAtMs = nowMs;
      this.send({ op: "ping" });
    }
  }
}
