/*
 * A virtual list: as many elements as are in sight, however many rows there are.
 *
 * Knows: scrolling, selection, the keyboard, what a screen reader is told of a grid. Must never know: the socket,
 * where rows come from. Rows are put in as text.
 *
 * An element is kept and written anew rather than made: at 2 000 entries a second nothing is created, and nothing is
 * left behind.
 */

import { clock } from "../shared/format.js";
import { fill, h, write } from "../shared/dom.js";
import { separator } from "../shared/separator.js";

/** @typedef {import("./rows.js").Row} Row */
/** @typedef {import("./rows.js").Rows} Rows */

export const ROW_PX = 26;
const COLUMN_PX_MIN = 48;
const COLUMN_PX_MAX = 1_200;
const COLUMN_STEP_PX = 48;
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
    // What scrolls is what has the focus: the keys of the grid and those of the browser move the same thing.
    this.element = h("div.grid", {
      role: "grid",
      tabindex: 0,
      "aria-label": label,
      onscroll: () => this.scrolled(),
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.key(event),
    }, h("div.grid-top", { role: "rowgroup" }, this.head), this.space);
    /** Widths that were chosen, by column. @type {Map<string, number>} */
    this.widths = new Map();
    this.serial = Math.random().toString(36).slice(2, 8);
    this.seenPx = 0;
    new ResizeObserver(() => this.resized()).observe(this.element);
  }

  /** The selected row stays in sight where it was. */
  resized() {
    const top = this.selectedIndex * ROW_PX - this.element.scrollTop;
    if (top >= 0 && top < this.seenPx) this.reveal(this.selectedIndex);
    this.seenPx = this.height;
    this.draw();
  }

  /** @param {number} index */
  reveal(index) {
    const top = index * ROW_PX;
    if (top < this.element.scrollTop) this.scrollTo(top);
    if (top + ROW_PX > this.element.scrollTop + this.height) this.scrollTo(top + ROW_PX - this.height);
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
    const names = this.names;
    fill(this.head, ...names.map((name, place) => h("div.cell", { role: "columnheader", title: name, "aria-label": name }, h("span.label", {}, name), this.divider(name, place))));
    this.layOut();
    this.element.setAttribute("aria-colcount", String(names.length));
    for (const { element } of this.pool) element.remove();
    this.pool = [];
    this.draw();
  }

  get names() {
    return ["ID", "Time", ...this.columns, "Other fields"];
  }

  /** The key of a column includes its place, since a field may be called `ID`. @param {number} place */
  keyOf(place) {
    return place < 2 || place === this.columns.length + 2 ? `${place < 2 ? place : "rest"}` : `field ${this.columns[place - 2]}`;
  }

  /** @param {string} name @param {number} place */
  divider(name, place) {
    return separator({
      label: `Width of ${name}`,
      minPx: COLUMN_PX_MIN,
      maxPx: () => COLUMN_PX_MAX,
      width: () => this.widthOf(place),
      resize: (px) => this.resize(place, px),
      // By keyboard columns are resized in the menu of columns: a stop for each would be in the way.
      tabindex: -1,
    });
  }

  /** @param {number} place */
  widthOf(place) {
    return Math.round(this.head.children[place]?.getBoundingClientRect().width ?? COLUMN_PX_MIN);
  }

  /** @param {number} place @param {number | null} px null: as it was made */
  resize(place, px) {
    if (px === null) this.widths.delete(this.keyOf(place));
    else this.widths.set(this.keyOf(place), px);
    this.layOut();
  }

  /** Make the column of a field wider or narrower by a step. @param {string} field @param {number} steps */
  widen(field, steps) {
    const place = this.columns.indexOf(field) + 2;
    if (place >= 2) this.resize(place, Math.max(COLUMN_PX_MIN, Math.min(COLUMN_PX_MAX, this.widthOf(place) + steps * COLUMN_STEP_PX)));
  }

  /** Widths for all rows, in one place. */
  layOut() {
    const fields = this.columns.map(() => ["6rem", "minmax(6rem, 1fr)"]);
    const made = [["12.5rem", "12.5rem"], ["8.5rem", "8.5rem"], ...fields, ["7rem", `minmax(7rem, ${fields.length === 0 ? 1 : 1.2}fr)`]];
    const tracks = made.map(([least, track], place) => {
      const px = this.widths.get(this.keyOf(place));
      return px === undefined ? { least, track } : { least: `${px}px`, track: `${px}px` };
    });
    // Narrower than this it scrolls sideways: the padding on both sides, and each column's least.
    this.element.style.setProperty("--grid-min", `calc(32px + ${tracks.map(({ least }) => least).join(" + ")})`);
    this.element.style.setProperty("--columns", tracks.map(({ track }) => track).join(" "));
  }

  /** The height in which rows are seen. */
  get height() {
    return this.element.clientHeight - this.head.offsetHeight;
  }

  /** How many rows fit. */
  get room() {
    return Math.ceil(this.height / ROW_PX) + 2 * OVERSCAN;
  }

  /** Rows went in before the others: what is in sight stays there. @param {number} count */
  shifted(count) {
    if (this.sticky) return;
    this.space.style.height = `${(this.rows?.length ?? 0) * ROW_PX}px`;
    this.scrollTo(this.element.scrollTop + count * ROW_PX);
  }

  /** @param {number} top our own scrolling is not the reader's */
  scrollTo(top) {
    this.element.scrollTop = top;
    this.expected = this.element.scrollTop;
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
    const first = Math.max(0, Math.floor(this.element.scrollTop / ROW_PX) - OVERSCAN);
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
    const { scrollTop, scrollHeight, clientHeight } = this.element;
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
    this.reveal(wanted);
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
    const page = Math.max(1, Math.floor(this.height / ROW_PX) - 1);
    // Where nothing is selected, it begins with what is in sight: the newest row of a live list, else the first.
    const inSight = this.sticky ? length : Math.ceil((this.element.scrollTop - 1) / ROW_PX);
    const from = at < 0 ? inSight : at;
    /** @type {Record<string, () => void>} */
    const moves = {
      ArrowUp: () => this.select(at < 0 && !this.sticky ? inSight : from - 1, false),
      ArrowDown: () => this.select(at < 0 ? inSight : from + 1, false),
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
}

/** @param {string} text */
const cut = (text) => (text.length > CELL_CHARS_MAX ? `${text.slice(0, CELL_CHARS_MAX)}…` : text);
