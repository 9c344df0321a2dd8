/*
 * The overview: the status of the gateway, the rate of all streams, the groups that lag most.
 *
 * Knows: figures of the gateway and of its streams. Must never know: the WebSocket, entries.
 */

import { OVERVIEWS, formatAddress } from "../shared/address.js";
import * as api from "../shared/api.js";
import { sumRates } from "../shared/catalogue.js";
import { fill, h, makeHead, makeTable, reconcile, setText } from "../shared/dom.js";
import { abbreviate, formatBytes, formatCount, formatRate, formatShort, formatWhen } from "../shared/format.js";
import { Plot } from "../shared/plot.js";
import { ScheduleList } from "../schedules/schedule_list.js";
import { GroupLags } from "./group_lags.js";
import { describeStatus } from "./status.js";

/** @typedef {import("../shared/catalogue.js").CatalogueItem} CatalogueItem */
/** @typedef {import("./group_lags.js").StreamGroup} StreamGroup */
/** @typedef {{address: string, name: string}} Link */

const ROWS_MAX = 10;
const SECONDS_MAX = 300;

export class Overview {
  /** @param {import("../shared/catalogue.js").Catalogue} catalogue */
  constructor(catalogue) {
    this.catalogue = catalogue;
    this.groupLags = new GroupLags();
    /** @type {number[]} */
    this.times = [];
    /** @type {(number | null)[]} */
    this.rates = [];
    this.isReading = false;
    /** @type {any} */
    this.status = null;
    /** @type {string[]} */
    this.failing = [];
    /** @type {import("../shared/api.js").Hook[]} */
    this.hooks = [];
    this.version = "–";
    this.problem = h("p.notice.gap", { hidden: true, role: "status" });
    this.partial = h("p.notice.info", { hidden: true });
    this.cards = h("dl.cards");
    this.plot = new Plot(formatRate);
    this.rate = h("span.figure", {}, "–");
    this.lagging = new LinkTable("Highest lag", ["Group", "Stream", "Lag", "Pending", "Consumers"], "No group lags.");
    this.busiest = new LinkTable("Busiest streams", ["Stream", "Rate", "Length", "Memory"], "No stream receives entries now.");
    this.largest = new LinkTable("Largest streams", ["Stream", "Memory", "Length", "Groups"], "No streams yet.");
    this.hookTable = new LinkTable("Webhooks", ["Hook", "Stream", "Stored", "Refused", "Last"], "No hooks.");
    this.hookTable.element.hidden = true;
    this.schedules = new ScheduleList(true);
    this.view = "live";
    this.tabs = OVERVIEWS.map((view) => h("a.tab", { href: formatAddress("", view) }, view === "live" ? "Overview" : "Scheduled"));
    this.figures = h(
      "div.summary", {},
      this.cards,
      h("section.chart.whole", { "aria-label": "Rate: entries published per second, all streams" }, h("h2.small", {}, "Rate of all streams"), this.rate, this.plot.element),
      h("div.columns", {}, this.lagging.element, this.busiest.element, this.largest.element, this.hookTable.element),
    );
    this.element = h(
      "div.overview", {},
      h("h1", {}, "Overview"),
      this.problem,
      this.partial,
      h("nav.tabs", { "aria-label": "Overview" }, ...this.tabs),
      this.figures,
      this.schedules.element,
    );
    this.open("live");
    catalogue.addEventListener("change", () => this.draw());
  }

  /** @param {string} view */
  open(view) {
    this.view = view;
    this.figures.hidden = view !== "live";
    this.schedules.element.hidden = view === "live";
    for (const [index, name] of OVERVIEWS.entries()) {
      if (name === view) this.tabs[index].setAttribute("aria-current", "page");
      else this.tabs[index].removeAttribute("aria-current");
    }
  }

  /** Read the status of the gateway and the next few groups. */
  async refresh() {
    if (this.isReading) return;
    this.isReading = true;
    try {
      const [status, hooks, failing, version] = await Promise.all([
        api.getStatus(), api.getHooks(), api.getFailing(), api.getVersion(), this.groupLags.refresh(this.streamsWithGroups),
        this.view === "scheduled" ? this.schedules.refresh() : null,
      ]);
      this.status = status;
      this.hooks = hooks?.hooks ?? [];
      this.failing = failing;
      this.version = version.version;
      this.draw();
    } finally {
      this.isReading = false;
    }
  }

  get streamsWithGroups() {
    return this.catalogue.items.filter(({ stream }) => stream.groups > 0).map(({ name }) => name);
  }

  /** Called once a second. */
  tick() {
    this.times.push(Date.now() / 1000);
    this.rates.push(sumRates(this.catalogue.items));
    if (this.times.length > SECONDS_MAX) {
      this.times.shift();
      this.rates.shift();
    }
    this.drawRate();
  }

  drawRate() {
    if (this.element.hidden || this.figures.hidden || document.hidden) return;
    setText(this.rate, formatRate(sumRates(this.catalogue.items)));
    this.plot.draw(this.times, [this.rates], [{ colour: "--accent", wash: "--accent-wash" }]);
  }

  restyle() {
    this.plot.restyle();
  }

  draw() {
    if (this.element.hidden) return;
    this.drawRate();
    this.drawCards();
    this.drawHooks();
    const isRead = !Number.isNaN(this.catalogue.readAtMs);
    const areGroupsRead = isRead && this.streamsWithGroups.every((name) => this.groupLags.groups.has(name));
    this.lagging.draw(areGroupsRead, this.groupLags.worst(ROWS_MAX), groupKey, (group) => [
      { address: formatAddress(group.stream, "groups", group.name), name: group.name },
      linkTo(group.stream),
      group.lag === null ? "unknown" : formatCount(group.lag), formatCount(group.pending), formatCount(group.consumers),
    ]);
    const top = (/** @type {(item: CatalogueItem) => number} */ value) =>
      this.catalogue.items.filter((item) => value(item) > 0).sort((a, b) => value(b) - value(a)).slice(0, ROWS_MAX);
    this.busiest.draw(isRead, top(({ rate }) => rate ?? 0), streamKey, ({ name, stream, rate }) => [
      linkTo(name), formatRate(rate), formatShort(stream.length), formatBytes(stream.memory_bytes),
    ]);
    this.largest.draw(isRead, top(({ stream }) => stream.memory_bytes), streamKey, ({ name, stream }) => [
      linkTo(name), formatBytes(stream.memory_bytes), formatShort(stream.length), formatCount(stream.groups),
    ]);
  }

  drawHooks() {
    this.hookTable.element.hidden = this.hooks.length === 0;
    this.hookTable.draw(true, this.hooks, ({ name }) => name, (hook) => [
      { address: formatAddress(hook.stream, "live"), name: hook.name }, linkTo(hook.stream),
      formatCount(hook.stored), formatCount(hook.refused + hook.rejected), hook.last_at ? formatWhen(Date.parse(hook.last_at), Date.now()) : "never",
    ]);
  }

  drawCards() {
    const { items, isComplete } = this.catalogue;
    const more = isComplete ? "" : " or more";
    const sum = (/** @type {(item: CatalogueItem) => number} */ value) => items.reduce((total, item) => total + value(item), 0);
    const { figures, problem } = describeStatus(this.status, this.failing);
    this.problem.hidden = problem === "";
    setText(this.problem, problem);
    this.partial.hidden = isComplete || Number.isNaN(this.catalogue.readAtMs);
    setText(this.partial, `This page counts and compares the first ${formatCount(items.length)} streams by name. There are more.`);
    const cards = [
      ["Streams", `${formatCount(items.length)}${more}`],
      ["Entries", `${formatShort(sum(({ stream }) => stream.length))}${more}`],
      ["Groups", `${formatCount(sum(({ stream }) => stream.groups))}${more}`],
      ["Dead letters", formatCount([...this.groupLags.deadLetterStreams()].reduce((total, name) => total + (this.catalogue.lengthOf(name) ?? 0), 0))],
      ["Entries in memory", `${formatBytes(sum(({ stream }) => stream.memory_bytes))}${more}`],
      ...figures,
      ["Version", this.version],
    ];
    if (this.cards.childElementCount !== cards.length) {
      fill(this.cards, ...cards.map(() => h("div.card", {}, h("dt"), h("dd"))));
    }
    for (const [index, [name = "", value = ""]] of cards.entries()) {
      const { firstElementChild, lastElementChild } = this.cards.children[index];
      setText(firstElementChild, name);
      setText(lastElementChild, value);
    }
  }
}

/** @param {StreamGroup} group */
const groupKey = ({ stream, name }) => JSON.stringify([stream, name]);

/** @param {CatalogueItem} item */
const streamKey = ({ name }) => name;

/** @param {string} stream @returns {Link} */
const linkTo = (stream) => ({ address: formatAddress(stream, "live"), name: stream });

/** A table with a heading, whose cells are links or figures. @template T */
class LinkTable {
  /** @param {string} title @param {string[]} labels @param {string} emptyText */
  constructor(title, labels, emptyText) {
    this.body = h("tbody");
    this.emptyText = emptyText;
    this.empty = h("p.empty", {}, "…");
    /** @type {Map<string, import("../shared/dom.js").Row<T>>} */
    this.rows = new Map();
    const heads = labels.map((label, index) => makeHead(label, index > 0 && label !== "Stream"));
    this.table = makeTable(title, heads, this.body);
    this.element = h("section.panel", { "aria-label": title }, h("h2.small", {}, title), this.table, this.empty);
  }

  /** @param {boolean} isRead whether there are no items beside these @param {T[]} items @param {(item: T) => string} keyOf @param {(item: T) => (string | Link)[]} cellsOf */
  draw(isRead, items, keyOf, cellsOf) {
    setText(this.empty, isRead ? this.emptyText : "…");
    this.table.hidden = items.length === 0;
    this.empty.hidden = items.length > 0;
    reconcile(this.body, this.rows, items.map((item) => [keyOf(item), item]), (first) => {
      const cells = cellsOf(first).map((cell, index) => (typeof cell === "string" ? h("td.number") : makeLinkCell(cell, index)));
      const update = (/** @type {T} */ item) => {
        for (const [index, cell] of cellsOf(item).entries()) if (typeof cell === "string") setText(cells[index], cell);
      };
      return { element: h("tr", {}, ...cells), update };
    });
  }
}

/** The first cell of a row is its header. @param {Link} link @param {number} index */
function makeLinkCell({ address, name }, index) {
  const link = h("a", { href: address, title: name }, h("bdi", {}, abbreviate(name)));
  return index === 0 ? h("th", { scope: "row" }, link) : h("td", {}, link);
}
