/*
 * A virtual list: elements for the visible rows only, for any number of rows.
 *
 * Knows: scrolling, selection, the keyboard, the ARIA roles of a grid. Must never know: the WebSocket, where rows come
 * from. The content of a row is set as text.
 *
 * Elements are reused: at 2 000 entries per second none is created, and none leaks.
 */

import { fill, h, setText } from "../shared/dom.js";
import { formatName, formatWhen } from "../shared/format.js";
import { makeSeparator } from "../shared/separator.js";

/** @typedef {import("./rows.js").Row} Row */
/** @typedef {import("./rows.js").Rows} Rows */
/** @typedef {{element: any, cells: any[]}} RowElement */

const ROW_PX = 26;
const COLUMN_PX_MIN = 48;
const COLUMN_PX_MAX = 1_200;
const COLUMN_STEP_PX = 48;
// Rows with an element above and below the visible ones.
const OVERSCAN = 6;
// The columns before and after those of the fields.
const LEADING_COLUMNS = 2;
// The inspector shows longer values.
const CELL_CHARS_MAX = 240;
// Closer than this to an end counts as at the end.
const END_PX = ROW_PX * 1.5;

/** Fires `open` with a row, `leave` when the reader scrolls away from the end, `start` and `end` when one is reached. */
export class Grid extends EventTarget {
  /** @param {string} label */
  constructor(label) {
    super();
    /** @type {Rows | null} */
    this.rows = null;
    /** @type {string[]} */
    this.columns = [];
    this.hasOthers = false;
    /** The number of the selected row among all rows ever, so that it stays when rows leave or enter at the front.
     * @type {number | null} */
    this.selected = null;
    /** Whether the end stays in sight as rows are added. */
    this.followsEnd = true;
    /** Where our own scrolling ended, to tell it from the reader's. */
    this.expectedTop = Number.NaN;
    /** The elements of rows. @type {RowElement[]} */
    this.pool = [];
    this.head = h("div.grid-head", { role: "row", "aria-rowindex": 1 });
    this.space = h("div.grid-space", { role: "presentation" });
    this.window = h("div.grid-window", { role: "rowgroup" });
    this.space.append(this.window);
    // The element that scrolls also has the focus, so that the keys of the grid and of the browser move the same rows.
    this.element = h("div.grid", {
      role: "grid",
      tabindex: 0,
      "aria-label": label,
      onscroll: () => this.handleScroll(),
      onwheel: (/** @type {WheelEvent} */ event) => this.handleWheel(event),
      onkeydown: (/** @type {KeyboardEvent} */ event) => this.handleKey(event),
    }, h("div.grid-top", { role: "rowgroup" }, this.head), this.space);
    /** Chosen widths by column key. @type {Map<string, number>} */
    this.widths = new Map();
    this.idPrefix = Math.random().toString(36).slice(2, 8);
    this.lastHeight = 0;
    new ResizeObserver(() => this.handleResize()).observe(this.element);
  }

  /** A selected row that was in sight stays in sight. */
  handleResize() {
    const top = this.selectedIndex * ROW_PX - this.element.scrollTop;
    if (top >= 0 && top < this.lastHeight) this.reveal(this.selectedIndex);
    this.lastHeight = this.height;
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
    this.selected = null;
    this.followsEnd = true;
    this.draw();
  }

  /** @param {string[]} columns the names of the fields with a column @param {boolean} hasOthers whether there are others */
  setColumns(columns, hasOthers) {
    if (columns.join("\n") === this.columns.join("\n") && hasOthers === this.hasOthers && this.head.childElementCount > 0) return;
    this.columns = columns;
    this.hasOthers = hasOthers;
    const names = this.columnNames;
    fill(this.head, ...names.map((name, index) => h("div.cell", { role: "columnheader", title: name, "aria-label": name }, h("span.label", {}, name), this.makeDivider(name, index))));
    this.applyWidths();
    this.element.setAttribute("aria-colcount", String(names.length));
    for (const { element } of this.pool) element.remove();
    this.pool = [];
    this.draw();
  }

  get columnNames() {
    return ["ID", "Time", ...this.columns.map(formatName), "Other fields"];
  }

  /** A key is no bare name, because a field may be called `ID`. @param {number} index */
  columnKey(index) {
    const field = this.columns[index - LEADING_COLUMNS];
    if (field !== undefined) return `field ${field}`;
    return index < LEADING_COLUMNS ? `leading ${index}` : "other";
  }

  /** @param {string} name @param {number} index */
  makeDivider(name, index) {
    return makeSeparator({
      label: `Width of ${name}`,
      minPx: COLUMN_PX_MIN,
      maxPx: () => COLUMN_PX_MAX,
      width: () => this.widthOf(index),
      resize: (px) => this.resizeColumn(index, px),
      // With the keyboard, the menu of columns resizes them; a tab stop per column would be in the way.
      tabindex: -1,
    });
  }

  /** @param {number} index */
  widthOf(index) {
    return Math.round(this.head.children[index]?.getBoundingClientRect().width ?? COLUMN_PX_MIN);
  }

  /** @param {number} index @param {number | null} px null resets the width */
  resizeColumn(index, px) {
    if (px === null) this.widths.delete(this.columnKey(index));
    else this.widths.set(this.columnKey(index), px);
    this.applyWidths();
  }

  /** Make the column of a field wider or narrower by a step. @param {string} field @param {number} steps */
  widen(field, steps) {
    const index = this.columns.indexOf(field) + LEADING_COLUMNS;
    if (index < LEADING_COLUMNS) return;
    this.resizeColumn(index, Math.max(COLUMN_PX_MIN, Math.min(COLUMN_PX_MAX, this.widthOf(index) + steps * COLUMN_STEP_PX)));
  }

  /** Set the widths of all rows through two CSS variables. */
  applyWidths() {
    const fields = this.columns.map(() => ["6rem", "minmax(6rem, 1fr)"]);
    const defaults = [["12.5rem", "12.5rem"], ["10rem", "10rem"], ...fields, ["7rem", fields.length > 0 && !this.hasOthers ? "7rem" : `minmax(7rem, ${fields.length === 0 ? 1 : 1.2}fr)`]];
    const tracks = defaults.map(([least, track], index) => {
      const px = this.widths.get(this.columnKey(index));
      return px === undefined ? { least, track } : { least: `${px}px`, track: `${px}px` };
    });
    // The narrowest grid that does not scroll sideways: the padding on both sides and the minimum of each column.
    this.element.style.setProperty("--grid-min", `calc(32px + ${tracks.map(({ least }) => least).join(" + ")})`);
    this.element.style.setProperty("--columns", tracks.map(({ track }) => track).join(" "));
  }

  /** The height of the visible rows in pixels. */
  get height() {
    return this.element.clientHeight - this.head.offsetHeight;
  }

  /** How many rows have an element. */
  get capacity() {
    return Math.ceil(this.height / ROW_PX) + 2 * OVERSCAN;
  }

  /** Keep the visible rows in place after rows were inserted at the front, or left there. @param {number} count */
  shiftBy(count) {
    if (this.followsEnd) return;
    this.space.style.height = `${(this.rows?.length ?? 0) * ROW_PX}px`;
    this.scrollTo(this.element.scrollTop + count * ROW_PX);
  }

  /** Scroll without an event for the reader's scrolling. @param {number} top */
  scrollTo(top) {
    this.element.scrollTop = top;
    this.expectedTop = this.element.scrollTop;
  }

  followEnd() {
    this.followsEnd = true;
    this.selected = null;
    this.draw();
  }

  selectNone() {
    this.selected = null;
  }

  draw() {
    const length = this.rows?.length ?? 0;
    this.space.style.height = `${length * ROW_PX}px`;
    if (this.followsEnd) this.scrollTo(length * ROW_PX);
    const first = Math.max(0, Math.floor(this.element.scrollTop / ROW_PX) - OVERSCAN);
    const last = Math.min(length, first + this.capacity);
    this.window.style.transform = `translateY(${first * ROW_PX}px)`;
    while (this.pool.length < last - first) this.addElement();
    for (const [offset, slot] of this.pool.entries()) {
      const row = this.rows?.at(first + offset);
      const hidden = row === undefined || first + offset >= last;
      if (slot.element.hidden !== hidden) slot.element.hidden = hidden;
      if (!hidden && row !== undefined) this.drawRow(slot, row, first + offset);
    }
    this.element.setAttribute("aria-rowcount", String(length + 1));
    this.markSelected();
  }

  addElement() {
    const cells = this.columnNames.map(() => h("div.cell", { role: "gridcell" }));
    const element = h("div.row", { role: "row", id: `row-${this.idPrefix}-${this.pool.length}` }, ...cells);
    const slot = { element, cells };
    element.addEventListener("click", () => this.select(Number(element.dataset.index), true));
    this.pool.push(slot);
    this.window.append(element);
  }

  /** @param {RowElement} slot @param {Row} row @param {number} index */
  drawRow(slot, row, index) {
    const { element, cells } = slot;
    element.dataset.index = String(index);
    element.setAttribute("aria-rowindex", String(index + 2));
    const className = row.kind === "notice" ? `row notice ${row.tone}` : row.entry.fields === null ? "row deleted" : "row";
    if (element.className !== className) element.className = className;
    if (row.kind === "notice") {
      setText(cells[0], row.text);
      cells[0].setAttribute("aria-colspan", String(cells.length));
      for (const cell of cells.slice(1)) setText(cell, "");
      return;
    }
    cells[0].removeAttribute("aria-colspan");
    const fields = row.entry.fields ?? {};
    setText(cells[0], row.id);
    setText(cells[1], formatWhen(row.ms, Date.now()));
    for (const [index, name] of this.columns.entries()) {
      setText(cells[index + LEADING_COLUMNS], Object.hasOwn(fields, name) ? truncate(fields[name] ?? "") : "");
    }
    setText(cells[cells.length - 1], this.formatOtherFields(row, fields));
  }

  /** @param {import("./rows.js").EntryRow} row @param {Record<string, string>} fields */
  formatOtherFields(row, fields) {
    if (row.entry.fields === null) return "deleted";
    let text = "";
    for (const name of Object.keys(fields)) {
      if (this.columns.includes(name)) continue;
      text += `${text === "" ? "" : "  "}${name}=${fields[name] ?? ""}`;
      if (text.length > CELL_CHARS_MAX) break;
    }
    return truncate(text);
  }

  handleScroll() {
    const { scrollTop, scrollHeight, clientHeight } = this.element;
    if (Math.abs(scrollTop - this.expectedTop) <= 1) {
      this.expectedTop = Number.NaN;
      return;
    }
    const atEnd = scrollHeight - scrollTop - clientHeight < END_PX;
    if (this.followsEnd && !atEnd) {
      this.followsEnd = false;
      this.dispatchEvent(new Event("leave"));
    }
    if (scrollTop < END_PX) this.dispatchEvent(new Event("start"));
    if (atEnd) this.dispatchEvent(new Event("end"));
    this.draw();
  }

  /** At an end nothing scrolls, but there may be more entries beyond it. @param {WheelEvent} event */
  handleWheel({ deltaY }) {
    const { scrollTop, scrollHeight, clientHeight } = this.element;
    if (deltaY < 0 && scrollTop <= 0) this.dispatchEvent(new Event("start"));
    if (deltaY > 0 && scrollHeight - scrollTop - clientHeight <= 1) this.dispatchEvent(new Event("end"));
  }

  /** @param {number} index @param {boolean} opens */
  select(index, opens) {
    const length = this.rows?.length ?? 0;
    if (length === 0 || this.rows === null) return;
    const wanted = Math.max(0, Math.min(length - 1, index));
    if (this.followsEnd) {
      this.followsEnd = false;
      this.dispatchEvent(new Event("leave"));
    }
    this.selected = wanted + this.rows.dropped;
    this.reveal(wanted);
    this.draw();
    const row = this.rows.at(wanted);
    if (opens && row) this.dispatchEvent(new CustomEvent("open", { detail: row }));
  }

  /** The index of the selected row, -1 if none is selected or the row has left. */
  get selectedIndex() {
    if (this.rows === null || this.selected === null) return -1;
    const index = this.selected - this.rows.dropped;
    return index < this.rows.length ? Math.max(-1, index) : -1;
  }

  markSelected() {
    const wanted = String(this.selectedIndex);
    let active = "";
    for (const { element } of this.pool) {
      const isSelected = !element.hidden && element.dataset.index === wanted;
      if (isSelected) active = element.id;
      if (isSelected !== (element.getAttribute("aria-selected") === "true")) element.setAttribute("aria-selected", String(isSelected));
    }
    if (active === "") this.element.removeAttribute("aria-activedescendant");
    else this.element.setAttribute("aria-activedescendant", active);
  }

  /** @param {KeyboardEvent} event */
  handleKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const length = this.rows?.length ?? 0;
    const selected = this.selectedIndex;
    const page = Math.max(1, Math.floor(this.height / ROW_PX) - 1);
    // Without a selection the keys start in sight: after the newest row of a live list, else at the first visible row.
    const visible = this.followsEnd ? length : Math.ceil((this.element.scrollTop - 1) / ROW_PX);
    const from = selected < 0 ? visible : selected;
    /** @type {Record<string, () => void>} */
    const moves = {
      ArrowUp: () => this.select(selected < 0 && !this.followsEnd ? visible : from - 1, false),
      ArrowDown: () => this.select(selected < 0 ? visible : from + 1, false),
      PageUp: () => this.select(from - page, false),
      PageDown: () => this.select(from + page, false),
      Home: () => this.select(0, false),
      End: () => this.select(length - 1, false),
      Enter: () => selected >= 0 && this.select(selected, true),
    };
    const move = moves[event.key];
    if (move === undefined) return;
    event.preventDefault();
    move();
    if (selected === 0 && (event.key === "ArrowUp" || event.key === "PageUp")) this.dispatchEvent(new Event("start"));
    if (event.key === "Home") this.dispatchEvent(new Event("start"));
    if (this.selectedIndex === length - 1 && event.key !== "Enter") this.dispatchEvent(new Event("end"));
  }
}

/** @param {string} text */
const truncate = (text) => (text.length > CELL_CHARS_MAX ? `${text.slice(0, CELL_CHARS_MAX)}…` : text);
