/*
 * What a group was given and has not acknowledged: who has it, for how long, how often; and what can be done about it.
 *
 * Knows: pending entries. Must never know: how a group is found.
 */

import * as api from "../shared/api.js";
import { act } from "../shared/announce.js";
import { ask, show } from "../shared/dialogs.js";
import { button, fill, h, reconcile, write } from "../shared/dom.js";
import { count, duration, plural } from "../shared/format.js";

/** @typedef {import("../shared/api.js").Pending} Pending */

const PAGE_COUNT = 100;
// All that are shown can be chosen, and one call claims, gives back or deletes no more.
const SHOWN_MAX = 500;

/** Fires `inspect` with a stream and an ID, `changed` when something was done. */
export class PendingList extends EventTarget {
  constructor() {
    super();
    this.stream = "";
    this.group = "";
    /** @type {string[]} */
    this.consumers = [];
    // Where the group's dead letters go, "" for nowhere.
    this.letters = "";
    /** @type {Pending[]} */
    this.entries = [];
    /** @type {Set<string>} */
    this.chosen = new Set();
    /** @type {Map<string, any>} */
    this.kept = new Map();
    this.limit = PAGE_COUNT;
    this.all = h("input", { type: "checkbox", "aria-label": "Choose all that are shown", onchange: () => this.chooseAll() });
    this.rows = h("tbody");
    this.consumer = h("select", { "aria-label": "Of consumer", onchange: () => this.refresh() }, h("option", { value: "" }, "all consumers"));
    this.idle = h("input", { type: "number", min: 0, placeholder: "idle at least (s)", "aria-label": "Idle at least, in seconds", oninput: () => this.refresh() });
    this.told = h("span.muted");
    this.more = button("Show more", () => {
      this.limit = Math.min(SHOWN_MAX, this.limit + PAGE_COUNT);
      this.refresh();
    }, { hidden: true });
    this.acts = [
      button("Acknowledge", () => this.ack()),
      button("Claim…", () => this.claim()),
      button("Give back", () => this.giveBack()),
      button("Dead letter…", () => this.bury()),
      button("Delete…", () => this.remove(), {}, "button.button.danger-quiet"),
    ];
    const heads = ["ID", "Consumer", "Idle", "Deliveries"].map((head, place) => h(place > 1 ? "th.number" : "th", { scope: "col" }, head));
    this.element = h(
      "section.pending",
      { "aria-label": "Pending entries" },
      h("div.bar", {}, h("h2.small", {}, "Pending"), this.told, this.consumer, this.idle),
      h("div.bar", { role: "toolbar", "aria-label": "With the chosen entries" }, ...this.acts),
      h("div.sideways", {}, h("table.list", {}, h("caption.unseen", {}, "Pending entries"), h("thead", {}, h("tr", {}, h("td", {}, this.all), ...heads)), this.rows)),
      this.more,
    );
    this.asked = 0;
  }

  /** @param {string} stream @param {string} group */
  open(stream, group) {
    if (stream === this.stream && group === this.group) return;
    this.stream = stream;
    this.group = group;
    this.chosen.clear();
    this.kept.clear();
    this.consumers = [];
    this.limit = PAGE_COUNT;
    fill(this.rows);
    this.draw([], false);
  }

  async refresh() {
    const { stream, group } = this;
    this.asked += 1;
    const mine = this.asked;
    const names = ["", ...this.consumers];
    if (names.join("\n") !== [...this.consumer.options].map((option) => option.value).join("\n")) {
      const chosen = this.consumer.value;
      fill(this.consumer, ...names.map((name) => h("option", { value: name }, name === "" ? "all consumers" : name)));
      this.consumer.value = names.includes(chosen) ? chosen : "";
    }
    const idleMs = Math.round(Number(this.idle.value || 0) * 1000);
    const page = await api.pending(stream, group, { count: this.limit, consumer: this.consumer.value, min_idle_ms: idleMs });
    if (mine === this.asked && stream === this.stream && group === this.group) this.draw(page.pending, page.more);
  }

  /** @param {Pending[]} entries @param {boolean} more */
  draw(entries, more) {
    this.entries = entries;
    const there = new Set(entries.map(({ id }) => id));
    for (const id of this.chosen) if (!there.has(id)) this.chosen.delete(id);
    reconcile(this.rows, this.kept, entries.map((one) => [one.id, one]), (one) => this.row(one));
    this.more.hidden = !more || this.limit >= SHOWN_MAX;
    this.tell(more);
  }

  /** @param {boolean} [more] */
  tell(more = !this.more.hidden) {
    const shown = this.entries.length === 0 ? "nothing" : `${count(this.entries.length)}${more ? " and more" : ""}`;
    write(this.told, this.chosen.size === 0 ? shown : `${shown}, ${count(this.chosen.size)} chosen`);
    for (const act of this.acts) act.disabled = this.chosen.size === 0;
    this.all.checked = this.entries.length > 0 && this.chosen.size === this.entries.length;
  }

  /** @param {Pending} made */
  row({ id }) {
    const box = h("input", {
      type: "checkbox",
      "aria-label": `Choose ${id}`,
      onchange: () => {
        if (box.checked) this.chosen.add(id);
        else this.chosen.delete(id);
        this.tell();
      },
    });
    const look = button(id, () => this.dispatchEvent(new CustomEvent("inspect", { detail: { stream: this.stream, id } })), { title: "Look at the entry" }, "button.link.id");
    const owner = h("bdi");
    const cells = [h("td.number"), h("td.number")];
    const update = (/** @type {Pending} */ one) => {
      box.checked = this.chosen.has(id);
      write(owner, one.consumer ?? "nobody");
      write(cells[0], duration(one.idle_ms));
      write(cells[1], count(one.delivery_count));
    };
    return { element: h("tr", {}, h("td", {}, box), h("th", { scope: "row" }, look), h("td", {}, owner), ...cells), update };
  }

  chooseAll() {
    this.chosen = new Set(this.all.checked ? this.entries.map(({ id }) => id) : []);
    this.draw(this.entries, !this.more.hidden);
  }

  /** @template T @param {(ids: string[]) => Promise<T>} work @param {(found: T) => string} told */
  async act(work, told) {
    const ids = [...this.chosen];
    if (ids.length === 0) return;
    if (await act(() => work(ids), told)) this.chosen.clear();
    await this.refresh();
    this.dispatchEvent(new Event("changed"));
  }

  ack() {
    return this.act((ids) => api.ack(this.stream, this.group, ids), (found) => `Acknowledged ${plural(found.acknowledged, "entry", "entries")}`);
  }

  giveBack() {
    return this.act((ids) => api.nack(this.stream, this.group, ids, "fail"), (found) => `Gave back ${plural(found.released, "entry", "entries")}`);
  }

  async bury() {
    if (this.letters === "") {
      return show("No stream for dead letters", h("p", {}, `First say where they go: Policy… of the group ${this.group}.`));
    }
    const wanted = await ask({
      title: `Move ${plural(this.chosen.size, "entry", "entries")} to ${this.letters}`,
      text: "They are acknowledged here, and nobody is given them again.",
      fields: [{ name: "reason", label: "Why", hint: "stands with each of them there" }],
      go: "Move to dead letters",
      dangerous: true,
    });
    if (wanted === null) return;
    const reason = wanted.reason || undefined;
    await this.act((ids) => api.bury(this.stream, this.group, ids, reason), (found) => `Moved ${plural(found.ids.length, "entry", "entries")} to ${found.stream}`);
  }

  async claim() {
    const wanted = await ask({
      title: `Claim ${plural(this.chosen.size, "entry", "entries")}`,
      text: "They become this consumer's, and their delivery counts rise by one.",
      fields: [
        { name: "consumer", label: "For consumer", required: true, list: this.consumers },
        { name: "idle", label: "Only if idle for so many seconds", type: "number", min: 0, value: "0", hint: "so that nothing is taken from whoever has just begun" },
      ],
      go: "Claim",
    });
    if (wanted === null) return;
    const consumer = wanted.consumer ?? "";
    const idleMs = Math.round(Number(wanted.idle || 0) * 1000);
    await this.act((ids) => api.claim(this.stream, this.group, ids, consumer, idleMs), (found) => `${consumer} claimed ${plural(found.entries.length, "entry", "entries")}`);
  }

  async remove() {
    const sure = await ask({
      title: `Delete ${plural(this.chosen.size, "entry", "entries")} of ${this.stream}?`,
      text: "They leave the stream for all readers; in this list their IDs stay until they are acknowledged.",
      go: "Delete entries",
      dangerous: true,
    });
    if (sure === null) return;
    await this.act((ids) => api.deleteEntries(this.stream, ids), (found) => `Deleted ${plural(found.deleted, "entry", "entries")}`);
  }
}
