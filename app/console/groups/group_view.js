/*
 * The groups of a stream, and one of them from near: consumers, and what was delivered and is not done.
 *
 * Knows: groups and what can be done with them. Must never know: the socket, live entries.
 */

import * as api from "../shared/api.js";
import { act } from "../shared/announce.js";
import { DeadLetters } from "./dead_letter_list.js";
import { ask } from "../shared/dialogs.js";
import { button, fill, h, reconcile, write } from "../shared/dom.js";
import { count, duration } from "../shared/format.js";
import { PendingList } from "./pending_list.js";
import { href } from "../shared/address.js";
import { describePolicy, parsePolicy, policyFields } from "./policy.js";

/** @typedef {import("../shared/api.js").Group} Group */
/** @typedef {import("../shared/api.js").Consumer} Consumer */

/** Fires `inspect` with a stream and an ID, `changed` when something was done. */
export class Groups extends EventTarget {
  /** @param {Element} lagChart shown beside the groups */
  constructor(lagChart) {
    super();
    this.stream = "";
    this.group = "";
    /** @type {Group | null} the group in sight */
    this.now = null;
    /** @type {Map<string, any>} */
    this.keptGroups = new Map();
    /** @type {Map<string, any>} */
    this.keptConsumers = new Map();
    this.groupRows = h("tbody");
    this.consumerRows = h("tbody");
    this.empty = h("p.empty", { hidden: true }, "No group reads this stream yet.");
    this.pending = new PendingList();
    this.deadLetters = new DeadLetters();
    for (const list of [this.pending, this.deadLetters]) {
      list.addEventListener("inspect", (event) => this.dispatchEvent(new CustomEvent("inspect", { detail: /** @type {CustomEvent} */ (event).detail })));
      list.addEventListener("changed", () => this.changed());
    }
    this.title = h("h2.small");
    this.policy = h("p.muted");
    this.detail = h(
      "section.detail",
      { hidden: true, "aria-label": "Group" },
      h("div.bar", {}, this.title,
        button("Policy…", () => this.change()),
        button("Move…", () => this.move()),
        button("Delete group…", () => this.remove(), {}, "button.button.danger-quiet")),
      this.policy,
      table("Consumers", ["Consumer", "Pending", "Idle", "Last delivery", ""], this.consumerRows),
      this.pending.element,
      this.deadLetters.element,
    );
    this.element = h(
      "div.groups",
      {},
      h("section", { "aria-label": "Groups" },
        h("div.bar", {}, h("h2.small", {}, "Groups"), button("New group", () => this.create())),
        table("Groups", ["Group", "Lag", "Pending", "Consumers", "Last delivered"], this.groupRows),
        this.empty,
        lagChart),
      this.detail,
    );
  }

  /** @param {string} stream @param {string} group */
  open(stream, group) {
    if (stream !== this.stream) fill(this.groupRows);
    if (stream !== this.stream || group !== this.group) {
      this.keptConsumers.clear();
      fill(this.consumerRows);
      this.deadLetters.open(stream, group, "");
    }
    if (stream !== this.stream) this.keptGroups.clear();
    this.stream = stream;
    this.group = group;
    this.detail.hidden = group === "";
    write(this.title, group);
    this.pending.open(stream, group);
  }

  /** @param {Group[]} groups what the stream has now */
  show(groups) {
    this.empty.hidden = groups.length > 0;
    reconcile(this.groupRows, this.keptGroups, groups.map((group) => [group.name, group]), (group) => this.groupRow(group));
    const now = groups.find(({ name }) => name === this.group);
    this.detail.hidden = now === undefined;
    if (now === undefined) return;
    this.now = now;
    this.pending.letters = now.dead_letter?.stream ?? "";
    this.deadLetters.open(this.stream, this.group, this.pending.letters);
    write(this.policy, describePolicy(now));
  }

  /** @param {Group} made */
  groupRow({ name }) {
    const link = h("a", { href: href(this.stream, "groups", name), title: name }, h("bdi", {}, name));
    const cells = [1, 2, 3].map(() => h("td.number"));
    const last = h("td.id");
    const update = (/** @type {Group} */ group) => {
      if (group.name === this.group) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
      for (const [place, value] of [group.lag, group.pending, group.consumers].entries()) {
        write(cells[place], value === null ? "unknown" : count(value));
      }
      cells[0].classList.toggle("behind", (group.lag ?? 0) > 0);
      write(last, group.last_delivered_id);
    };
    return { element: h("tr", {}, h("th", { scope: "row" }, link), ...cells, last), update };
  }

  /** Ask for the consumers and the pending entries of the group in sight. */
  async refresh() {
    if (this.group === "") return;
    const { stream, group } = this;
    const { consumers } = await api.consumers(stream, group);
    if (stream !== this.stream || group !== this.group) return;
    reconcile(this.consumerRows, this.keptConsumers, consumers.map((one) => [one.name, one]), (one) => this.consumerRow(one));
    this.pending.consumers = consumers.map(({ name }) => name);
    await Promise.allSettled([this.pending.refresh(), this.deadLetters.refresh()]);
  }

  /** @param {Consumer} made */
  consumerRow({ name }) {
    const cells = [1, 2, 3].map(() => h("td.number"));
    const update = (/** @type {Consumer} */ one) => {
      write(cells[0], count(one.pending));
      write(cells[1], duration(one.idle_ms));
      write(cells[2], one.inactive_ms === null ? "never" : `${duration(one.inactive_ms)} ago`);
    };
    const remove = button("Remove…", () => this.removeConsumer(name), { "aria-label": `Remove ${name}` }, "button.plain.tiny");
    return { element: h("tr", {}, h("th", { scope: "row", title: name }, h("bdi", {}, name)), ...cells, h("td", {}, remove)), update };
  }

  changed() {
    this.dispatchEvent(new Event("changed"));
  }

  async create() {
    const wanted = await ask({
      title: `New group of ${this.stream}`,
      fields: [
        { name: "name", label: "Name", required: true },
        { name: "start", label: "Begins with", options: [["$", "what is published from now on"], ["0", "the oldest entry"]] },
        { name: "id", label: "or after this ID", hint: "empty: as chosen above" },
      ],
      go: "Create group",
      work: async ({ name = "", id, start }) => {
        await api.createGroup(this.stream, { name, start: id || start || "$" });
        return `Created the group ${name}`;
      },
    });
    if (wanted === null) return;
    location.hash = href(this.stream, "groups", wanted.name);
    this.changed();
  }

  async change() {
    if (this.now === null) return;
    const { name } = this.now;
    const wanted = await ask({
      title: `Policy of ${name}`,
      text: "What becomes of entries that were delivered and are not acknowledged.",
      fields: policyFields(this.now),
      go: "Set policy",
      work: async (values) => {
        await api.changePolicy(this.stream, name, parsePolicy(values));
        return `The policy of ${name} is set`;
      },
    });
    if (wanted !== null) this.changed();
  }

  async move() {
    const wanted = await ask({
      title: `Move ${this.group}`,
      text: "What comes after this ID is delivered next; what is pending stays so.",
      fields: [{ name: "id", label: "Last delivered ID", required: true, hint: "0 for all, $ for none of what is there" }],
      go: "Move group",
      work: async ({ id = "" }) => {
        await api.moveGroup(this.stream, this.group, id);
        return `Moved ${this.group}`;
      },
    });
    if (wanted !== null) this.changed();
  }

  async remove() {
    const sure = await ask({
      title: `Delete the group ${this.group}?`,
      text: "Its consumers, its position and what is pending with them go; the entries stay.",
      go: "Delete group",
      dangerous: true,
      typed: this.group,
    });
    if (sure === null) return;
    if (await act(() => api.deleteGroup(this.stream, this.group, true), () => `Deleted the group ${this.group}`)) {
      location.hash = href(this.stream, "groups");
      this.changed();
    }
  }

  /** @param {string} name */
  async removeConsumer(name) {
    const others = this.pending.consumers.filter((one) => one !== name);
    const wanted = await ask({
      title: `Remove ${name}?`,
      fields: [
        {
          name: "pending",
          label: "What is pending with it",
          options: [
            ["refuse", "must be none, or it stays"],
            ["drop", "is dropped, as if acknowledged"],
            .../** @type {[string, string][]} */ (others.map((one) => [`transfer:${one}`, `goes to ${one}`])),
          ],
        },
      ],
      go: "Remove consumer",
      dangerous: true,
      work: async ({ pending = "refuse" }) => {
        await api.deleteConsumer(this.stream, this.group, name, pending);
        return `Removed ${name}`;
      },
    });
    if (wanted !== null) this.changed();
  }
}

/** @param {string} caption @param {string[]} heads @param {Element} body */
export function table(caption, heads, body) {
  const cells = heads.map((head, place) =>
    head === "" ? h("td") : h(place > 0 && place < 4 ? "th.number" : "th", { scope: "col" }, head));
  return h("div.sideways", {}, h("table.list", {}, h("caption.unseen", {}, caption), h("thead", {}, h("tr", {}, ...cells)), body));
}
