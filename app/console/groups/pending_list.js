/*
 * The pending entries of a group: consumer, idle time, deliveries; and the actions on chosen ones.
 *
 * Knows: pending entries. Must never know: how a group is found.
 */

import { attempt } from "../shared/announce.js";
import * as api from "../shared/api.js";
import { ask, show } from "../shared/dialogs.js";
import { button, fill, h, makeHead, makeTable, reconcile, setText } from "../shared/dom.js";
import { parseMs } from "../shared/fields.js";
import { countEntries, formatCount, formatDuration, formatWhen } from "../shared/format.js";
import { byConsumer, describeKept } from "./holders.js";
import { Selection } from "./selection.js";

/** @typedef {import("../shared/api.js").Pending} Pending */

const PAGE_COUNT = 100;
// All shown entries can be chosen, and one request takes no more.
const SHOWN_MAX = 500;
// More are not acknowledged by one click.
const UNASKED_MAX = 10;

/** Fires `inspect` with stream and ID, `change` after an action. */
export class PendingList extends EventTarget {
  constructor() {
    super();
    this.stream = "";
    this.group = "";
    /** @type {string[]} */
    this.consumers = [];
    // "" if the group has none.
    this.deadLetterStream = "";
    /** @type {Pending[]} */
    this.entries = [];
    this.selection = new Selection();
    /** @type {Map<string, any>} */
    this.rowsById = new Map();
    this.shownMax = PAGE_COUNT;
    this.refreshCount = 0;
    this.chooseAllBox = h("input", { type: "checkbox", "aria-label": "Choose all shown entries", onchange: () => this.chooseAll() });
    this.rows = h("tbody");
    this.consumer = h("select", { "aria-label": "Consumer", onchange: () => this.refresh() }, h("option", { value: "" }, "all consumers"));
    this.idle = h("input", { type: "text", placeholder: "min. idle, 5m", "aria-label": "Minimum idle time", oninput: () => this.refresh() });
    this.summary = h("span.muted");
    /** Whether an action is for all that match, shown or not. */
    this.isEverything = false;
    this.everything = button("Choose all that match", () => this.chooseEverything(), { hidden: true });
    this.more = button("Show more", () => {
      this.shownMax = Math.min(SHOWN_MAX, this.shownMax + PAGE_COUNT);
      this.refresh();
    }, { hidden: true });
    this.actions = [
      button("Acknowledge", () => this.acknowledge(), { "data-needs": "consume" }),
      button("Claim…", () => this.claim(), { "data-needs": "consume" }),
      button("Release", () => this.release(), { "data-needs": "consume", title: "Return the entries to the group for any consumer" }),
      button("Dead letter…", () => this.deadLetter()),
      button("Delete…", () => this.deleteEntries(), {}, "button.button.danger-quiet"),
    ];
    const heads = [h("td", {}, this.chooseAllBox), makeHead("ID"), makeHead("Consumer"), makeHead("Idle", true), makeHead("Deliveries", true)];
    this.element = h(
      "section.pending",
      { "aria-label": "Pending entries" },
      h("div.bar", {}, h("h2.small", {}, "Pending"), this.summary, this.consumer, this.idle, this.everything),
      h("div.bar", { role: "toolbar", "aria-label": "Actions on chosen entries" }, ...this.actions),
      makeTable("Pending entries", heads, this.rows),
      this.more,
    );
    this.selection.addEventListener("change", () => {
      this.isEverything = false;
      this.update();
    });
  }

  /** @param {string} stream @param {string} group */
  open(stream, group) {
    if (stream === this.stream && group === this.group) return;
    this.stream = stream;
    this.group = group;
    this.rowsById.clear();
    this.consumers = [];
    this.shownMax = PAGE_COUNT;
    fill(this.rows);
    this.draw([], false);
  }

  async refresh() {
    const { stream, group } = this;
    this.refreshCount += 1;
    const current = this.refreshCount;
    this.drawConsumers();
    const page = await api.listPending(stream, group, { ...this.wanted, count: this.shownMax });
    if (current === this.refreshCount && stream === this.stream && group === this.group) this.draw(page.pending, page.more);
  }

  get wanted() {
    return { consumer: this.consumer.value, min_idle_ms: this.readIdle() };
  }

  /** What is no duration yet, while it is typed, leaves out none. */
  readIdle() {
    try {
      return parseMs(this.idle.value) ?? 0;
    } catch {
      return 0;
    }
  }

  drawConsumers() {
    const names = ["", ...this.consumers];
    if (names.join("\n") === [...this.consumer.options].map((option) => option.value).join("\n")) return;
    const chosen = this.consumer.value;
    fill(this.consumer, ...names.map((name) => h("option", { value: name }, name === "" ? "all consumers" : name)));
    this.consumer.value = names.includes(chosen) ? chosen : "";
  }

  /** @param {Pending[]} entries @param {boolean} more */
  draw(entries, more) {
    this.entries = entries;
    this.selection.retain(entries);
    reconcile(this.rows, this.rowsById, entries.map((entry) => [entry.id, entry]), (entry) => this.makeRow(entry));
    this.more.hidden = !more || this.shownMax >= SHOWN_MAX;
    this.everything.hidden = !more;
    this.isEverything = this.isEverything && more;
    this.update(more);
  }

  /** @param {boolean} [more] */
  update(more = !this.more.hidden) {
    const shown = this.entries.length === 0 ? "none" : `${formatCount(this.entries.length)}${more ? " and more" : ""}`;
    const chosen = this.isEverything ? "all that match chosen" : `${formatCount(this.selection.size)} chosen`;
    setText(this.summary, this.selection.size === 0 ? shown : `${shown}, ${chosen}`);
    for (const action of this.actions) action.disabled = this.selection.size === 0;
    this.chooseAllBox.checked = this.entries.length > 0 && this.selection.size === this.entries.length;
  }

  /** @param {Pending} entry */
  makeRow({ id }) {
    const box = this.selection.makeBox(id);
    const inspect = () => this.dispatchEvent(new CustomEvent("inspect", { detail: { stream: this.stream, id } }));
    const consumer = h("bdi");
    const cells = [h("td.number"), h("td.number")];
    const update = (/** @type {Pending} */ entry) => {
      box.checked = this.selection.ids.has(id);
      setText(consumer, entry.consumer ?? "–");
      const backAt = entry.deferred_until ? formatWhen(Date.parse(entry.deferred_until), Date.now()) : "";
      if (entry.consumer !== null) consumer.title = "";
      else consumer.title = backAt ? "Given back for later" : "Released: it goes to the next consumer that reads";
      setText(cells[0], backAt ? `back ${backAt}` : formatDuration(entry.idle_ms));
      setText(cells[1], formatCount(entry.delivery_count));
    };
    const link = button(id, inspect, { title: "Show the entry" }, "button.link.id");
    return { element: h("tr", {}, h("td", {}, box), h("th", { scope: "row" }, link), h("td", {}, consumer), ...cells), update };
  }

  chooseEverything() {
    this.selection.replace(this.entries);
    this.isEverything = true;
    this.draw(this.entries, true);
  }

  /** The entries that an action is for, as many as one request takes in each. @returns {Promise<Pending[][]>} */
  async chosen() {
    if (!this.isEverything) return [this.entries.filter(({ id }) => this.selection.ids.has(id))];
    const found = [];
    /** @type {string | undefined} */
    let start;
    do {
      const page = await api.listPending(this.stream, this.group, { ...this.wanted, start, count: SHOWN_MAX });
      if (page.pending.length > 0) found.push(page.pending);
      start = page.more && page.next !== null ? `(${page.next}` : undefined;
    } while (start !== undefined);
    return found;
  }

  /** What the questions call the entries. */
  get chosenWords() {
    return this.isEverything ? "all entries that match" : countEntries(this.selection.size);
  }

  chooseAll() {
    this.isEverything = false;
    this.selection.replace(this.chooseAllBox.checked ? this.entries : []);
    this.draw(this.entries, !this.more.hidden);
  }

  /** Run an action on the chosen entries. @template T @param {(ids: string[]) => Promise<T>} action
   * @param {(result: T) => number} count how many it was done to @param {(countText: string) => string} describe */
  run(action, count, describe) {
    return this.runEach(async (rows) => ({ done: count(await action(rows.map(({ id }) => id))), kept: [] }), describe);
  }

  /** Run one that names who holds them, as the list shows it: what another consumer holds by now stays there.
   * @template T @param {(ids: string[], consumer?: string) => Promise<T>} action
   * @param {(result: T) => {done: number, kept: string[]}} count @param {(countText: string) => string} describe */
  runByHolder(action, count, describe) {
    return this.runEach(async (rows) => {
      const found = [];
      for (const [consumer, ids] of byConsumer(rows)) found.push(count(await action(ids, consumer || undefined)));
      return { done: found.reduce((sum, { done }) => sum + done, 0), kept: found.flatMap(({ kept }) => kept) };
    }, describe);
  }

  /** @param {(rows: Pending[]) => Promise<{done: number, kept: string[]}>} action @param {(countText: string) => string} describe */
  async runEach(action, describe) {
    if (this.selection.size === 0) return;
    const work = async () => {
      let done = 0;
      /** @type {string[]} */
      const since = [];
      for (const rows of await this.chosen()) {
        const result = await action(rows);
        done += result.done;
        if (result.kept.length === 0) continue;
        const now = await api.listPending(this.stream, this.group, { start: result.kept[0], count: SHOWN_MAX });
        since.push(...describeKept(result.kept, now.pending));
      }
      return [describe(countEntries(done)), ...since].join("; ");
    };
    if (await attempt(work, (text) => text)) {
      this.selection.replace([]);
      this.isEverything = false;
    }
    await this.refresh();
    this.dispatchEvent(new Event("change"));
  }

  async acknowledge() {
    if (this.selection.size > UNASKED_MAX) {
      const values = await ask({
        title: `Acknowledge ${this.chosenWords}?`,
        text: `They count as done: the group ${this.group} does not deliver them again.`,
        submit: "Acknowledge",
        dangerous: true,
      });
      if (values === null) return;
    }
    await this.run((ids) => api.acknowledge(this.stream, this.group, ids), ({ acknowledged }) => acknowledged, (entries) => `Acknowledged ${entries}`);
  }

  release() {
    return this.runByHolder(
      (ids, consumer) => api.release(this.stream, this.group, ids, consumer),
      ({ released, results }) => ({ done: released, kept: Object.keys(results).filter((id) => results[id] === "not_held") }),
      (entries) => `Released ${entries}`,
    );
  }

  async deadLetter() {
    if (this.deadLetterStream === "") {
      return show("No dead-letter stream", h("p", {}, `Set a dead-letter stream first, under Policy… of the group ${this.group}.`));
    }
    const values = await ask({
      title: `Move ${this.chosenWords} to ${this.deadLetterStream}`,
      text: "The group acknowledges them and does not deliver them again.",
      fields: [{ name: "reason", label: "Reason", hint: "Stored with each dead letter." }],
      submit: "Move to dead letters",
      dangerous: true,
    });
    if (values === null) return;
    const reason = values.reason || undefined;
    const target = this.deadLetterStream;
    await this.runByHolder(
      (ids, consumer) => api.deadLetter(this.stream, this.group, ids, consumer, reason),
      ({ ids, not_held: kept = [] }) => ({ done: ids.length, kept }),
      (entries) => `Moved ${entries} to ${target}`,
    );
  }

  async claim() {
    const values = await ask({
      title: `Claim ${this.chosenWords}`,
      text: "This assigns them to another consumer and counts as a delivery.",
      fields: [
        { name: "consumer", label: "Consumer", required: true, list: this.consumers },
        { name: "idle", label: "Minimum idle time", value: "0", hint: "Such as 30s. Skips entries that a consumer has just received." },
      ],
      submit: "Claim",
    });
    if (values === null) return;
    const { consumer = "", idle } = values;
    await this.run((ids) => api.claim(this.stream, this.group, ids, consumer, parseMs(idle) ?? 0), ({ entries }) => entries.length, (entries) => `${consumer} claimed ${entries}`);
  }

  async deleteEntries() {
    const values = await ask({
      title: `Delete ${this.chosenWords} of ${this.stream}?`,
      text: "This removes them from the stream for all readers. Their IDs stay pending until they are acknowledged.",
      submit: "Delete entries",
      dangerous: true,
    });
    if (values === null) return;
    await this.run((ids) => api.deleteEntries(this.stream, ids), ({ deleted }) => deleted, (entries) => `Deleted ${entries}`);
  }
}
