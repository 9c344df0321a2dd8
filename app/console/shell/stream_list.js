/*
 * The list of streams: name, length, rate, memory, groups; a tree by name, or sorted by a figure, or what a search finds.
 *
 * Knows: what a row shows. Must never know: the socket, entries.
 */

import * as api from "../shared/api.js";
import { ask } from "../shared/dialogs.js";
import { button, fill, h, reconcile, write } from "../shared/dom.js";
import { abbreviate, bytes, count, plural, rate, short } from "../shared/format.js";
import { href } from "../shared/address.js";
import { UNLIMITED, parseRetention, retentionFields } from "../shared/retention.js";
import { fold, matches } from "./name_tree.js";

/** @typedef {import("../shared/catalogue.js").Line} Line */
/** @typedef {{kind: "stream", label: string, depth: number, line: Line}} StreamRow */
/** @typedef {{kind: "folder", prefix: string, label: string, depth: number, isOpen: boolean, lines: Line[]}} FolderRow */

const ROWS_SHOWN = 300;
// A list that fits is shown open; a longer one is folded until somebody opens it.
const OPEN_STREAMS_MAX = 40;
const SEARCH_MS = 250;
/** @type {[string, string, (line: Line) => string | number][]} */
const COLUMNS = [
  ["name", "Name", ({ name }) => name],
  ["length", "Length", ({ stream }) => stream.length],
  ["rate", "Rate", (line) => line.rate ?? 0],
  ["memory", "Memory", ({ stream }) => stream.memory_bytes],
  ["groups", "Groups", ({ stream }) => stream.groups],
];

export class Streams {
  /** @param {Element} element @param {import("../shared/catalogue.js").Catalogue} catalogue */
  constructor(element, catalogue) {
    this.catalogue = catalogue;
    this.current = "";
    this.view = "live";
    this.sorted = "name";
    this.limit = ROWS_SHOWN;
    /** Folders that somebody opened or closed. @type {Map<string, boolean>} */
    this.folders = new Map();
    /** What a search found beyond the end of the list. @type {Line[]} */
    this.beyond = [];
    /** @type {Map<string, any>} */
    this.kept = new Map();
    this.search = h("input", {
      type: "search",
      placeholder: "Find in names",
      "aria-label": "Find streams",
      autocomplete: "off",
      spellcheck: "false",
      oninput: () => this.find(),
    });
    this.heads = COLUMNS.map(([key, label]) => {
      const sort = button(label, () => this.sort(key), {}, "button.head");
      return { key, element: h(`th.${key}`, { scope: "col", "aria-sort": key === "name" ? "ascending" : "none" }, sort) };
    });
    this.body = h("tbody");
    this.empty = h("p.empty", { hidden: true });
    this.more = button("Show more streams", () => this.showMore(), { hidden: true });
    element.append(
      h("div.bar", {}, this.search, button("New stream", () => create(), { title: "Create a stream" })),
      h(
        "div.scroll",
        { tabindex: 0, role: "region", "aria-label": "List of streams" },
        h("table.list", {}, h("caption.unseen", {}, "Streams"), h("thead", {}, h("tr", {}, ...this.heads.map((head) => head.element))), this.body),
        this.empty,
        this.more,
      ),
    );
    this.searching = 0;
    catalogue.addEventListener("changed", () => this.draw());
  }

  /** @param {string} key */
  sort(key) {
    this.sorted = key;
    for (const head of this.heads) {
      head.element.setAttribute("aria-sort", head.key !== key ? "none" : key === "name" ? "ascending" : "descending");
    }
    this.draw();
  }

  showMore() {
    this.limit += ROWS_SHOWN;
    this.draw();
  }

  /** The list holds all names but those of a very large gateway: that is asked for what begins so. */
  find() {
    this.beyond = [];
    this.limit = ROWS_SHOWN;
    this.draw();
    clearTimeout(this.searching);
    const search = this.search.value;
    if (search === "" || this.catalogue.isComplete) return;
    this.searching = window.setTimeout(async () => {
      const found = await this.catalogue.beginningWith(search).catch(() => []);
      if (search !== this.search.value) return;
      this.beyond = found;
      this.draw();
    }, SEARCH_MS);
  }

  /** @param {string} stream @param {string} view */
  select(stream, view) {
    // A folder that hides the stream somebody goes to opens.
    if (stream !== this.current) {
      for (const prefix of this.folders.keys()) if (stream.startsWith(prefix)) this.folders.delete(prefix);
    }
    this.current = stream;
    this.view = view;
    this.draw();
  }

  /** @returns {(StreamRow | FolderRow)[]} */
  rows() {
    const search = this.search.value.trim();
    const column = COLUMNS.find(([key]) => key === this.sorted);
    let { lines } = this.catalogue;
    if (search !== "") {
      const known = new Set(lines.map(({ name }) => name));
      lines = [...lines, ...this.beyond.filter(({ name }) => !known.has(name))].filter(({ name }) => matches(name, search));
    }
    if (column && this.sorted !== "name") lines = [...lines].sort((a, b) => Number(column[2](b)) - Number(column[2](a)));
    if (search !== "" || this.sorted !== "name") return lines.map((line) => ({ kind: "stream", label: line.name, depth: 0, line }));
    return fold(lines, (prefix) => this.isOpen(prefix)).map((row) =>
      row.kind === "item" ? { kind: "stream", label: row.label, depth: row.depth, line: row.item } : { ...row, lines: row.items });
  }

  /** @param {string} prefix */
  isOpen(prefix) {
    const chosen = this.folders.get(prefix);
    if (chosen !== undefined) return chosen;
    return this.catalogue.lines.length <= OPEN_STREAMS_MAX || this.current.startsWith(prefix);
  }

  draw() {
    const rows = this.rows();
    const shown = rows.slice(0, this.limit);
    reconcile(this.body, this.kept, shown.map((row) => [keyOf(row), row]), (row) =>
      row.kind === "folder" ? this.makeFolder(row) : this.makeStream(row));
    this.more.hidden = rows.length <= this.limit;
    this.empty.hidden = rows.length > 0 || Number.isNaN(this.catalogue.readAtMs);
    write(this.empty, this.search.value ? "No stream has this in its name." : "There are no streams yet: create one, or publish to it.");
  }

  /** @param {FolderRow} made */
  makeFolder({ prefix, label, depth }) {
    const fold = button("", () => {
      this.folders.set(prefix, !this.isOpen(prefix));
      this.draw();
    }, { title: prefix }, "button.fold");
    const size = h("span.muted");
    const cells = figureCells();
    const update = (/** @type {any} */ { lines, isOpen }) => {
      fold.setAttribute("aria-expanded", String(isOpen));
      const text = abbreviate(label);
      if (fold.textContent !== text) fill(fold, h("bdi", {}, text));
      write(size, plural(lines.length, "stream"));
      showFigures(cells, sum(lines));
    };
    const element = h(`tr.folder.deep-${Math.min(depth, 6)}`, {}, h("th", { scope: "row" }, fold, " ", size), ...Object.values(cells));
    return { element, update };
  }

  /** @param {StreamRow} made */
  makeStream({ label, depth, line: { name } }) {
    // The name whole is what the link is called, also where only its end is shown.
    const link = h("a", { href: href(name, "live"), title: name, "aria-label": label === name ? null : name }, h("bdi", {}, abbreviate(label)));
    const cells = figureCells();
    const element = h(`tr.deep-${Math.min(depth, 6)}`, {}, h("th", { scope: "row" }, link), ...Object.values(cells));
    const update = (/** @type {any} */ { line: { stream, rate: perSecond } }) => {
      const isCurrent = name === this.current;
      if (isCurrent) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
      link.setAttribute("href", href(name, isCurrent || this.current !== "" ? this.view : "live"));
      showFigures(cells, { length: stream.length, rate: perSecond, memory: stream.memory_bytes, groups: stream.groups });
    };
    return { element, update };
  }
}

/** The same stream as another row (its name whole, or its end in a folder) is another element. @param {StreamRow | FolderRow} row */
const keyOf = (row) => (row.kind === "folder" ? `folder ${row.depth} ${row.prefix}` : `stream ${row.depth} ${row.label.length} ${row.line.name}`);

/** @returns {Record<string, any>} */
const figureCells = () => ({ length: h("td.number.length"), rate: h("td.number.rate"), memory: h("td.number.memory"), groups: h("td.number.groups") });

/** @typedef {{length: number, rate: number | null, memory: number, groups: number}} Figures */

/** @param {Line[]} lines @returns {Figures} */
function sum(lines) {
  const known = lines.filter((line) => line.rate !== null);
  return {
    length: lines.reduce((all, { stream }) => all + stream.length, 0),
    rate: known.length === 0 ? null : known.reduce((all, line) => all + (line.rate ?? 0), 0),
    memory: lines.reduce((all, { stream }) => all + stream.memory_bytes, 0),
    groups: lines.reduce((all, { stream }) => all + stream.groups, 0),
  };
}

/** @param {Record<string, any>} cells @param {Figures} figures */
function showFigures(cells, figures) {
  write(cells.length, short(figures.length));
  cells.length.title = count(figures.length);
  write(cells.rate, rate(figures.rate));
  cells.rate.classList.toggle("busy", (figures.rate ?? 0) > 0);
  write(cells.memory, bytes(figures.memory));
  write(cells.groups, String(figures.groups));
}

async function create() {
  const wanted = await ask({
    title: "New stream",
    text: "Publishing makes a stream too; here it can be given limits from the beginning.",
    fields: [
      { name: "name", label: "Name", required: true },
      ...retentionFields(UNLIMITED),
    ],
    go: "Create stream",
    work: async (values) => {
      await api.createStream(values.name ?? "", parseRetention(values));
      return `Created ${values.name}`;
    },
  });
  if (wanted !== null) location.hash = href(wanted.name ?? "", "live");
}

