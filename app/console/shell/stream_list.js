/*
 * The list of streams: name, length, rate, memory, groups; as a tree, sorted by a column, or filtered by a search.
 *
 * Knows: the content of a row. Must never know: the WebSocket, entries.
 */

import { formatAddress } from "../shared/address.js";
import * as api from "../shared/api.js";
import { sumRates } from "../shared/catalogue.js";
import { ask } from "../shared/dialogs.js";
import { button, fill, h, reconcile, setText } from "../shared/dom.js";
import { abbreviate, formatBytes, formatCount, formatRate, formatShort, pluralize } from "../shared/format.js";
import { UNLIMITED, parseRetention, retentionFields } from "../shared/retention.js";
import { fold, matches } from "./name_tree.js";

/** @typedef {import("../shared/catalogue.js").CatalogueItem} CatalogueItem */
/** @typedef {{kind: "stream", label: string, depth: number, item: CatalogueItem}} StreamRow */
/** @typedef {{kind: "folder", prefix: string, label: string, depth: number, isOpen: boolean, items: CatalogueItem[]}} FolderRow */

const PAGE_ROWS = 300;
// Up to here all folders start open; in a longer list they start closed.
const OPEN_STREAMS_MAX = 40;
const DEPTH_MAX = 6;
const SEARCH_DELAY_MS = 250;
/** Name, label, and the value to sort by. @type {[string, string, (item: CatalogueItem) => number][]} */
const COLUMNS = [
  ["name", "Name", () => 0],
  ["length", "Length", ({ stream }) => stream.length],
  ["rate", "Rate", ({ rate }) => rate ?? 0],
  ["memory", "Memory", ({ stream }) => stream.memory_bytes],
  ["groups", "Groups", ({ stream }) => stream.groups],
];

export class StreamList {
  /** @param {Element} element @param {import("../shared/catalogue.js").Catalogue} catalogue */
  constructor(element, catalogue) {
    this.catalogue = catalogue;
    this.selected = "";
    this.view = "live";
    this.sortedBy = "name";
    this.rowsMax = PAGE_ROWS;
    /** The folders that the reader opened (true) or closed. @type {Map<string, boolean>} */
    this.folders = new Map();
    /** Streams beyond the end of the list that the search found. @type {CatalogueItem[]} */
    this.beyond = [];
    /** @type {Map<string, any>} */
    this.rowsByKey = new Map();
    this.search = h("input", {
      type: "search",
      placeholder: "Find streams",
      "aria-label": "Find streams",
      autocomplete: "off",
      spellcheck: "false",
      oninput: () => this.find(),
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.handleKey(event),
    });
    this.heads = COLUMNS.map(([column, label]) => {
      const sort = button(label, () => this.sort(column), {}, "button.head");
      return { column, element: h(`th.${column}`, { scope: "col", "aria-sort": column === "name" ? "ascending" : "none" }, sort) };
    });
    this.body = h("tbody");
    this.empty = h("p.empty", { hidden: true });
    this.more = button("Show more streams", () => this.showMore(), { hidden: true });
    element.append(
      h("div.bar", {}, this.search, button("New stream", () => createStream(), { "data-needs": "manage" })),
      h(
        "div.scroll",
        { tabindex: 0, role: "region", "aria-label": "List of streams" },
        h("table.list", {}, h("caption.unseen", {}, "Streams"), h("thead", {}, h("tr", {}, ...this.heads.map((head) => head.element))), this.body),
        this.empty,
        this.more,
      ),
    );
    this.searchTimer = 0;
    catalogue.addEventListener("change", () => this.draw());
  }

  /** @param {string} column */
  sort(column) {
    this.sortedBy = column;
    for (const head of this.heads) {
      head.element.setAttribute("aria-sort", head.column !== column ? "none" : column === "name" ? "ascending" : "descending");
    }
    this.draw();
  }

  showMore() {
    this.rowsMax += PAGE_ROWS;
    this.draw();
  }

  /** Search the list, and in a very large gateway also the streams beyond its end. */
  find() {
    this.beyond = [];
    this.rowsMax = PAGE_ROWS;
    this.draw();
    clearTimeout(this.searchTimer);
    const search = this.search.value;
    if (search === "" || this.catalogue.isComplete) return;
    this.searchTimer = window.setTimeout(async () => {
      const found = await this.catalogue.findByPrefix(search).catch(() => []);
      if (search !== this.search.value) return;
      this.beyond = found;
      this.draw();
    }, SEARCH_DELAY_MS);
  }

  /** Enter opens the first stream, ArrowDown leads into the list. @param {KeyboardEvent} event */
  handleKey(event) {
    const first = this.body.querySelector(event.key === "Enter" ? "a" : "a, button");
    if (first === null || !["Enter", "ArrowDown"].includes(event.key)) return;
    event.preventDefault();
    if (event.key === "Enter") first.click();
    else first.focus();
  }

  /** @param {string} stream @param {string} view */
  select(stream, view) {
    // A closed folder opens when its stream is selected.
    if (stream !== this.selected) {
      for (const prefix of this.folders.keys()) if (stream.startsWith(prefix)) this.folders.delete(prefix);
    }
    this.selected = stream;
    this.view = view;
    this.draw();
  }

  /** @returns {(StreamRow | FolderRow)[]} */
  makeRows() {
    const search = this.search.value.trim();
    const isSorted = this.sortedBy !== "name";
    const value = COLUMNS.find(([column]) => column === this.sortedBy)?.[2];
    let { items } = this.catalogue;
    if (search !== "") {
      const known = new Set(items.map(({ name }) => name));
      items = [...items, ...this.beyond.filter(({ name }) => !known.has(name))].filter(({ name }) => matches(name, search));
    }
    if (value && isSorted) items = [...items].sort((a, b) => value(b) - value(a));
    if (search !== "" || isSorted) return items.map((item) => ({ kind: "stream", label: item.name, depth: 0, item }));
    return fold(items, (prefix) => this.isOpen(prefix)).map((row) => (row.kind === "item" ? { ...row, kind: "stream" } : row));
  }

  /** @param {string} prefix */
  isOpen(prefix) {
    return this.folders.get(prefix) ?? (this.catalogue.items.length <= OPEN_STREAMS_MAX || this.selected.startsWith(prefix));
  }

  draw() {
    const rows = this.makeRows();
    const shown = rows.slice(0, this.rowsMax);
    reconcile(this.body, this.rowsByKey, shown.map((row) => [keyOf(row), row]), (row) =>
      row.kind === "folder" ? this.makeFolder(row) : this.makeStream(row));
    this.more.hidden = rows.length <= this.rowsMax;
    this.empty.hidden = rows.length > 0 || Number.isNaN(this.catalogue.readAtMs);
    setText(this.empty, this.search.value ? "No stream name matches." : "No streams yet. Create one, or publish to one.");
  }

  /** @param {FolderRow} row */
  makeFolder({ prefix, label, depth }) {
    const toggle = button("", () => {
      this.folders.set(prefix, !this.isOpen(prefix));
      this.draw();
    }, { title: prefix }, "button.fold");
    fill(toggle, h("bdi", {}, abbreviate(label)));
    const size = h("span.muted");
    const cells = makeFigureCells();
    const update = (/** @type {any} */ { items, isOpen }) => {
      toggle.setAttribute("aria-expanded", String(isOpen));
      setText(size, pluralize(items.length, "stream"));
      updateFigures(cells, sumFigures(items));
    };
    const element = h(`tr.folder.deep-${Math.min(depth, DEPTH_MAX)}`, {}, h("th", { scope: "row" }, toggle, " ", size), ...Object.values(cells));
    return { element, update };
  }

  /** @param {StreamRow} row */
  makeStream({ label, depth, item: { name } }) {
    // The accessible name of the link is the whole name, also where only its end is shown.
    const link = h("a", { title: name, "aria-label": label === name ? null : name }, h("bdi", {}, abbreviate(label)));
    const cells = makeFigureCells();
    const element = h(`tr.deep-${Math.min(depth, DEPTH_MAX)}`, {}, h("th", { scope: "row" }, link), ...Object.values(cells));
    const update = (/** @type {any} */ { item }) => {
      if (name === this.selected) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
      // From stream to stream the view stays the same.
      link.setAttribute("href", formatAddress(name, this.selected === "" ? "live" : this.view));
      updateFigures(cells, sumFigures([item]));
    };
    return { element, update };
  }
}

/** A stream shown by its whole name and the same stream shown in a folder are two rows. @param {StreamRow | FolderRow} row */
const keyOf = (row) =>
  row.kind === "folder" ? `folder ${row.depth} ${row.prefix}` : `stream ${row.depth} ${row.label.length} ${row.item.name}`;

/** @returns {Record<string, any>} */
const makeFigureCells = () => ({ length: h("td.number.length"), rate: h("td.number.rate"), memory: h("td.number.memory"), groups: h("td.number.groups") });

/** @typedef {{length: number, rate: number | null, memory: number, groups: number}} Figures */

/** @param {CatalogueItem[]} items @returns {Figures} */
function sumFigures(items) {
  return {
    length: items.reduce((sum, { stream }) => sum + stream.length, 0),
    rate: sumRates(items),
    memory: items.reduce((sum, { stream }) => sum + stream.memory_bytes, 0),
    groups: items.reduce((sum, { stream }) => sum + stream.groups, 0),
  };
}

/** @param {Record<string, any>} cells @param {Figures} figures */
function updateFigures(cells, figures) {
  setText(cells.length, formatShort(figures.length));
  cells.length.title = formatCount(figures.length);
  setText(cells.rate, formatRate(figures.rate));
  cells.rate.classList.toggle("busy", (figures.rate ?? 0) > 0);
  setText(cells.memory, formatBytes(figures.memory));
  setText(cells.groups, formatCount(figures.groups));
}

async function createStream() {
  const values = await ask({
    title: "New stream",
    text: "Publishing also creates a stream. Here you can set its limits first; leave a field empty for no limit.",
    fields: [{ name: "name", label: "Name", required: true }, ...retentionFields(UNLIMITED)],
    submit: "Create stream",
    work: async (input) => {
      await api.createStream(input.name ?? "", parseRetention(input));
      return `Created ${input.name}`;
    },
  });
  if (values !== null) location.hash = formatAddress(values.name ?? "", "live");
}
