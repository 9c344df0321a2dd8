/*
 * One stream: its figures, charts and views, and the actions on the whole stream.
 *
 * Knows: which view is open. Must never know: frames, how a view draws.
 */

import { VIEWS, formatAddress } from "../shared/address.js";
import { attempt } from "../shared/announce.js";
import * as api from "../shared/api.js";
import { ask } from "../shared/dialogs.js";
import { button, fill, h, setText } from "../shared/dom.js";
import { parseMs } from "../shared/fields.js";
import { countEntries, formatBytes, formatCount, pluralize, showHidden } from "../shared/format.js";
import { previewLimits, previewTrims } from "../shared/removal.js";
import { describeHolder, describeRetention, parseRetention, retentionFields } from "../shared/retention.js";
import { showState } from "../shared/state.js";
import { GroupView } from "../groups/group_view.js";
import { Inspector } from "../live/inspector.js";
import { LiveView } from "../live/live_view.js";
import { ScheduleList } from "../schedules/schedule_list.js";
import { Charts, LagChart } from "./charts.js";
import { Measures } from "./measures.js";
import { PublishForm } from "./publish_form.js";

/** @type {Record<string, string>} */
const LABELS = { live: "Live", groups: "Groups", publish: "Publish", scheduled: "Scheduled" };

/** Fires `change` after an action that changes figures elsewhere. */
export class StreamPage extends EventTarget {
  /** @param {import("../live/tail.js").Tail} tail
   * @param {(stream: string) => number | null} lengthOf a stream, null if it is not known */
  constructor(tail, lengthOf) {
    super();
    this.tail = tail;
    this.name = "";
    this.view = "live";
    /** @type {import("../shared/api.js").Stream | null} */
    this.stream = null;
    this.refreshCount = 0;
    this.measures = new Measures();
    this.charts = new Charts();
    this.lagChart = new LagChart();
    this.inspector = new Inspector();
    this.live = new LiveView(tail, (entry) => this.inspector.open(this.name, entry));
    this.groups = new GroupView(this.lagChart.element, lengthOf);
    this.schedules = new ScheduleList(false);
    this.publish = new PublishForm();
    this.title = h("h1");
    this.figures = h("p.figures");
    this.closing = button("Close stream…", () => this.closeStream(), { "data-needs": "close" });
    this.badge = h("span.badge.state-word", { hidden: true });
    this.missing = h("p.notice.gap", { hidden: true }, "This stream does not exist. It is created when you publish to it.");
    this.tabs = VIEWS.map((view) => h("button.tab", {
      type: "button", role: "tab", id: `tab-${view}`, "aria-controls": `view-${view}`,
      onclick: () => this.openView(view),
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.moveTab(event, view),
    }, LABELS[view] ?? view));
    const views = [this.live.element, this.groups.element, this.publish.element, this.schedules.element];
    this.panels = VIEWS.map((view, index) => h(`div.view.${view}`, { role: "tabpanel", id: `view-${view}`, "aria-labelledby": `tab-${view}`, hidden: true }, views[index]));
    this.element = h(
      "div.stream", { hidden: true },
      h("header.head", {}, h("div.names", {}, this.title, this.badge, this.figures),
        h("div.bar", { role: "toolbar", "aria-label": "Stream" },
          button("Trim…", () => this.trim(), { "data-needs": "write" }),
          button("Limits…", () => this.changeLimits(), { "data-needs": "manage" }),
          this.closing,
          button("Delete stream…", () => this.deleteStream(), { "data-needs": "manage" }, "button.button.danger-quiet"))),
      this.missing,
      this.charts.element,
      h("div.tabs", { role: "tablist", "aria-label": "Views" }, ...this.tabs),
      h("div.views", {}, ...this.panels, this.inspector.element),
    );
    this.listen();
  }

  listen() {
    this.tail.addEventListener("arrival", (event) => {
      const { entries, openSinceMs } = /** @type {CustomEvent} */ (event).detail;
      this.measures.addArrivals(entries, openSinceMs, Date.now());
    });
    this.inspector.addEventListener("delete", (event) => {
      const { stream, id } = /** @type {CustomEvent} */ (event).detail;
      if (stream === this.name) this.tail.markDeleted(id);
    });
    this.inspector.addEventListener("copy", (event) => {
      this.inspector.close();
      this.openView("publish");
      // The hash changes later, but the form needs the focus now.
      this.open({ stream: this.name, view: "publish", group: "" });
      this.publish.copy(/** @type {CustomEvent} */ (event).detail);
    });
    this.groups.addEventListener("inspect", (event) => this.inspect(/** @type {CustomEvent} */ (event).detail));
    for (const view of [this.groups, this.schedules]) view.addEventListener("change", () => this.refresh().catch(() => undefined));
  }

  /** @param {import("../shared/address.js").Address} address */
  async open(address) {
    this.element.hidden = false;
    const isOther = address.stream !== this.name;
    this.name = address.stream;
    this.view = address.view;
    for (const [index, view] of VIEWS.entries()) {
      const isOpen = view === address.view;
      this.panels[index].hidden = !isOpen;
      this.tabs[index].setAttribute("aria-selected", String(isOpen));
      this.tabs[index].tabIndex = isOpen ? 0 : -1;
    }
    this.groups.open(address.stream, address.group);
    this.schedules.open(address.stream);
    this.publish.open(address.stream);
    if (isOther) await this.openStream();
    else if (address.view === "live") this.live.grid.draw();
    await this.refresh().catch(() => undefined);
  }

  async openStream() {
    this.inspector.close();
    this.measures.reset();
    fill(this.title, h("bdi", {}, this.name));
    this.title.title = showHidden(this.name);
    document.title = `${showHidden(this.name)} – Weir console`;
    setText(this.figures, "");
    await this.live.open(this.name);
  }

  /** @param {string} view */
  openView(view) {
    location.hash = formatAddress(this.name, view);
  }

  /** Left and right arrow go around the tabs. @param {KeyboardEvent} event @param {string} view */
  moveTab(event, view) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const index = (VIEWS.indexOf(view) + step + VIEWS.length) % VIEWS.length;
    this.openView(VIEWS[index] ?? "live");
    this.tabs[index].focus();
  }

  /** Read the figures again, and the content of the open view. */
  async refresh() {
    const { name } = this;
    const sentMs = performance.now();
    this.refreshCount += 1;
    const current = this.refreshCount;
    try {
      const [stream, { groups }] = await Promise.all([api.getStream(name), api.listGroups(name)]);
      // A response that arrives after that of a later request would show what was before an action.
      if (name !== this.name || current !== this.refreshCount) return;
      this.measures.rate.read(stream, sentMs, performance.now());
      this.show(stream);
      this.measures.setLags(groups);
      this.groups.show(groups);
    } catch (error) {
      const isLatest = name === this.name && current === this.refreshCount;
      if (isLatest && error instanceof api.ApiError && error.code === "no_stream") this.showMissing();
      return;
    }
    if (this.view === "groups") await this.groups.refresh().catch(() => undefined);
    if (this.view === "scheduled") await this.schedules.refresh().catch(() => undefined);
  }

  /** @param {import("../shared/api.js").Stream} stream */
  show(stream) {
    this.stream = stream;
    this.missing.hidden = true;
    this.showEnd(stream);
    setText(this.figures, [
      countEntries(stream.length),
      formatBytes(stream.memory_bytes),
      `${formatCount(stream.entries_added)} added in total`,
      stream.length === 0 ? "" : `${stream.first_id} … ${stream.last_id}`,
      describeRetention(stream.retention),
      describeHolder(stream.held_by),
      stream.schedules === 0 ? "" : `${formatCount(stream.schedules)} scheduled`,
      stream.media_type ?? "",
      stream.forked_from === undefined ? "" : `fork of ${stream.forked_from}`,
    ].filter((figure) => figure !== "").join("  ·  "));
  }

  /** @param {{closed?: boolean, closed_at?: string, close_reason?: string, state?: string}} stream */
  showEnd({ closed = false, closed_at = "", close_reason = "", state = "closed" }) {
    this.badge.hidden = !closed;
    showState(this.badge, closed ? state : "");
    this.badge.title = close_reason === "" ? `since ${closed_at}` : `since ${closed_at}: ${close_reason}`;
    this.closing.disabled = closed;
    this.publish.setClosed(closed);
    this.groups.deadLetters.setClosed(closed);
    this.inspector.setClosed(closed);
  }

  showMissing() {
    this.stream = null;
    this.showEnd({});
    this.missing.hidden = false;
    this.measures.setLags([]);
    this.groups.show([]);
    setText(this.figures, "");
  }

  /** Read the colours again, after a change of theme. */
  restyle() {
    this.charts.restyle();
    this.lagChart.restyle();
  }

  /** Called once a second. */
  tick() {
    if (this.name === "") return;
    this.measures.tick(Date.now());
    if (document.hidden) return;
    this.charts.draw(this.measures.series);
    this.lagChart.draw(this.measures);
  }

  /** @param {{stream: string, id: string}} wanted perhaps in another stream: a dead letter */
  async inspect({ stream, id }) {
    const { name } = this;
    const entry = await api.getEntry(stream, id).catch(() => ({ id, fields: null }));
    if (name === this.name) this.inspector.open(stream, entry);
  }

  async trim() {
    const values = await ask({
      title: `Trim ${this.name}`,
      fields: [
        { name: "by", label: "Keep", options: [["maxlen", "the newest entries, by number"], ["minid", "entries from an ID on"], ["older", "the newest entries, by age"]] },
        { name: "limit", label: "Number, ID or age", hint: "An age is such as 12h or 7d.", required: true },
      ],
      submit: "Trim",
      dangerous: true,
      preview: async (input) => previewTrims(this.name, [parseTrim(input)]),
      work: async (input) => `Removed ${countEntries((await api.trim(this.name, parseTrim(input))).deleted)}`,
    });
    if (values !== null) await this.finishAction();
  }

  async changeLimits() {
    if (this.stream === null) return;
    const { groups, retention } = this.stream;
    const values = await ask({
      title: `Limits of ${this.name}`,
      text: "The oldest entries beyond a limit are removed. Leave a field empty for no limit.",
      fields: retentionFields(retention),
      submit: "Set limits",
      dangerous: true,
      preview: async (input) => previewLimits(this.name, parseRetention(input), groups),
      work: async (input) => {
        await api.changeRetention(this.name, parseRetention(input));
        return "Limits set";
      },
    });
    if (values !== null) await this.finishAction();
  }

  /** How many schedules the stream has now: they end with it. */
  async readSchedules() {
    await this.refresh().catch(() => undefined);
    return this.stream?.schedules ?? 0;
  }

  async closeStream() {
    const schedules = await this.readSchedules();
    const values = await ask({
      title: `Close ${this.name}?`,
      text: `It takes no entries any more, and its readers end. ${describeDropped(schedules)}It cannot be undone.`,
      fields: [{ name: "reason", label: "Reason, for its readers" }],
      submit: "Close stream",
      dangerous: true,
    });
    if (values === null) return;
    await attempt(() => api.closeStream(this.name, values.reason ?? "", schedules > 0), () => `Closed ${this.name}`);
    await this.finishAction();
  }

  async deleteStream() {
    const schedules = await this.readSchedules();
    const values = await ask({
      title: `Delete ${this.name}?`,
      text: `This deletes all its entries and groups for all readers. ${describeDropped(schedules)}It cannot be undone.`,
      submit: "Delete stream",
      dangerous: true,
      confirm: this.name,
    });
    if (values === null) return;
    await attempt(() => api.deleteStream(this.name, schedules > 0), () => `Deleted ${this.name}`);
    await this.finishAction();
  }

  async finishAction() {
    await this.refresh().catch(() => undefined);
    this.dispatchEvent(new Event("change"));
  }

  close() {
    this.element.hidden = true;
    this.name = "";
    this.tail.close();
    document.title = "Weir console";
  }
}

/** A sentence of a question. @param {number} schedules */
function describeDropped(schedules) {
  return schedules === 0 ? "" : `What is scheduled never runs: ${pluralize(schedules, "schedule")}. `;
}

/** @param {Record<string, string>} values of the form */
function parseTrim({ by, limit = "" }) {
  if (by === "minid") return { minid: limit };
  return by === "older" ? { older_than_ms: parseMs(limit) ?? 0 } : { maxlen: Number(limit) };
}
