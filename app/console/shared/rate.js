/*
 * Entries per second, from a counter that is read now and then.
 *
 * Knows: that a reading is taken at some moment between question and answer. Must never know: whose counter it is.
 */

// Two readings closer together say more about the network than about the stream.
const SPAN_MS_MIN = 1_000;
// Readings further apart (the tab was hidden) would show an average of long ago as the present rate.
const SPAN_MS_MAX = 30_000;
// The span is at least this many times as long as what is unknown of it: the rate is right within a quarter.
const SPANS_PER_ERROR = 4;

/** @typedef {{added: number, generation: string, atMs: number, errorMs: number}} Reading */

export class Rate {
  constructor() {
    /** @type {Reading | null} */
    this.before = null;
    /** Null until two readings are far enough apart. @type {number | null} */
    this.perSecond = null;
  }

  /**
   * Take a reading of the counter.
   * @param {{entries_added: number, generation: string}} stream
   * @param {number} sentMs @param {number} gotMs when it was asked for, and answered
   */
  read({ entries_added: added, generation }, sentMs, gotMs) {
    const now = { added, generation, atMs: (sentMs + gotMs) / 2, errorMs: (gotMs - sentMs) / 2 };
    const { before } = this;
    if (before === null || before.generation !== generation || now.atMs - before.atMs > SPAN_MS_MAX) {
      this.before = now;
      this.perSecond = null;
      return null;
    }
    const spanMs = now.atMs - before.atMs;
    if (spanMs < Math.max(SPAN_MS_MIN, SPANS_PER_ERROR * (before.errorMs + now.errorMs))) return this.perSecond;
    this.before = now;
    this.perSecond = (Math.max(0, added - before.added) * 1000) / spanMs;
    return this.perSecond;
  }
}
