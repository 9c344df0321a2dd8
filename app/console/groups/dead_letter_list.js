/*
 * The dead letters of a group: why each came there, and the way back.
 *
 * Knows: dead letters and redriving. Must never know: how a group is found.
 */

import * as api from "../shared/api.js";
import { ask } from "../shared/dialogs.js";
import { button, fill, h, reconcile, write } from "../shared/dom.js";
import { idMs } from "../shared/entry.js";
import { clock, count, moment, plural } from "../shared/format.js";
import { letter } from "./dead_letter.js";
import { href } from "../shared/address.js";

/** @typedef {import("./dead_letter.js").Letter} Letter */

// Only the newest letters are read; those of the group are shown, since other groups may write there too.
const NEWEST_COUNT = 200;
// As many as one call takes.
const REDRIVE_COUNT = 100;

/** Fires `inspect` with a stream and an ID, `changed` when something was done. */
export class DeadLetters extends EventTarget {
  constructor() {
    super();
    this.stream = "";
    this.group = "";
    /** Where they are, "" for nowhere. */
    this.place = "";
    /** @type {Letter[]} */
    this.letters = [];
    /** @type {Set<string>} */
    this.chosen = new Set();
    /** @type {Map<string, any>} */
    this.kept = new Map();
    this.asked = 0;
    this.rows = h("tbody");
    this.summary = h("span.muted");
    this.link = h("a.link");
    this.empty = h("p.empty", { hidden: true }, "None of the newest dead letters is of this group.");
    this.redriveChosen = button("Redrive chosen…", () => this.redrive([...this.chosen]));
    this.redriveAll = button("Redrive all…", () => this.redriveMany());
    const heads = ["ID", "Reason", "Deliveries", "Consumer", "Entry", "When"];
    this.element = h(
      "section.letters",
      { "aria-label": "Dead letters", hidden: true },
      h("div.bar", {}, h("h2.small", {}, "Dead letters"), this.summary, this.link),
      h("div.bar", { role: "toolbar", "aria-label": "With dead letters" }, this.redriveChosen, this.redriveAll),
      h("div.sideways", {}, h("table.list", {}, h("caption.unseen", {}, "Dead letters"), h("thead", {}, h("tr", {}, h("td"), ...heads.map((head) => h("th", { scope: "col" }, head)))), this.rows)),
      this.empty,
    );
  }

  /** @param {string} stream @param {string} group @param {string} place the stream of dead letters */
  open(stream, group, place) {
    this.element.hidden = place === "";
    if (stream === this.stream && group === this.group && place === this.place) return;
    this.stream = stream;
    this.group = group;
    this.place = place;
    this.chosen.clear();
    this.link.setAttribute("href", href(place, "live"));
    fill(this.link, h("bdi", {}, place));
    this.draw([], false);
  }

  async refresh() {
    if (this.place === "") return;
    this.asked += 1;
    const mine = this.asked;
    const page = await api.entries(this.place, { reverse: true, count: NEWEST_COUNT });
    if (mine !== this.asked) return;
    const all = page.entries.map(letter);
    this.draw(all.filter(({ source, group }) => source === this.stream && group === this.group), page.more);
  }

  /** @param {Letter[]} letters the newest first @param {boolean} more */
  draw(letters, more) {
    this.letters = letters;
    const there = new Set(letters.map(({ id }) => id));
    for (const id of this.chosen) if (!there.has(id)) this.chosen.delete(id);
    reconcile(this.rows, this.kept, letters.map((one) => [one.id, one]), (one) => this.row(one));
    this.empty.hidden = letters.length > 0;
    write(this.summary, `${plural(letters.length, "entry", "entries")}${more ? ` of the newest ${count(NEWEST_COUNT)}` : ""} in`);
    this.describe();
  }

  describe() {
    this.redriveChosen.disabled = this.chosen.size === 0;
    this.redriveAll.disabled = this.letters.length === 0;
  }

  /** @param {Letter} made */
  row(made) {
    const box = h("input", {
      type: "checkbox",
      "aria-label": `Choose ${made.id}`,
      onchange: () => {
        if (box.checked) this.chosen.add(made.id);
        else this.chosen.delete(made.id);
        this.describe();
      },
    });
    const inspect = () => this.dispatchEvent(new CustomEvent("inspect", { detail: { stream: this.place, id: made.id } }));
    const element = h(
      "tr", {},
      h("td", {}, box),
      h("th", { scope: "row" }, button(made.id, inspect, { title: "Look at the dead letter" }, "button.link.id")),
      h("td.reason", { title: made.reason }, h("bdi", {}, made.reason)),
      h("td.number", {}, made.deliveries),
      h("td", {}, h("bdi", {}, made.consumer === "" ? "–" : made.consumer)),
      h("td.id", {}, made.entryId),
      h("td", { title: moment(idMs(made.id)) }, clock(idMs(made.id)).slice(0, 8)),
    );
    return { element, update: () => (box.checked = this.chosen.has(made.id)) };
  }

  /** @param {string[]} ids */
  async redrive(ids) {
    if (ids.length === 0) return;
    const { stream, group } = this;
    const wanted = await ask({
      title: `Redrive ${plural(ids.length, "dead letter")}?`,
      text: `Each becomes a new entry of ${stream}, which every group reads, and leaves ${this.place}.`,
      go: "Redrive",
      preview: async () => sentence(await redriveEach(stream, group, ids, true), false),
      work: async () => `Put back ${plural(await redriveEach(stream, group, ids, false), "entry", "entries")}`,
    });
    if (wanted !== null) await this.changed();
  }

  async redriveMany() {
    const { stream, group } = this;
    // What dies again meanwhile is not put back a second time.
    const end = this.letters[0]?.id ?? "+";
    const filter = (/** @type {Record<string, string>} */ { reason = "" }) => ({ end, ...(reason === "" ? {} : { reason }) });
    const wanted = await ask({
      title: `Redrive dead letters of ${group}`,
      text: `Each becomes a new entry of ${stream}, which every group reads, and leaves ${this.place}.`,
      fields: [{ name: "reason", label: "Only with this reason", list: [...new Set(this.letters.map(({ reason }) => reason))], hint: "empty: all" }],
      go: "Redrive",
      preview: async (values) => {
        const found = await api.redrive(stream, group, { filter: filter(values), count: REDRIVE_COUNT, dry_run: true });
        return sentence(found.redriven, found.next !== null);
      },
      work: async (values) => `Put back ${plural(await redriveAll(stream, group, filter(values)), "entry", "entries")}`,
    });
    if (wanted !== null) await this.changed();
  }

  async changed() {
    this.chosen.clear();
    await this.refresh().catch(() => undefined);
    this.dispatchEvent(new Event("changed"));
  }
}

/** @param {number} number @param {boolean} more */
const sentence = (number, more) => `This puts back ${more ? "at least " : ""}${plural(number, "dead letter")}.`;

/**
 * Redrives the chosen letters, in several calls: each takes a limited number of letters and bytes.
 * @param {string} stream @param {string} group @param {string[]} ids @param {boolean} dryRun
 */
async function redriveEach(stream, group, ids, dryRun) {
  let redriven = 0;
  let left = ids;
  while (left.length > 0) {
    const asked = left.slice(0, REDRIVE_COUNT);
    const found = await api.redrive(stream, group, { ids: asked, dry_run: dryRun });
    redriven += found.redriven;
    const done = new Set(found.next === null ? asked : found.entries.map((one) => one.dead_letter_id));
    left = left.filter((id) => !done.has(id));
  }
  return redriven;
}

/** Call after call, until the gateway has looked at all. @param {string} stream @param {string} group @param {{end: string, reason?: string}} filter */
async function redriveAll(stream, group, filter) {
  let redriven = 0;
  let start = "-";
  for (;;) {
    const found = await api.redrive(stream, group, { filter: { ...filter, start }, count: REDRIVE_COUNT });
    redriven += found.redriven;
    if (found.next === null) return redriven;
    start = `(${found.next}`;
  }
}
