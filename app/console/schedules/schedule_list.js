/*
 * What is scheduled for a stream, or for all: when each entry is appended next, and the actions on it.
 *
 * Knows: schedules. Must never know: how a stream is found.
 */

import { formatAddress } from "../shared/address.js";
import { attempt } from "../shared/announce.js";
import * as api from "../shared/api.js";
import { ask } from "../shared/dialogs.js";
import { button, fill, h, makeHead, makeTable, reconcile, setText } from "../shared/dom.js";
import { abbreviate, formatCount, formatWhen } from "../shared/format.js";
import { describeRule, parseSchedule, scheduleFields } from "./rule.js";

/** @typedef {import("../shared/api.js").Schedule} Schedule */

const PAGE_COUNT = 100;
const SHOWN_MAX = 1_000;

/** Fires `change` after an action. */
export class ScheduleList extends EventTarget {
  /** @param {boolean} ofAll streams */
  constructor(ofAll) {
    super();
    this.ofAll = ofAll;
    this.stream = "";
    this.shownMax = PAGE_COUNT;
    this.refreshCount = 0;
    /** @type {Map<string, any>} */
    this.rowsByName = new Map();
    this.rows = h("tbody");
    this.summary = h("span.muted");
    this.more = button("Show more", () => {
      this.shownMax = Math.min(SHOWN_MAX, this.shownMax + PAGE_COUNT);
      this.refresh();
    }, { hidden: true });
    const heads = ["Next", ...(ofAll ? ["Stream"] : []), "Name", "Rule", "Entry", ""].map((label) => makeHead(label));
    this.element = h(
      "section.schedules",
      { "aria-label": "Schedules" },
      h("div.bar", {}, h("h2.small", {}, "Scheduled"), this.summary,
        button("New schedule…", () => this.create(), { "data-needs": "write" })),
      makeTable("Schedules", heads, this.rows),
      this.more,
    );
  }

  /** @param {string} stream */
  open(stream) {
    if (stream === this.stream) return;
    this.stream = stream;
    this.shownMax = PAGE_COUNT;
    this.rowsByName.clear();
    fill(this.rows);
    this.draw([], false);
  }

  async refresh() {
    const { stream } = this;
    this.refreshCount += 1;
    const current = this.refreshCount;
    const page = await (this.ofAll ? api.listAllSchedules(this.shownMax) : api.listSchedules(stream, this.shownMax));
    if (current === this.refreshCount && stream === this.stream) this.draw(page.schedules, page.next !== null);
  }

  /** @param {Schedule[]} schedules @param {boolean} more */
  draw(schedules, more) {
    reconcile(this.rows, this.rowsByName, schedules.map((one) => [JSON.stringify([one.stream, one.name]), one]), (one) => this.makeRow(one));
    setText(this.summary, schedules.length === 0 ? "none" : `${formatCount(schedules.length)}${more ? " and more" : ""}`);
    this.more.hidden = !more || this.shownMax >= SHOWN_MAX;
  }

  /** @param {Schedule} schedule */
  makeRow({ name, stream = this.stream }) {
    // Roles of their own: a narrow window lays rows out as blocks, which are no rows of a table by themselves.
    const [next, rule, entry] = ["td.next", "td.rule", "td.entry-text"].map((kind) => h(kind, { role: "cell" }));
    let isPaused = false;
    const pause = button("Pause…", () => isPaused ? this.resume(stream, name) : this.pause(stream, name), { "data-needs": "write" });
    const update = (/** @type {Schedule} */ one) => {
      setText(next, one.next_at === null ? "paused" : formatWhen(Date.parse(one.next_at), Date.now()));
      next.title = one.next_at ?? "until it is resumed";
      isPaused = one.paused === true;
      setText(pause, isPaused ? "Resume" : "Pause…");
      setText(rule, describeRule(one));
      rule.title = one.every_ms === undefined ? "" : `${formatCount(one.every_ms)} ms`;
      setText(entry, JSON.stringify(one.entry.fields));
    };
    const actions = h("td.acts", { role: "cell" },
      button("Fire now", () => this.fire(stream, name), { "data-needs": "write" }),
      pause,
      button("Cancel…", () => this.cancel(stream, name), { "data-needs": "write" }, "button.button.danger-quiet"));
    const link = h("a", { href: formatAddress(stream, "scheduled"), title: stream }, h("bdi", {}, abbreviate(stream)));
    const where = this.ofAll ? h("td.stream-name", { role: "cell" }, link) : null;
    return { element: h("tr", { role: "row" }, next, where, h("th", { scope: "row", role: "rowheader" }, h("bdi", {}, name)), rule, entry, actions), update };
  }

  /** @param {string} stream @param {string} name */
  async fire(stream, name) {
    await this.run(() => api.fireSchedule(stream, name), ({ id }) => `Appended ${id}`);
  }

  /** @param {string} stream @param {string} name */
  async pause(stream, name) {
    const values = await ask({
      title: `Pause ${name}?`,
      text: "What recurs makes up for no run; a single entry is appended when the pause ends.",
      fields: [{ name: "until", label: "Until", type: "datetime-local", hint: "Leave empty for until it is resumed." }],
      submit: "Pause schedule",
      work: async ({ until = "" }) => {
        await api.changeSchedule(stream, name, until === "" ? { paused: true } : { paused_until: new Date(until).toISOString() });
        return `Paused ${name}`;
      },
    });
    if (values !== null) await this.finishAction();
  }

  /** @param {string} stream @param {string} name */
  async resume(stream, name) {
    await this.run(() => api.changeSchedule(stream, name, { paused: false }), () => `Resumed ${name}`);
  }

  /** @param {string} stream @param {string} name */
  async cancel(stream, name) {
    const values = await ask({ title: `Cancel ${name}?`, text: "Its entry is not appended any more.", submit: "Cancel schedule", dangerous: true });
    if (values !== null) await this.run(() => api.cancelSchedule(stream, name), () => `Cancelled ${name}`);
  }

  async create() {
    const values = await ask({
      title: this.ofAll ? "New schedule" : `New schedule of ${this.stream}`,
      text: "One of that name is replaced.",
      fields: scheduleFields(this.ofAll),
      submit: "Set schedule",
      work: async (input) => {
        const { stream = this.stream, name = "" } = input;
        const { next_at: nextAt } = await api.putSchedule(stream, name, parseSchedule(input));
        return `Set ${name}${nextAt === null ? "" : `: next at ${formatWhen(Date.parse(nextAt), Date.now())}`}`;
      },
    });
    if (values !== null) await this.finishAction();
  }

  /** @template T @param {() => Promise<T>} work @param {(result: T) => string} describe */
  async run(work, describe) {
    await attempt(work, describe);
    await this.finishAction();
  }

  async finishAction() {
    await this.refresh().catch(() => undefined);
    this.dispatchEvent(new Event("change"));
  }
}
