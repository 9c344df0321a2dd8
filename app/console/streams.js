/*
 * The list of streams: name, length, rate, memory, groups; found by prefix, sorted by any column.
 *
 * Knows: what a row shows. Must never know: the socket, entries.
 */

import * as api from "./api.js";
import { ask } from "./dialogs.js";
import { button, h, reconcile, write } from "./dom.js";
import { bytes, count, rate, short } from "./format.js";
import { href } from "./place.js";

/** @typedef {import("./api.js").Stream} Stream */
/** @typedef {{stream: Stream, rate: number | null}} Line */

const LIMIT = 200;
/** @type {[string, string, (line: Line) => string | number][]} */
const COLUMNS = [
  ["name", "Name", ({ stream }) => stream.name],
  ["length", "Length", ({ stream }) => stream.length],
  ["rate", "Rate", (line) => line.rate ?? 0],
  ["memory", "Memory", ({ stream }) => stream.memory_bytes],
  ["groups", "Groups", ({ stream }) => stream.groups],
];

/** Fires `seen` with all streams of a round. */
export class Streams extends EventTarget {
  /** @param {Element} element */
  constructor(element) {
    super();
    this.current = "";
    this.view = "live";
    this.sorted = "name";
    this.limit = LIMIT;
    /** @type {Line[]} */
    this.lines = [];
    /** @type {Map<string, {added: number, atMs: number, generation: string}>} */
    this.counted = new Map();
    /** @type {Map<string, any>} */
    this.kept = new Map();
    this.search = h("input", {
      type: "search",
      placeholder: "Find by prefix",
      "aria-label": "Find streams by prefix",
      autocomplete: "off",
      spellcheck: "false",
      oninput: () => this.refresh(),
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
    this.asked = 0;
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
    this.limit = Math.min(1_000, this.limit + LIMIT);
    this.refresh();
  }

  /** Ask for the list again. */
  async refresh() {
    this.asked += 1;
    const mine = this.asked;
    const page = await api.streams({ prefix: this.search.value, limit: this.limit });
    if (mine !== this.asked) return;
    const nowMs = performance.now();
    this.lines = page.streams.map((stream) => ({ stream, rate: this.rateOf(stream, nowMs) }));
    this.counted = new Map(
      page.streams.map((stream) => [stream.name, { added: stream.entries_added, atMs: nowMs, generation: stream.generation }]),
    );
    this.more.hidden = page.next === null || this.limit >= 1_000;
    this.draw();
    this.dispatchEvent(new CustomEvent("seen", { detail: page.streams }));
  }

  /** @param {Stream} stream @param {number} nowMs */
  rateOf(stream, nowMs) {
    const before = this.counted.get(stream.name);
    if (before === undefined || before.generation !== stream.generation || nowMs <= before.atMs) return null;
    return (Math.max(0, stream.entries_added - before.added) * 1000) / (nowMs - before.atMs);
  }

  /** @param {string} stream @param {string} view */
  select(stream, view) {
    this.current = stream;
    this.view = view;
    this.draw();
  }

  draw() {
    const column = COLUMNS.find(([key]) => key === this.sorted);
    const lines = [...this.lines];
    // By name as the gateway gives them; by a figure the largest first.
    if (column && this.sorted !== "name") lines.sort((a, b) => Number(column[2](b)) - Number(column[2](a)));
    reconcile(this.body, this.kept, lines.map((line) => [line.stream.name, line]), (line) => this.make(line));
    this.empty.hidden = lines.length > 0;
    write(this.empty, this.search.value ? "No stream begins like this." : "There are no streams yet: create one, or publish to it.");
  }

  /** @param {Line} made */
  make({ stream: { name } }) {
    const link = h("a", { href: href(name, "live"), title: name }, h("bdi", {}, name));
    const cells = { length: h("td.number"), rate: h("td.number"), memory: h("td.number"), groups: h("td.number") };
    const element = h("tr", {}, h("th", { scope: "row" }, link), cells.length, cells.rate, cells.memory, cells.groups);
    const update = (/** @type {Line} */ { stream, rate: now }) => {
      const isCurrent = stream.name === this.current;
      if (isCurrent) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
      link.setAttribute("href", href(stream.name, isCurrent || this.current !== "" ? this.view : "live"));
      write(cells.length, short(stream.length));
      cells.length.title = count(stream.length);
      write(cells.rate, rate(now));
      cells.rate.classList.toggle("busy", (now ?? 0) > 0);
      write(cells.memory, bytes(stream.memory_bytes));
      write(cells.groups, String(stream.groups));
    };
    return { element, update };
  }
}

async function create() {
  const wanted = await ask({
    title: "New stream",
    text: "Publishing makes a stream too; here it can be given limits from the beginning.",
    fields: [
      { name: "name", label: "Name", required: true },
      ...retentionFields({ max_len: null, max_age_ms: null, max_bytes: null }),
    ],
    go: "Create stream",
    work: async (values) => {
      await api.createStream(values.name ?? "", retention(values));
      return `Created ${values.name}`;
    },
  });
  if (wanted !== null) location.hash = href(wanted.name ?? "", "live");
}

/** @param {import("./api.js").Retention} now */
export function retentionFields(now) {
  return [
    { name: "max_len", label: "Keep at most so many entries", type: "number", min: 0, value: text(now.max_len), hint: "empty: no limit" },
    { name: "max_age_s", label: "Keep for so many seconds", type: "number", min: 0, value: text(now.max_age_ms === null ? null : now.max_age_ms / 1000) },
    { name: "max_bytes", label: "Keep at most so many bytes", type: "number", min: 0, value: text(now.max_bytes) },
  ];
}

/** @param {number | null} value */
const text = (value) => (value === null ? "" : String(value));

/** @param {Record<string, string>} values */
export function retention(values) {
  const number = (/** @type {string | undefined} */ value) => (value === undefined || value === "" ? null : Number(value));
  const age = number(values.max_age_s);
  return { max_len: number(values.max_len), max_age_ms: age === null ? null : Math.round(age * 1000), max_bytes: number(values.max_bytes) };
}
