/*
 * A virtual list: as many elements as are in sight, however many rows there are.
 *
 * Knows: scrolling, selection, the keyboard, what a screen reader is told of a grid. Must never know: the socket,
 * where rows come from. Rows are put in as text.
 *
 * An element is kept and written anew rather than made: at 2 000 entries a second nothing is created, and nothing is
 * left behind.
 */

import { clock, count } from "./format.js";
import { fill, h, write } from "./dom.js";

/** @typedef {import("./rows.js").Row} Row */
/** @typedef {import("./rows.js").Rows} Rows */

export const ROW_PX = 26;
const OVERSCAN = 6;
// Longer values are read in the inspector.
const CELL_CHARS_MAX = 240;
// Closer than this to the end means: at the end.
const END_PX = ROW_PX * 1.5;

/** Fires `open` with a row, `left` when the reader scrolls away from the end, `start` and `end` when one is reached. */
export class Grid extends EventTarget {
  /** @param {string} label */
  constructor(label) {
    super();
    /** @type {Rows | null} */
    this.rows = null;
    /** @type {string[]} */
    this.columns = [];
    /** Counted from the first row there ever was, so that it stays while rows go at the front. */
    this.selected = -1;
    this.sticky = true;
    this.expected = Number.NaN;
    /** @type {{element: any, cells: any[]}[]} */
    this.pool = [];
    this.head = h("div.grid-head", { role: "row", "aria-rowindex": 1 });
    this.space = h("div.grid-space", { role: "presentation" });
    this.window = h("div.grid-window", { role: "rowgroup" });
    this.space.append(this.window);
    this.body = h("div.grid-body", {
      role: "presentation",
      onscroll: () => this.scrolled(),
    }, this.space);
    this.element = h("div.grid", {
      role: "grid",
      tabindex: 0,
      "aria-label": label,
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.key(event),
    }, h("div", { role: "rowgroup" }, this.head), this.body);
    this.serial = Math.random().toString(36).slice(2, 8);
    new ResizeObserver(() => this.draw()).observe(this.body);
  }

  /** @param {Rows} rows */
  show(rows) {
    this.rows = rows;
    this.selected = -1;
    this.sticky = true;
    this.draw();
  }

  /** @param {string[]} columns the fields that have one */
  setColumns(columns) {
    if (columns.join("\n") === this.columns.join("\n") && this.head.childElementCount > 0) return;
    this.columns = columns;
    const names = ["ID", "Time", ...columns, "Other fields"];
    fill(this.head, ...names.map((name) => h("div.cell", { role: "columnheader", title: name }, name)));
    const fields = columns.map(() => "minmax(6rem, 1fr)").join(" ");
    // Narrower than this it scrolls sideways: twice the padding, ID, time, fields, the others.
    this.element.style.setProperty("--grid-min", `calc(32px + ${12.5 + 8.5 + 6 * columns.length + 7}rem)`);
    this.element.style.setProperty("--columns", `12.5rem 8.5rem ${fields} minmax(7rem, ${columns.length === 0 ? 1 : 1.2}fr)`);
    this.element.setAttribute("aria-colcount", String(names.length));
    for (const { element } of this.pool) element.remove();
    this.pool = [];
    this.draw();
  }

  /** How many rows fit. */
  get room() {
    return Math.ceil(this.body.clientHeight / ROW_PX) + 2 * OVERSCAN;
  }

  /** Rows went in before the others: what is in sight stays there. @param {number} count */
  shifted(count) {
    if (this.sticky) return;
    this.space.style.height = `${(this.rows?.length ?? 0) * ROW_PX}px`;
    this.scrollTo(this.body.scrollTop + count * ROW_PX);
  }

  /** @param {number} top our own scrolling is not the reader's */
  scrollTo(top) {
    this.body.scrollTop = top;
    this.expected = this.body.scrollTop;
  }

  toEnd() {
    this.sticky = true;
    this.selected = -1;
    this.draw();
  }

  draw() {
    const length = this.rows?.length ?? 0;
    this.space.style.height = `${length * ROW_PX}px`;
    if (this.sticky) this.scrollTo(length * ROW_PX);
    const first = Math.max(0, Math.floor(this.body.scrollTop / ROW_PX) - OVERSCAN);
    const last = Math.min(length, first + this.room);
    this.window.style.transform = `translateY(${first * ROW_PX}px)`;
    while (this.pool.length < last - first) this.grow();
    for (const [place, slot] of this.pool.entries()) {
      const row = this.rows?.at(first + place);
      const hidden = row === undefined || first + place >= last;
      if (slot.element.hidden !== hidden) slot.element.hidden = hidden;
      if (!hidden && row !== undefined) this.write(slot, row, first + place);
    }
    this.element.setAttribute("aria-rowcount", String(length + 1));
    this.mark();
  }

  grow() {
    const cells = [...this.columns, "", "", ""].map(() => h("div.cell", { role: "gridcell" }));
    const element = h("div.row", { role: "row", id: `row-${this.serial}-${this.pool.length}` }, ...cells);
    const slot = { element, cells, index: -1 };
    element.addEventListener("click", () => this.select(Number(element.dataset.index), true));
    this.pool.push(slot);
    this.window.append(element);
  }

  /** @param {{element: any, cells: any[]}} slot @param {Row} row @param {number} index */
  write(slot, row, index) {
    const { element, cells } = slot;
    element.dataset.index = String(index);
    element.setAttribute("aria-rowindex", String(index + 2));
    const kind = row.kind === "notice" ? `row notice ${row.tone}` : row.entry.fields === null ? "row gone" : "row";
    if (element.className !== kind) element.className = kind;
    if (row.kind === "notice") {
      write(cells[0], row.text);
      cells[0].setAttribute("aria-colspan", String(cells.length));
      for (const cell of cells.slice(1)) write(cell, "");
      return;
    }
    cells[0].removeAttribute("aria-colspan");
    const fields = row.entry.fields ?? {};
    write(cells[0], row.id);
    write(cells[1], clock(row.ms));
    for (const [place, name] of this.columns.entries()) {
      write(cells[place + 2], Object.hasOwn(fields, name) ? cut(fields[name] ?? "") : "");
    }
    write(cells[cells.length - 1], this.rest(row, fields));
  }

  /** @param {import("./rows.js").EntryRow} row @param {Record<string, string>} fields */
  rest(row, fields) {
    if (row.entry.fields === null) return "deleted";
    let text = "";
    for (const name of Object.keys(fields)) {
      if (this.columns.includes(name)) continue;
      text += `${text === "" ? "" : "  "}${name}=${fields[name] ?? ""}`;
      if (text.length > CELL_CHARS_MAX) break;
    }
    return cut(text);
  }

  scrolled() {
    const { scrollTop, scrollHeight, clientHeight } = this.body;
    this.head.scrollLeft = this.body.scrollLeft;
    if (Math.abs(scrollTop - this.expected) <= 1) {
      this.expected = Number.NaN;
      return;
    }
    const atEnd = scrollHeight - scrollTop - clientHeight < END_PX;
    if (this.sticky && !atEnd) {
      this.sticky = false;
      this.dispatchEvent(new Event("left"));
    }
    if (scrollTop < END_PX) this.dispatchEvent(new Event("start"));
    if (atEnd) this.dispatchEvent(new Event("end"));
    this.draw();
  }

  /** @param {number} index @param {boolean} opens */
  select(index, opens) {
    const length = this.rows?.length ?? 0;
    if (length === 0 || this.rows === null) return;
    const wanted = Math.max(0, Math.min(length - 1, index));
    if (this.sticky) {
      this.sticky = false;
      this.dispatchEvent(new Event("left"));
    }
    this.selected = wanted + this.rows.dropped;
    const top = wanted * ROW_PX;
    if (top < this.body.scrollTop) this.scrollTo(top);
    if (top + ROW_PX > this.body.scrollTop + this.body.clientHeight) this.scrollTo(top + ROW_PX - this.body.clientHeight);
    this.draw();
    const row = this.rows.at(wanted);
    if (opens && row) this.dispatchEvent(new CustomEvent("open", { detail: row }));
  }

  /** Where the selected row is now, -1 if it is none of those that are kept. */
  get selectedIndex() {
    const index = this.rows === null || this.selected < 0 ? -1 : this.selected - this.rows.dropped;
    return index < (this.rows?.length ?? 0) ? index : -1;
  }

  mark() {
    const wanted = String(this.selectedIndex);
    let active = "";
    for (const { element } of this.pool) {
      const is = !element.hidden && element.dataset.index === wanted;
      if (is) active = element.id;
      if (is !== (element.getAttribute("aria-selected") === "true")) element.setAttribute("aria-selected", String(is));
    }
    if (active === "") this.element.removeAttribute("aria-activedescendant");
    else this.element.setAttribute("aria-activedescendant", active);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const length = this.rows?.length ?? 0;
    const at = this.selectedIndex;
    const page = Math.max(1, Math.floor(this.body.clientHeight / ROW_PX) - 1);
    const from = at < 0 ? length : at;
    /** @type {Record<string, () => void>} */
    const moves = {
      ArrowUp: () => this.select(from - 1, false),
      ArrowDown: () => this.select(from + 1, false),
      PageUp: () => this.select(from - page, false),
      PageDown: () => this.select(from + page, false),
      Home: () => this.select(0, false),
      End: () => this.select(length - 1, false),
      Enter: () => at >= 0 && this.select(at, true),
    };
    const move = moves[event.key];
    if (move === undefined) return;
    event.preventDefault();
    move();
    if (at === 0 && (event.key === "ArrowUp" || event.key === "PageUp")) this.dispatchEvent(new Event("start"));
    if (event.key === "Home") this.dispatchEvent(new Event("start"));
    if (this.selectedIndex === length - 1 && event.key !== "Enter") this.dispatchEvent(new Event("end"));
  }

  /** What a caption says of it. */
  get caption() {
    const length = this.rows?.length ?? 0;
    return `${count(length)} ${length === 1 ? "row" : "rows"}`;
  }
}

/** @param {string} text */
const cut = (text) => (text.length > CELL_CHARS_MAX ? `${text.slice(0, CELL_CHARS_MAX)}…` : text);
