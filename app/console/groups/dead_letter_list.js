/*
 * The dead letters of a group: why each was moved, and the way back into the stream.
 *
 * Knows: dead letters and redriving. Must never know: how a group is found.
 */

import { formatAddress } from "../shared/address.js";
import * as api from "../shared/api.js";
import { ask } from "../shared/dialogs.js";
import { button, fill, h, makeHead, makeTable, reconcile, setText } from "../shared/dom.js";
import { idMs } from "../shared/entry.js";
import { countEntries, formatCount, formatDateTime, formatWhen, pluralize } from "../shared/format.js";
import { parseDeadLetter } from "./dead_letter.js";
import { Selection } from "./selection.js";

/** @typedef {import("./dead_letter.js").DeadLetter} DeadLetter */

// The newest entries of the dead-letter stream are read; those of other groups are not shown.
const NEWEST_COUNT = 200;
// The most that one request takes.
const REDRIVE_COUNT = 100;

/** Fires `inspect` with stream and ID, `change` after an action. */
export class DeadLetterList extends EventTarget {
  constructor() {
    super();
    this.stream = "";
    this.group = "";
    // "" if the group has none.
    this.deadLetterStream = "";
    // A closed stream takes none of them back.
    this.isClosed = false;
    /** The newest first. @type {DeadLetter[]} */
    this.deadLetters = [];
    this.selection = new Selection();
    /** @type {Map<string, any>} */
    this.rowsById = new Map();
    this.refreshCount = 0;
    this.rows = h("tbody");
    this.summary = h("span.muted");
    this.link = h("a.link");
    this.empty = h("p.empty", { hidden: true }, "No recent dead letters of this group.");
    this.redriveChosenButton = button("Redrive chosen…", () => this.redriveChosen());
    this.redriveAllButton = button("Redrive all…", () => this.redriveAll());
    const heads = ["", "ID", "Reason", "Deliveries", "Consumer", "Entry", "Time"].map((label) => makeHead(label, label === "Deliveries"));
    this.table = makeTable("Dead letters", heads, this.rows);
    this.element = h(
      "section.dead-letters",
      { "aria-label": "Dead letters", hidden: true },
      h("div.bar", {}, h("h2.small", {}, "Dead letters"), this.summary, this.link),
      h("div.bar", { role: "toolbar", "aria-label": "Actions on dead letters" }, this.redriveChosenButton, this.redriveAllButton),
      this.table,
      this.empty,
    );
    this.selection.addEventListener("change", () => this.update());
  }

  /** @param {string} stream @param {string} group @param {string} deadLetterStream */
  open(stream, group, deadLetterStream) {
    this.element.hidden = deadLetterStream === "";
    if (stream === this.stream && group === this.group && deadLetterStream === this.deadLetterStream) return;
    this.stream = stream;
    this.group = group;
    this.deadLetterStream = deadLetterStream;
    this.link.setAttribute("href", formatAddress(deadLetterStream, "live"));
    fill(this.link, h("bdi", {}, deadLetterStream));
    this.draw([], false);
  }

  async refresh() {
    if (this.deadLetterStream === "") return;
    this.refreshCount += 1;
    const current = this.refreshCount;
    const page = await api.listEntries(this.deadLetterStream, { reverse: true, count: NEWEST_COUNT });
    if (current !== this.refreshCount) return;
    const own = page.entries.map(parseDeadLetter).filter(({ source, group }) => source === this.stream && group === this.group);
    this.draw(own, page.more);
  }

  /** @param {DeadLetter[]} deadLetters the newest first @param {boolean} more */
  draw(deadLetters, more) {
    this.deadLetters = deadLetters;
    this.selection.retain(deadLetters);
    reconcile(this.rows, this.rowsById, deadLetters.map((one) => [one.id, one]), (one) => this.makeRow(one));
    this.table.hidden = deadLetters.length === 0;
    this.empty.hidden = deadLetters.length > 0;
    setText(this.summary, `${countEntries(deadLetters.length)}${more ? ` of the newest ${formatCount(NEWEST_COUNT)}` : ""} in`);
    this.update();
  }

  /** @param {boolean} isClosed */
  setClosed(isClosed) {
    this.isClosed = isClosed;
    this.update();
  }

  update() {
    this.redriveChosenButton.disabled = this.isClosed || this.selection.size === 0;
    this.redriveAllButton.disabled = this.isClosed || this.deadLetters.length === 0;
  }

  /** @param {DeadLetter} deadLetter */
  makeRow({ id, entryId, consumer, deliveries, reason }) {
    const box = this.selection.makeBox(id);
    const inspect = () => this.dispatchEvent(new CustomEvent("inspect", { detail: { stream: this.deadLetterStream, id } }));
    const element = h(
      "tr", {},
      h("td", {}, box),
      h("th", { scope: "row" }, button(id, inspect, { title: "Show the dead letter" }, "button.link.id")),
      h("td.reason", { title: reason }, h("bdi", {}, reason)),
      h("td.number", {}, deliveries),
      h("td", {}, h("bdi", {}, consumer === "" ? "–" : consumer)),
      h("td.id", {}, entryId),
      h("td", { title: formatDateTime(idMs(id)) }, formatWhen(idMs(id), Date.now())),
    );
    return { element, update: () => (box.checked = this.selection.ids.has(id)) };
  }

  async redriveChosen() {
    const { stream, group } = this;
    const ids = [...this.selection.ids];
    const values = await ask({
      title: `Redrive ${pluralize(ids.length, "dead letter")}?`,
      text: this.describeRedrive(),
      submit: "Redrive",
      preview: async () => describePreview(await redriveIds(stream, group, ids, true), false),
      work: async () => `Redrove ${countEntries(await redriveIds(stream, group, ids, false))}`,
    });
    if (values !== null) await this.finishAction();
  }

  async redriveAll() {
    const { stream, group } = this;
    // Entries that become dead letters again in the meantime are not redriven a second time.
    const end = this.deadLetters[0]?.id ?? "+";
    const makeFilter = (/** @type {Record<string, string>} */ { reason = "" }) => ({ end, ...(reason === "" ? {} : { reason }) });
    const reasons = [...new Set(this.deadLetters.map(({ reason }) => reason))];
    const values = await ask({
      title: `Redrive dead letters of ${group}`,
      text: this.describeRedrive(),
      fields: [{ name: "reason", label: "Only with this reason", list: reasons, hint: "Leave empty for all." }],
      submit: "Redrive",
      preview: async (input) => {
        const found = await api.redrive(stream, group, { filter: makeFilter(input), count: REDRIVE_COUNT, dry_run: true });
        return describePreview(found.redriven, found.next !== null);
      },
      work: async (input) => `Redrove ${countEntries(await redriveMatching(stream, group, makeFilter(input)))}`,
    });
    if (values !== null) await this.finishAction();
  }

  describeRedrive() {
    return `Each becomes a new entry of ${this.stream}, which all groups read, and is removed from ${this.deadLetterStream}.`;
  }

  async finishAction() {
    this.selection.replace([]);
    await this.refresh().catch(() => undefined);
    this.dispatchEvent(new Event("change"));
  }
}

/** @param {number} count @param {boolean} more */
const describePreview = (count, more) => `This redrives ${more ? "at least " : ""}${pluralize(count, "dead letter")}.`;

/**
 * Redrive dead letters by ID. One request takes a limited number of them, and of bytes.
 * @param {string} stream @param {string} group @param {string[]} ids @param {boolean} dryRun
 */
async function redriveIds(stream, group, ids, dryRun) {
  let redriven = 0;
  let rest = ids;
  while (rest.length > 0) {
    const batch = rest.slice(0, REDRIVE_COUNT);
    const result = await api.redrive(stream, group, { ids: batch, dry_run: dryRun });
    redriven += result.redriven;
    const done = new Set(result.next === null ? batch : result.entries.map((entry) => entry.dead_letter_id));
    rest = rest.filter((id) => !done.has(id));
  }
  return redriven;
}

/** Redrive all dead letters that match. @param {string} stream @param {string} group
 * @param {{end: string, reason?: string}} filter */
async function redriveMatching(stream, group, filter) {
  let redriven = 0;
  let start = "-";
  for (;;) {
    const result = await api.redrive(stream, group, { filter: { ...filter, start }, count: REDRIVE_COUNT });
    redriven += result.redriven;
    if (result.next === null) return redriven;
    start = `(${result.next}`;
  }
}
