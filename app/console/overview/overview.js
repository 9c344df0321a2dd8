/*
 * The gateway as a whole: how it is, what is published, which groups are furthest behind.
 *
 * Knows: the figures of the gateway and of its streams. Must never know: the socket, entries.
 */

import * as api from "../shared/api.js";
import { fill, h, reconcile, write } from "../shared/dom.js";
import { abbreviate, bytes, count, rate, short } from "../shared/format.js";
import { Lags } from "./group_lags.js";
import { href } from "../shared/address.js";
import { Plot } from "../shared/plot.js";
import { figuresOf } from "./status.js";

/** @typedef {import("../shared/catalogue.js").Line} Line */
/** @typedef {import("./group_lags.js").GroupOf} GroupOf */

const LINES_MAX = 10;
const SECONDS_MAX = 300;

export class Overview {
  /** @param {import("../shared/catalogue.js").Catalogue} catalogue */
  constructor(catalogue) {
    this.catalogue = catalogue;
    this.lags = new Lags();
    /** @type {number[]} */
    this.at = [];
    /** @type {(number | null)[]} */
    this.rates = [];
    this.isAsking = false;
    /** @type {any} */
    this.status = null;
    this.version = "–";
    this.problem = h("p.notice.gap", { hidden: true, role: "status" });
    this.cards = h("dl.cards");
    this.plot = new Plot(rate);
    this.now = h("span.figure", {}, "–");
    this.behind = table("Furthest behind", ["Group", "Stream", "Lag", "Pending", "Consumers"], "No group is behind.");
    this.busy = table("Busiest streams", ["Stream", "Rate", "Length", "Memory"], "Nothing is being published.");
    this.largest = table("Largest streams", ["Stream", "Memory", "Length", "Groups"], "There are no streams yet.");
    this.element = h(
      "div.overview", {},
      h("h1", {}, "Overview"),
      this.problem,
      this.cards,
      h("section.chart.whole", { "aria-label": "Rate: entries published a second, all streams" }, h("h2.small", {}, "Rate of all streams"), this.now, this.plot.element),
      h("div.columns", {}, this.behind.element, this.busy.element, this.largest.element),
    );
    catalogue.addEventListener("changed", () => this.draw());
  }

  /** Ask how the gateway is and how far its groups are, one round at a time. */
  async refresh() {
    if (this.isAsking) return;
    this.isAsking = true;
    try {
      const grouped = this.catalogue.lines.filter(({ stream }) => stream.groups > 0).map(({ name }) => name);
      const [status, version] = await Promise.all([api.status(), api.version(), this.lags.refresh(grouped)]);
      this.status = status;
      this.version = version.version;
      this.draw();
    } finally {
      this.isAsking = false;
    }
  }

  /** @returns {number | null} entries a second in all streams */
  get rate() {
    const known = this.catalogue.lines.flatMap((line) => (line.rate === null ? [] : [line.rate]));
    return known.length === 0 ? null : known.reduce((sum, one) => sum + one, 0);
  }

  /** A second is over. */
  tick() {
    this.at.push(Date.now() / 1000);
    this.rates.push(this.rate);
    if (this.at.length > SECONDS_MAX) {
      this.at.shift();
      this.rates.shift();
    }
    this.drawRate();
  }

  drawRate() {
    if (this.element.hidden || document.hidden) return;
    write(this.now, rate(this.rate));
    this.plot.draw(this.at, [this.rates], [{ colour: "--accent", wash: "--accent-wash" }]);
  }

  restyle() {
    this.plot.restyle();
  }

  draw() {
    if (this.element.hidden) return;
    const { lines, isComplete } = this.catalogue;
    const more = isComplete ? "" : " and more";
    const sum = (/** @type {(line: Line) => number} */ of) => lines.reduce((all, line) => all + of(line), 0);
    this.drawRate();
    const { figures, problem } = figuresOf(this.status);
    this.problem.hidden = problem === "";
    write(this.problem, problem);
    this.show([
      ["Streams", `${count(lines.length)}${more}`],
      ["Entries", `${short(sum(({ stream }) => stream.length))}${more}`],
      ["Groups", `${count(sum(({ stream }) => stream.groups))}${more}`],
      ["Entries in memory", `${bytes(sum(({ stream }) => stream.memory_bytes))}${more}`],
      ...figures,
      ["Version", this.version],
    ]);
    this.behind.show(this.lags.worst(LINES_MAX), keyOfGroup, (group) => [
      link(href(group.stream, "groups", group.name), group.name),
      link(href(group.stream, "live"), group.stream),
      group.lag === null ? "unknown" : count(group.lag), count(group.pending), count(group.consumers),
    ]);
    const top = (/** @type {(line: Line) => number} */ of) => lines.filter((line) => of(line) > 0).sort((a, b) => of(b) - of(a)).slice(0, LINES_MAX);
    this.busy.show(top((line) => line.rate ?? 0), keyOfLine, ({ name, stream, rate: perSecond }) => [
      link(href(name, "live"), name), rate(perSecond), short(stream.length), bytes(stream.memory_bytes),
    ]);
    this.largest.show(top(({ stream }) => stream.memory_bytes), keyOfLine, ({ name, stream }) => [
      link(href(name, "live"), name), bytes(stream.memory_bytes), short(stream.length), count(stream.groups),
    ]);
  }

  /** @param {[string, string][]} figures */
  show(figures) {
    if (this.cards.childElementCount !== figures.length) {
      fill(this.cards, ...figures.map(([name]) => h("div.card", {}, h("dt", {}, name), h("dd"))));
    }
    for (const [place, [name, value]] of figures.entries()) {
      const card = /** @type {Element} */ (this.cards.children[place]);
      write(/** @type {Element} */ (card.firstElementChild), name);
      write(/** @type {Element} */ (card.lastElementChild), value);
    }
  }
}

/** @param {GroupOf} group */
const keyOfGroup = ({ stream, name }) => JSON.stringify([stream, name]);

/** @param {Line} line */
const keyOfLine = ({ name }) => name;

/** @param {string} place @param {string} name */
const link = (place, name) => ({ place, name });

/** A table with a heading, whose lines are kept. @param {string} title @param {string[]} heads @param {string} none */
function table(title, heads, none) {
  const body = h("tbody");
  const empty = h("p.empty", {}, none);
  /** @type {Map<string, any>} */
  const kept = new Map();
  const whole = h("table.list", {}, h("caption.unseen", {}, title),
    h("thead", {}, h("tr", {}, ...heads.map((head, at) => h(at === 0 || head === "Stream" ? "th" : "th.number", { scope: "col" }, head)))), body);
  const element = h("section.panel", { "aria-label": title }, h("h2.small", {}, title), h("div.sideways", {}, whole), empty);
  /**
   * @template T
   * @param {T[]} items @param {(item: T) => string} keyOf
   * @param {(item: T) => (string | {place: string, name: string})[]} cellsOf
   */
  function show(items, keyOf, cellsOf) {
    whole.hidden = items.length === 0;
    empty.hidden = items.length > 0;
    reconcile(body, kept, items.map((item) => [keyOf(item), item]), (made) => {
      const cells = cellsOf(made).map((cell, at) => {
        if (typeof cell === "string") return h("td.number");
        return h(at === 0 ? "th" : "td", at === 0 ? { scope: "row" } : {}, h("a", { href: cell.place, title: cell.name }, h("bdi", {}, abbreviate(cell.name))));
      });
      const update = (/** @type {T} */ item) => {
        for (const [at, cell] of cellsOf(item).entries()) if (typeof cell === "string") write(cells[at], cell);
      };
      return { element: h("tr", {}, ...cells), update };
    });
  }
  return { element, show };
}
