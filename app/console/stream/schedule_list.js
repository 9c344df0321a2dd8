/*
 * What is scheduled for a stream: when each entry is appended next, and the actions on it.
 *
 * Knows: schedules. Must never know: how a stream is found.
 */

import { attempt } from "../shared/announce.js";
import * as api from "../shared/api.js";
import { ask } from "../shared/dialogs.js";
import { button, fill, h, makeHead, makeTable, reconcile, setText } from "../shared/dom.js";
import { formatCount, formatDuration, formatWhen } from "../shared/format.js";

/** @typedef {import("../shared/api.js").Schedule} Schedule */

const PAGE_COUNT = 100;
const SHOWN_MAX = 1_000;

/** Fires `change` after an action. */
export class ScheduleList extends EventTarget {
  constructor() {
    super();
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
    const heads = [makeHead("Next"), makeHead("Name"), makeHead("Rule"), makeHead("Entry"), makeHead("")];
    this.element = h(
      "section.schedules",
      { "aria-label": "Schedules" },
      h("div.bar", {}, h("h2.small", {}, "Scheduled"), this.summary),
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
    const page = await api.listSchedules(stream, this.shownMax);
    if (current === this.refreshCount && stream === this.stream) this.draw(page.schedules, page.next !== null);
  }

  /** @param {Schedule[]} schedules @param {boolean} more */
  draw(schedules, more) {
    reconcile(this.rows, this.rowsByName, schedules.map((one) => [one.name, one]), (one) => this.makeRow(one));
    setText(this.summary, schedules.length === 0 ? "none" : `${formatCount(schedules.length)}${more ? " and more" : ""}`);
    this.more.hidden = !more || this.shownMax >= SHOWN_MAX;
  }

  /** @param {Schedule} schedule */
  makeRow({ name }) {
    // Roles of their own: a narrow window lays rows out as blocks, which are no rows of a table by themselves.
    const [next, rule, entry] = ["td.next", "td.rule", "td.entry-text"].map((kind) => h(kind, { role: "cell" }));
    const update = (/** @type {Schedule} */ one) => {
      setText(next, formatWhen(Date.parse(one.next_at), Date.now()));
      next.title = one.next_at;
      setText(rule, describeRule(one));
      rule.title = one.every_ms === undefined ? "" : `${formatCount(one.every_ms)} ms`;
      setText(entry, JSON.stringify(one.entry.fields));
    };
    const actions = h("td.acts", { role: "cell" },
      button("Fire now", () => this.fire(name), { "data-needs": "write" }),
      button("Cancel…", () => this.cancel(name), { "data-needs": "write" }, "button.button.danger-quiet"));
    return { element: h("tr", { role: "row" }, next, h("th", { scope: "row", role: "rowheader" }, h("bdi", {}, name)), rule, entry, actions), update };
  }

  /** @param {string} name */
  async fire(name) {
    await this.run(() => api.fireSchedule(this.stream, name), ({ id }) => `Appended ${id}`);
  }

  /** @param {string} name */
  async cancel(name) {
    const values = await ask({ title: `Cancel ${name}?`, text: "Its entry is not appended any more.", submit: "Cancel schedule", dangerous: true });
    if (values !== null) await this.run(() => api.cancelSchedule(this.stream, name), () => `Cancelled ${name}`);
  }

  /** @template T @param {() => Promise<T>} work @param {(result: T) => string} describe */
  async run(work, describe) {
    await attempt(work, describe);
    await this.refresh().catch(() => undefined);
    this.dispatchEvent(new Event("change"));
  }
}

/** @param {Schedule} schedule */
export function describeRule({ cron, tz, every_ms, left }) {
  const runs = left === undefined ? "" : `, ${formatCount(left)} left`;
  if (cron !== undefined) return `${cron} ${tz}${runs}`;
  return every_ms === undefined ? "once" : `every ${formatDuration(every_ms)}${runs}`;
}
