/*
 * Entries per second, from a counter that is polled.
 *
 * Knows: that a counter is read at some moment between request and response. Must never know: whose counter it is.
 */

// Two readings closer together say more about the network than about the stream.
const SPAN_MS_MIN = 1_000;
// Readings further apart (the tab was hidden) would show a long average as the present rate.
const SPAN_MS_MAX = 30_000;
// The span is at least this many times its uncertainty, so that the rate is right within a quarter.
const SPANS_PER_ERROR = 4;

/** @typedef {{added: number, generation: string, atMs: number, errorMs: number}} Reading */

export class Rate {
  constructor() {
    /** @type {Reading | null} */
    this.previous = null;
    /** Null until two readings are far enough apart. @type {number | null} */
    this.perSecond = null;
  }

  /**
   * Take a reading of the counter.
   * @param {{entries_added: number, generation: string}} stream
   * @param {number} sentMs when the request was sent @param {number} receivedMs when the response arrived
   */
  read({ entries_added: added, generation }, sentMs, receivedMs) {
    const reading = { added, generation, atMs: (sentMs + receivedMs) / 2, errorMs: (receivedMs - sentMs) / 2 };
    const { previous } = this;
    if (previous === null || previous.generation !== generation || reading.atMs - previous.atMs > SPAN_MS_MAX) {
      this.previous = reading;
      this.perSecond = null;
      return null;
    }
    const spanMs = reading.atMs - previous.atMs;
    if (spanMs < Math.max(SPAN_MS_MIN, SPANS_PER_ERROR * (previous.errorMs + reading.errorMs))) return this.perSecond;
    this.previous = reading;
    this.perSecond = (Math.max(0, added - previous.added) * 1000) / spanMs;
    return this.perSecond;
  }
}
