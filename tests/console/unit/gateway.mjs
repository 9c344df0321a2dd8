/*
 * The other end of the page's WebSocket: frames of weir.v1 over a link that a test can break, with a clock it can set.
 *
 * It keeps the gateway's promises and no more: entries after the cursor, in order, within the credit.
 */

export class Gateway {
  constructor() {
    this.nowMs = 1_790_000_000_000;
    this.random = 0.5;
    /** @type {{id: string, fields: Record<string, string>}[]} */
    this.entries = [];
    /** The next entry of each, as an index. @type {Map<string, {at: number, credit: number, paused: boolean}>} */
    this.subscriptions = new Map();
    /** @type {Socket[]} */
    this.sockets = [];
    /** The frames that the page sent. @type {any[]} */
    this.received = [];
  }

  get environment() {
    return { connect: () => this.connect(), now: () => this.nowMs, random: () => this.random };
  }

  /** @returns {any} */
  connect() {
    const socket = new Socket(this);
    this.sockets.push(socket);
    return socket;
  }

  get socket() {
    return /** @type {Socket} */ (this.sockets.at(-1));
  }

  /** @param {string} id */
  publish(id) {
    this.entries.push({ id, fields: { n: id } });
    this.serve();
  }

  /** @param {any} frame */
  receive(frame) {
    this.received.push(frame);
    const known = this.subscriptions.get(frame.sub);
    if (frame.op === "subscribe") {
      const [cursor = "0-0"] = /** @type {string[]} */ (Object.values(frame.streams));
      const behind = this.entries.findIndex(({ id }) => isAfter(id, cursor));
      this.subscriptions.set(frame.sub, { at: behind < 0 ? this.entries.length : behind, credit: frame.credit, paused: false });
    } else if (frame.op === "credit" && known) known.credit += frame.n;
    else if (frame.op === "unsubscribe") this.subscriptions.delete(frame.sub);
    this.serve();
  }

  serve() {
    for (const [sub, one] of this.subscriptions) {
      const page = this.entries.slice(one.at, one.at + one.credit);
      if (page.length > 0) {
        one.credit -= page.length;
        one.at += page.length;
        one.paused = false;
        this.socket.push({ op: "entries", sub, entries: page, next: page.at(-1)?.id });
      }
      if (one.at < this.entries.length && !one.paused) {
        one.paused = true;
        this.socket.push({ op: "paused", sub, reason: "credit" });
      }
    }
  }
}

class Socket {
  /** @param {Gateway} gateway */
  constructor(gateway) {
    this.gateway = gateway;
    this.readyState = 0;
    /** @type {(event: any) => void} */
    this.onmessage = () => undefined;
    /** @type {(event: any) => void} */
    this.onclose = () => undefined;
  }

  accept(heartbeatMs = 15_000) {
    this.readyState = 1;
    this.push({ op: "hello", heartbeat_ms: heartbeatMs });
  }

  /** @param {object} frame */
  push(frame) {
    this.onmessage({ data: JSON.stringify(frame) });
  }

  /** @param {string} text */
  send(text) {
    this.gateway.receive(JSON.parse(text));
  }

  close(code = 1000) {
    this.lose(code);
  }

  /** @param {number} code */
  lose(code, reason = "") {
    if (this.readyState === 3) return;
    this.readyState = 3;
    this.gateway.subscriptions.clear();
    this.onclose({ code, reason });
  }
}

/** @param {string} a @param {string} b by numbers, not by the page's own comparison */
function isAfter(a, b) {
  const [aMs = 0n, aSeq = 0n] = a.split("-").map(BigInt);
  const [bMs = 0n, bSeq = 0n] = b.split("-").map(BigInt);
  return aMs > bMs || (aMs === bMs && aSeq > bSeq);
}
