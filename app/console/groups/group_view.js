/*
 * The groups of a stream, and one of them in detail: policy, consumers, pending entries, dead letters.
 *
 * Knows: groups and the actions on them. Must never know: the WebSocket, live entries.
 */

import { formatAddress } from "../shared/address.js";
import { attempt, toast } from "../shared/announce.js";
import * as api from "../shared/api.js";
import { ask, show } from "../shared/dialogs.js";
import { button, fill, h, makeHead, makeTable, reconcile, setText } from "../shared/dom.js";
import { formatCount, formatDuration, formatError } from "../shared/format.js";
import { showState } from "../shared/state.js";
import { DeadLetterList } from "./dead_letter_list.js";
import { PendingList } from "./pending_list.js";
import { NO_POLICY, describePolicy, parsePolicy, policyFields } from "./policy.js";

/** @typedef {import("../shared/api.js").Group} Group */
/** @typedef {import("../shared/api.js").Consumer} Consumer */

/** Fires `inspect` with stream and ID, `change` after an action. */
export class GroupView extends EventTarget {
  /** @param {Element} lagChart shown below the list of groups
   * @param {(stream: string) => number | null} lengthOf a stream, null if it is not known */
  constructor(lagChart, lengthOf) {
    super();
    this.lengthOf = lengthOf;
    this.stream = "";
    /** The name in the address, "" for none. */
    this.name = "";
    /** @type {Group | null} */
    this.group = null;
    this.refreshCount = 0;
    /** @type {Map<string, any>} */
    this.groupsByName = new Map();
    /** @type {Map<string, any>} */
    this.consumersByName = new Map();
    this.groupRows = h("tbody");
    this.consumerRows = h("tbody");
    this.empty = h("p.empty", { hidden: true }, "This stream has no groups yet.");
    this.pending = new PendingList();
    this.deadLetters = new DeadLetterList();
    for (const list of [this.pending, this.deadLetters]) {
      list.addEventListener("inspect", (event) => this.dispatchEvent(new CustomEvent("inspect", { detail: /** @type {CustomEvent} */ (event).detail })));
      list.addEventListener("change", () => this.finishAction());
    }
    this.title = h("h2.small");
    this.pauseButton = button("Pause", () => this.pause(), { "data-needs": "manage" });
    this.policy = h("p.muted");
    const groupHeads = ["Group", "State", "Lag", "Pending", "Consumers", "Dead letters", "Last delivered"].map((label, index) => makeHead(label, index > 1 && index < 6));
    const consumerHeads = ["Consumer", "Pending", "Idle", "Last delivery", ""].map((label, index) => makeHead(label, index > 0));
    this.detail = h(
      "section.detail",
      { hidden: true, "aria-label": "Group" },
      h("div.bar", {}, this.title,
        button("Policy…", () => this.changePolicy(), { "data-needs": "manage" }),
        button("Move…", () => this.move(), { "data-needs": "manage" }),
        this.pauseButton,
        button("Why?", () => this.explain()),
        button("Delete group…", () => this.deleteGroup(), { "data-needs": "manage" }, "button.button.danger-quiet")),
      this.policy,
      makeTable("Consumers", consumerHeads, this.consumerRows),
      this.deadLetters.element,
      this.pending.element,
    );
    this.element = h(
      "div.groups",
      {},
      h("section", { "aria-label": "Groups" },
        h("div.bar", {}, h("h2.small", {}, "Groups"), button("New group", () => this.createGroup(), { "data-needs": "manage" })),
        makeTable("Groups", groupHeads, this.groupRows),
        this.empty,
        lagChart),
      this.detail,
    );
  }

  /** @param {string} stream @param {string} name */
  open(stream, name) {
    if (stream !== this.stream) {
      this.groupsByName.clear();
      fill(this.groupRows);
    }
    if (stream !== this.stream || name !== this.name) {
      this.consumersByName.clear();
      fill(this.consumerRows);
      this.deadLetters.open(stream, name, "");
    }
    this.stream = stream;
    this.name = name;
    this.detail.hidden = name === "";
    setText(this.title, name);
    this.pending.open(stream, name);
  }

  /** @param {Group[]} groups of the stream */
  show(groups) {
    this.empty.hidden = groups.length > 0;
    reconcile(this.groupRows, this.groupsByName, groups.map((group) => [group.name, group]), (group) => this.makeGroupRow(group));
    const group = groups.find(({ name }) => name === this.name);
    this.detail.hidden = group === undefined;
    if (group === undefined) return;
    this.group = group;
    this.pending.deadLetterStream = group.dead_letter?.stream ?? "";
    this.deadLetters.open(this.stream, this.name, this.pending.deadLetterStream);
    setText(this.policy, describePolicy(group));
    setText(this.pauseButton, group.paused ? "Resume" : "Pause");
  }

  /** @param {Group} group */
  makeGroupRow({ name }) {
    const link = h("a", { href: formatAddress(this.stream, "groups", name), title: name }, h("bdi", {}, name));
    const cells = [1, 2, 3, 4].map(() => h("td.number"));
    const [state, last] = [h("span.state-word"), h("td.id")];
    const update = (/** @type {Group} */ group) => {
      if (group.name === this.name) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
      for (const [index, value] of [group.lag, group.pending, group.consumers].entries()) {
        setText(cells[index], value === null ? "unknown" : formatCount(value));
      }
      // Groups may share the stream of their dead letters.
      const dead = group.dead_letter === null ? null : this.lengthOf(group.dead_letter.stream) ?? 0;
      setText(cells[3], dead === null ? "–" : formatCount(dead));
      cells[3].classList.toggle("behind", (dead ?? 0) > 0);
      cells[0].classList.toggle("behind", (group.lag ?? 0) > 0);
      setText(last, group.last_delivered_id);
      showState(state, group.state);
    };
    return { element: h("tr", {}, h("th", { scope: "row" }, link), h("td", {}, state), ...cells, last), update };
  }

  /** Read the consumers, the pending entries and the dead letters of the open group. */
  async refresh() {
    if (this.name === "") return;
    const { stream, name } = this;
    this.refreshCount += 1;
    const current = this.refreshCount;
    const { consumers } = await api.listConsumers(stream, name);
    if (current !== this.refreshCount || stream !== this.stream || name !== this.name) return;
    reconcile(this.consumerRows, this.consumersByName, consumers.map((consumer) => [consumer.name, consumer]), (consumer) => this.makeConsumerRow(consumer));
    this.pending.consumers = consumers.map((consumer) => consumer.name);
    await Promise.allSettled([this.pending.refresh(), this.deadLetters.refresh()]);
  }

  /** @param {Consumer} consumer */
  makeConsumerRow({ name }) {
    const cells = [1, 2, 3].map(() => h("td.number"));
    const update = (/** @type {Consumer} */ consumer) => {
      setText(cells[0], formatCount(consumer.pending));
      setText(cells[1], formatDuration(consumer.idle_ms));
      // Null before the first delivery, and always where the backend is a Redis before 7.2.
      setText(cells[2], consumer.inactive_ms === null ? "–" : `${formatDuration(consumer.inactive_ms)} ago`);
    };
    const remove = button("Remove…", () => this.removeConsumer(name), { "data-needs": "manage", "aria-label": `Remove ${name}` }, "button.plain.tiny");
    return { element: h("tr", {}, h("th", { scope: "row", title: name }, h("bdi", {}, name)), ...cells, h("td.number", {}, remove)), update };
  }

  finishAction() {
    this.dispatchEvent(new Event("change"));
  }

  async createGroup() {
    const values = await ask({
      title: `New group of ${this.stream}`,
      fields: [
        { name: "name", label: "Name", required: true },
        { name: "start", label: "Start with", options: [["$", "new entries"], ["0", "the oldest entry"]] },
        { name: "id", label: "Start after this ID", hint: "Leave empty to use the choice above." },
        ...policyFields(NO_POLICY),
      ],
      submit: "Create group",
      work: async (input) => {
        const { name = "", id, start } = input;
        await api.createGroup(this.stream, { name, start: id || start || "$", ...parsePolicy(input) });
        return `Created the group ${name}`;
      },
    });
    if (values === null) return;
    location.hash = formatAddress(this.stream, "groups", values.name);
    this.finishAction();
  }

  async changePolicy() {
    if (this.group === null) return;
    const { name } = this.group;
    const values = await ask({
      title: `Policy of ${name}`,
      text: "The policy applies to entries that were delivered and are not acknowledged.",
      fields: policyFields(this.group),
      submit: "Set policy",
      work: async (input) => {
        await api.changePolicy(this.stream, name, parsePolicy(input));
        return `Policy of ${name} set`;
      },
    });
    if (values !== null) this.finishAction();
  }

  async move() {
    const values = await ask({
      title: `Move ${this.name}`,
      text: "The group continues after this ID. Pending entries stay pending.",
      fields: [{ name: "id", label: "Last delivered ID", required: true, hint: "0 delivers all entries, $ only new ones." }],
      submit: "Move group",
      work: async ({ id = "" }) => {
        await api.moveGroup(this.stream, this.name, id);
        return `Moved ${this.name}`;
      },
    });
    if (values !== null) this.finishAction();
  }

  async explain() {
    const { stream, name } = this;
    try {
      const { reasons } = await api.explainGroup(stream, name);
      const rows = reasons.map(({ detail, remedies }) => h("li", {}, h("p", {}, detail), h("p.hint", {}, remedies.console)));
      show(`Why does ${name} deliver nothing?`, h("ul.reasons", {}, ...rows));
    } catch (error) {
      toast(formatError(error), "bad");
    }
  }

  async pause() {
    if (this.group === null) return;
    const { name, paused } = this.group;
    const done = () => paused ? `Resumed ${name}` : `Paused ${name}: it delivers nothing until it is resumed`;
    if (await attempt(() => api.pauseGroup(this.stream, name, !paused), done)) this.finishAction();
  }

  async deleteGroup() {
    const values = await ask({
      title: `Delete the group ${this.name}?`,
      text: "This deletes its consumers, its position and its list of pending entries. The entries stay in the stream.",
      submit: "Delete group",
      dangerous: true,
      confirm: this.name,
    });
    if (values === null) return;
    if (await attempt(() => api.deleteGroup(this.stream, this.name, true), () => `Deleted the group ${this.name}`)) {
      location.hash = formatAddress(this.stream, "groups");
      this.finishAction();
    }
  }

  /** @param {string} name */
  async removeConsumer(name) {
    const others = this.pending.consumers.filter((consumer) => consumer !== name);
    const values = await ask({
      title: `Remove ${name}?`,
      fields: [
        {
          name: "pending",
          label: "Its pending entries",
          options: [
            ["refuse", "keep the consumer if it has any"],
            ["drop", "drop them, as if acknowledged"],
            .../** @type {[string, string][]} */ (others.map((consumer) => [`transfer:${consumer}`, `transfer them to ${consumer}`])),
          ],
        },
      ],
      submit: "Remove consumer",
      dangerous: true,
      work: async ({ pending = "refuse" }) => {
        await api.deleteConsumer(this.stream, this.name, name, pending);
        return `Removed ${name}`;
      },
    });
    if (values !== null) this.finishAction();
  }
}
