/*
 * One stream: its figures, charts, and views; and what is done with the whole of it.
 *
 * Knows: which view is open. Must never know: frames, how a view draws.
 */

import * as api from "../shared/api.js";
import { act } from "../shared/announce.js";
import { Charts, LagChart } from "./charts.js";
import { ask } from "../shared/dialogs.js";
import { button, fill, h, write } from "../shared/dom.js";
import { bytes, count, duration, plural } from "../shared/format.js";
import { Groups } from "../groups/group_view.js";
import { Inspector } from "../live/inspector.js";
import { Live } from "../live/live_view.js";
import { Measures } from "./measures.js";
import { VIEWS, href } from "../shared/address.js";
import { Publish } from "./publish_form.js";
import { parseRetention, retentionFields } from "../shared/retention.js";

/** @type {Record<string, string>} */
const LABELS = { live: "Live", groups: "Groups", publish: "Publish" };

/** Fires `changed` when something was done that other figures show. */
export class StreamPage extends EventTarget {
  /** @param {import("../live/tail.js").Tail} tail */
  constructor(tail) {
    super();
    this.tail = tail;
    this.name = "";
    this.generation = "";
    /** @type {import("../shared/api.js").Stream | null} */
    this.stream = null;
    this.measures = new Measures();
    this.charts = new Charts();
    this.lagChart = new LagChart();
    this.inspector = new Inspector();
    this.live = new Live(tail, (entry) => this.inspector.open(this.name, entry));
    this.groups = new Groups(this.lagChart.element);
    this.publish = new Publish();
    this.title = h("h1");
    this.figures = h("p.figures");
    this.missing = h("p.notice.gap", { hidden: true }, "This stream does not exist now. Publishing makes it.");
    this.tabs = VIEWS.map((view) => h("button.tab", {
      type: "button", role: "tab", id: `tab-${view}`, "aria-controls": `view-${view}`,
      onclick: () => this.go(view),
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.turn(event, view),
    }, LABELS[view] ?? view));
    const inside = [this.live.element, this.groups.element, this.publish.element];
    this.panels = VIEWS.map((view, place) => h(`div.view.${view}`, { role: "tabpanel", id: `view-${view}`, "aria-labelledby": `tab-${view}`, hidden: true }, inside[place]));
    this.element = h(
      "div.stream", { hidden: true },
      h("header.head", {}, h("div.names", {}, this.title, this.figures),
        h("div.bar", { role: "toolbar", "aria-label": "Stream" },
          button("Trim…", () => this.trim()),
          button("Limits…", () => this.limits()),
          button("Delete stream…", () => this.remove(), {}, "button.button.danger-quiet"))),
      this.missing,
      this.charts.element,
      h("div.tabs", { role: "tablist", "aria-label": "Views" }, ...this.tabs),
      h("div.views", {}, ...this.panels, this.inspector.element),
    );
    this.listen();
    this.view = "live";
  }

  listen() {
    this.tail.addEventListener("arrived", (event) => {
      const { entries, openSinceMs } = /** @type {CustomEvent} */ (event).detail;
      this.measures.arrived(entries, openSinceMs, Date.now());
    });
    this.inspector.addEventListener("deleted", (event) => {
      const { stream, id } = /** @type {CustomEvent} */ (event).detail;
      if (stream === this.name) this.tail.removed(id);
    });
    this.inspector.addEventListener("again", (event) => {
      this.inspector.close();
      this.go("publish");
      // The address changes later; the form is to have the focus.
      this.open({ stream: this.name, view: "publish", group: "" });
      this.publish.again(/** @type {CustomEvent} */ (event).detail);
    });
    this.groups.addEventListener("inspect", (event) => this.look(/** @type {CustomEvent} */ (event).detail));
    this.groups.addEventListener("changed", () => this.refresh().catch(() => undefined));
  }

  /** @param {import("../shared/address.js").Place} place */
  async open(place) {
    this.element.hidden = false;
    const isOther = place.stream !== this.name;
    this.name = place.stream;
    this.view = place.view;
    for (const [index, view] of VIEWS.entries()) {
      const isOpen = view === place.view;
      this.panels[index].hidden = !isOpen;
      this.tabs[index].setAttribute("aria-selected", String(isOpen));
      this.tabs[index].tabIndex = isOpen ? 0 : -1;
    }
    this.groups.open(place.stream, place.group);
    this.publish.open(place.stream);
    if (isOther) await this.change();
    else if (place.view === "live") this.live.grid.draw();
    await this.refresh().catch(() => undefined);
  }

  async change() {
    this.inspector.close();
    this.measures.reset();
    this.generation = "";
    fill(this.title, h("bdi", {}, this.name));
    this.title.title = this.name;
    document.title = `${this.name} – Weir console`;
    write(this.figures, "");
    await this.live.open(this.name);
  }

  /** @param {string} view */
  go(view) {
    location.hash = href(this.name, view);
  }

  /** Arrows go round the tabs. @param {KeyboardEvent} event @param {string} view */
  turn(event, view) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const place = (VIEWS.indexOf(view) + step + VIEWS.length) % VIEWS.length;
    this.go(VIEWS[place] ?? "live");
    this.tabs[place].focus();
  }

  /** Ask for the figures again, and for what the open view shows. */
  async refresh() {
    const { name } = this;
    const sentMs = performance.now();
    try {
      const [stream, { groups }] = await Promise.all([api.stream(name), api.groups(name)]);
      if (name !== this.name) return;
      this.measures.rate.read(stream, sentMs, performance.now());
      this.show(stream);
      this.measures.lags(groups);
      this.groups.show(groups);
    } catch (error) {
      if (name === this.name && error instanceof api.Refused && error.code === "no_stream") this.gone();
      return;
    }
    if (this.view === "groups") await this.groups.refresh().catch(() => undefined);
  }

  /** @param {import("../shared/api.js").Stream} stream */
  show(stream) {
    this.stream = stream;
    this.missing.hidden = true;
    if (this.generation !== "" && this.generation !== stream.generation) this.tail.recreated();
    this.generation = stream.generation;
    const kept = [
      stream.retention.max_len === null ? "" : `at most ${plural(stream.retention.max_len, "entry", "entries")}`,
      stream.retention.max_age_ms === null ? "" : `for ${duration(stream.retention.max_age_ms)}`,
      stream.retention.max_bytes === null ? "" : `at most ${bytes(stream.retention.max_bytes)}`,
    ].filter((one) => one !== "");
    write(this.figures, [
      plural(stream.length, "entry", "entries"),
      bytes(stream.memory_bytes),
      `${count(stream.entries_added)} ever added`,
      stream.length === 0 ? "" : `${stream.first_id} … ${stream.last_id}`,
      kept.length === 0 ? "" : `keeps ${kept.join(", ")}`,
    ].filter((one) => one !== "").join("  ·  "));
  }

  gone() {
    this.stream = null;
    this.missing.hidden = false;
    this.measures.lags([]);
    this.groups.show([]);
    write(this.figures, "");
  }

  /** Another theme. */
  restyle() {
    this.charts.restyle();
    this.lagChart.restyle();
  }

  /** A second is over. */
  tick() {
    if (this.name === "") return;
    this.measures.tick(Date.now());
    if (document.hidden) return;
    this.charts.draw(this.measures.series);
    this.lagChart.draw(this.measures);
  }

  /** @param {{stream: string, id: string}} wanted perhaps of another stream, where a dead letter is */
  async look({ stream, id }) {
    const { name } = this;
    const entry = await api.entry(stream, id).catch(() => ({ id, fields: null }));
    if (name === this.name) this.inspector.open(stream, entry);
  }

  async trim() {
    const how = (/** @type {Record<string, string>} */ values) => {
      const wanted = values.wanted ?? "";
      if (values.by === "minid") return { minid: wanted };
      return values.by === "older" ? { older_than_ms: Math.round(Number(wanted) * 1000) } : { maxlen: Number(wanted) };
    };
    const wanted = await ask({
      title: `Trim ${this.name}`,
      fields: [
        { name: "by", label: "Keep", options: [["maxlen", "the newest so many entries"], ["minid", "from this ID on"], ["older", "the last so many seconds"]] },
        { name: "wanted", label: "Number, ID or seconds", required: true },
      ],
      go: "Trim",
      dangerous: true,
      preview: async (values) => {
        const found = await api.trim(this.name, { ...how(values), dry_run: true });
        const pending = found.pending_affected > 0 ? `; ${count(found.pending_affected)} of them pending in a group` : "";
        return `This removes ${plural(found.deleted, "entry", "entries")}${pending}.`;
      },
      work: async (values) => `Removed ${plural((await api.trim(this.name, how(values))).deleted, "entry", "entries")}`,
    });
    if (wanted !== null) await this.changed();
  }

  async limits() {
    if (this.stream === null) return;
    const wanted = await ask({
      title: `Limits of ${this.name}`,
      fields: retentionFields(this.stream.retention),
      go: "Set limits",
      work: async (values) => {
        await api.changeRetention(this.name, parseRetention(values));
        return "The limits are set";
      },
    });
    if (wanted !== null) await this.changed();
  }

  async remove() {
    const sure = await ask({
      title: `Delete ${this.name}?`,
      text: "All its entries and groups go, for everybody. There is no way back.",
      go: "Delete stream",
      dangerous: true,
      typed: this.name,
    });
    if (sure === null) return;
    await act(() => api.deleteStream(this.name), () => `Deleted ${this.name}`);
    await this.changed();
  }

  async changed() {
    await this.refresh().catch(() => undefined);
    this.dispatchEvent(new Event("changed"));
  }

  close() {
    this.element.hidden = true;
    this.name = "";
    this.tail.close();
    document.title = "Weir console";
  }
}
