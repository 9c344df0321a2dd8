/*
 * The live view: the rows of a stream, and the controls to pause, filter, jump, choose columns and download.
 *
 * Knows: the controls and their labels. Must never know: how entries arrive.
 */

import { say, sayArrivals } from "../shared/announce.js";
import * as api from "../shared/api.js";
import { button, fill, h, save, setText } from "../shared/dom.js";
import { idMs, pairsOf } from "../shared/entry.js";
import { countEntries, formatCount, formatDuration, formatName, formatTime, formatWhen, pluralize } from "../shared/format.js";
import { formatCsv, formatNdjson } from "./export.js";
import { parseFilter } from "./filter.js";
import { Grid } from "./grid.js";
import { parseJump } from "./jump.js";
import { firstId, lastId } from "./tail.js";

/** @typedef {import("./tail.js").Tail} Tail */

const COLUMNS_SHOWN = 5;
const COLUMNS_KNOWN_MAX = 64;
// The newest rows whose fields are looked at.
const SAMPLED_ROWS = 50;
// Further behind than this, it takes long to catch up: the page offers to skip.
const BEHIND_MS_MAX = 5_000;
const UPDATE_MS = 500;

export class LiveView {
  /** @param {Tail} tail @param {(entry: import("../shared/api.js").Entry) => void} inspect */
  constructor(tail, inspect) {
    this.tail = tail;
    this.inspect = inspect;
    this.grid = new Grid("Entries");
    /** The known fields, in order of first appearance, and whether each has a column. @type {Map<string, boolean>} */
    this.fields = new Map();
    this.isColumnChoiceOwn = false;
    // After a jump beyond the last entry.
    this.newest = "";
    this.pauseButton = button("Pause", () => this.togglePause(), { "aria-pressed": "false", title: "Space" });
    this.newestButton = button("Go to newest", () => this.goLive(), { hidden: true, title: "L" }, "button.button.primary");
    this.filter = h("input.filter", {
      type: "search", "aria-label": "Filter entries", autocomplete: "off", spellcheck: "false",
      placeholder: "Filter: word, field:word, field>10, -word",
      oninput: () => this.tail.filter(parseFilter(this.filter.value)),
    });
    this.jump = h("input.jump", {
      "aria-label": "Jump to a time or an ID", autocomplete: "off", spellcheck: "false",
      placeholder: "Jump: 12:30, 5m, ID",
      onkeydown: (/** @type {KeyboardEvent} */ event) => event.key === "Enter" && this.goTo(),
      oninput: () => this.jump.setCustomValidity(""),
    });
    this.menu = h("div.menu", { hidden: true, role: "group", "aria-label": "Columns" });
    this.columns = button("Columns", () => this.toggleMenu(), { "aria-expanded": "false" });
    this.downloadSelect = h("select.download", { "aria-label": "Download the rows shown", title: "All loaded rows that match the filter", onchange: () => this.download() },
      ...[["", "Download"], ["ndjson", "as NDJSON"], ["csv", "as CSV"]].map(([value, label]) => h("option", { value }, label)));
    this.empty = h("p.empty.over", { hidden: true });
    this.end = h("p.notice.info.end", { hidden: true });
    this.state = h("span.state");
    this.status = h("p.status");
    this.element = h(
      "div.live", {},
      h("div.bar", { role: "toolbar", "aria-label": "Live tail" },
        this.pauseButton, this.newestButton, this.filter, this.jump, h("div.anchor", {}, this.columns, this.menu), this.downloadSelect),
      h("div.stage", {}, this.grid.element, this.empty),
      this.end,
      h("div.foot", {}, this.state, this.status),
    );
    this.listen();
    setInterval(() => this.update(), UPDATE_MS);
  }

  listen() {
    const { tail, grid } = this;
    tail.addEventListener("rows", (event) => this.draw(/** @type {CustomEvent} */ (event).detail ?? {}));
    tail.addEventListener("mode", () => this.update());
    tail.addEventListener("arrival", (event) => {
      const { entries, isLive } = /** @type {CustomEvent} */ (event).detail;
      if (isLive && !document.hidden) sayArrivals(entries.length);
    });
    tail.addEventListener("notice", (event) => say(/** @type {CustomEvent} */ (event).detail.text));
    grid.addEventListener("leave", () => this.pause());
    grid.addEventListener("start", () => tail.loadOlder());
    grid.addEventListener("end", () => tail.loadNewer());
    grid.addEventListener("open", (event) => {
      const row = /** @type {CustomEvent} */ (event).detail;
      if (row.kind === "entry") this.inspect(row.entry);
    });
    this.menu.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (event.key === "Escape") {
        this.toggleMenu();
        this.columns.focus();
      }
    });
  }

  /** @param {string} stream */
  open(stream) {
    this.fields.clear();
    this.isColumnChoiceOwn = false;
    this.filter.value = "";
    this.tail.test = null;
    this.grid.setColumns([], false);
    this.grid.show(this.tail.shown);
    return this.tail.open(stream);
  }

  /** @param {{before?: number, refiltered?: boolean}} detail */
  draw({ before = 0, refiltered = false }) {
    this.learnFields();
    if (before !== 0) this.grid.shiftBy(before);
    if (refiltered) this.grid.selectNone();
    if (this.tail.mode === "live") this.grid.followsEnd = true;
    this.grid.draw();
    this.update();
  }

  /** Learn the fields of the newest entries. The first few get a column, until the reader chooses. */
  learnFields() {
    const { rows } = this.tail;
    const knownCount = this.fields.size;
    for (let i = Math.max(0, rows.length - SAMPLED_ROWS); i < rows.length; i += 1) {
      const row = rows.at(i);
      if (row?.kind !== "entry") continue;
      for (const [name] of pairsOf(row.entry)) {
        if (!this.fields.has(name) && this.fields.size < COLUMNS_KNOWN_MAX) {
          this.fields.set(name, !this.isColumnChoiceOwn && this.shownFields.length < COLUMNS_SHOWN);
        }
      }
    }
    if (this.fields.size !== knownCount) {
      this.grid.setColumns(this.shownFields, this.shownFields.length < this.fields.size);
      if (!this.menu.hidden) this.drawMenu();
    }
  }

  get shownFields() {
    return [...this.fields].filter(([, isShown]) => isShown).map(([name]) => name);
  }

  toggleMenu() {
    this.menu.hidden = !this.menu.hidden;
    this.columns.setAttribute("aria-expanded", String(!this.menu.hidden));
    if (this.menu.hidden) return;
    this.drawMenu();
    this.menu.querySelector("input")?.focus();
  }

  drawMenu() {
    const lines = [...this.fields].map(([name, isShown]) => this.makeMenuLine(name, isShown));
    fill(this.menu, ...(lines.length === 0 ? [h("span.muted", {}, "No fields yet.")] : lines));
  }

  /** @param {string} name @param {boolean} isShown */
  makeMenuLine(name, isShown) {
    const box = h("input", {
      type: "checkbox",
      onchange: () => {
        this.isColumnChoiceOwn = true;
        this.fields.set(name, box.checked);
        this.grid.setColumns(this.shownFields, this.shownFields.length < this.fields.size);
        for (const resize of resizers) resize.disabled = !box.checked;
      },
    });
    box.checked = isShown;
    const resizers = /** @type {[string, string, number][]} */ ([["−", "Narrower", -1], ["+", "Wider", 1]]).map(([sign, word, steps]) =>
      button(sign, () => this.grid.widen(name, steps), { "aria-label": `${word} ${formatName(name)}`, title: word, disabled: !isShown }, "button.plain.tiny"));
    return h("div.choice", {}, h("label.choice.grow", {}, box, h("bdi", {}, formatName(name))), ...resizers);
  }

  /** Save all loaded entries that match the filter. */
  download() {
    const format = this.downloadSelect.value;
    this.downloadSelect.value = "";
    if (format === "") return;
    const entries = this.tail.shown.entries();
    const name = `${this.tail.stream.replaceAll(/[^\w.-]+/g, "_")}.${format}`;
    if (format === "csv") save(name, "text/csv;charset=utf-8", formatCsv(entries));
    else save(name, "application/x-ndjson", formatNdjson(entries));
    say(`Downloaded ${countEntries(entries.length)}`);
  }

  pause() {
    if (this.tail.mode !== "live") return;
    this.tail.pause();
    this.grid.followsEnd = false;
    say("Paused");
  }

  togglePause() {
    if (this.tail.mode === "live") this.pause();
    else if (this.tail.mode === "paused") {
      this.grid.followEnd();
      this.tail.resume();
      say("Live");
    } else this.goLive();
  }

  async goLive() {
    this.grid.show(this.tail.shown);
    await this.tail.goLive();
    say("Live, at the newest entries");
  }

  /** Jump to the time or the ID in the field. */
  async goTo() {
    const id = parseJump(this.jump.value, Date.now());
    if (id === null) {
      this.jump.setCustomValidity("Enter a time (12:30 or 2026-01-31 12:30), a time ago (5m, 2h), or an ID.");
      this.jump.reportValidity();
      return;
    }
    this.grid.show(this.tail.shown);
    this.grid.followsEnd = false;
    await this.tail.jump(id);
    if (this.tail.error !== "") {
      say(this.tail.error);
      return;
    }
    this.grid.scrollTo(0);
    const first = firstId(this.tail.rows);
    this.newest = first === null ? await this.describeNewest() : "";
    say(first === null ? this.newest : `At ${first}`);
    const index = this.tail.shown.findIndex((row) => row.kind === "entry");
    if (index >= 0) this.grid.select(index, false);
    this.grid.draw();
    this.grid.element.focus({ preventScroll: true });
    // So that the reader can scroll up.
    await this.tail.loadOlder();
  }

  /** Show the current state in words. */
  update() {
    const { tail } = this;
    const behindMs = this.behindMs();
    const isPaused = tail.mode === "paused";
    const [tone, word] = this.describeMode();
    this.state.className = `state ${tone}`;
    setText(this.state, word);
    setText(this.pauseButton, isPaused ? "Resume" : "Pause");
    this.pauseButton.setAttribute("aria-pressed", String(isPaused));
    this.pauseButton.disabled = tail.mode === "history" || tail.mode === "loading" || (tail.end !== "" && !isPaused);
    this.newestButton.hidden = !(tail.mode === "history" || isPaused || tail.error !== "" || behindMs > BEHIND_MS_MAX);
    this.end.hidden = tail.end === "";
    setText(this.end, tail.end);
    setText(this.status, this.describeProgress(behindMs));
    this.empty.hidden = tail.shown.length > 0;
    setText(this.empty, this.describeEmpty());
  }

  /** @returns {[string, string]} a class of the style sheet, and words */
  describeMode() {
    const { mode, isCaughtUp, pausedAtMs, connection } = this.tail;
    const { phase, outage } = connection.state;
    if (mode === "paused") return ["paused", `Paused at ${formatTime(pausedAtMs)}`];
    if (mode === "history") return ["history", "History"];
    if (phase === "open" && outage !== "") return ["disconnected", "Waiting for the gateway"];
    if (mode === "loading") return this.tail.error === "" ? ["loading", "Loading"] : ["disconnected", "Not loaded"];
    if (phase !== "open") return ["disconnected", "Not connected"];
    if (this.tail.end !== "") return ["history", "Ended"];
    return ["live", isCaughtUp ? "Live" : "Catching up"];
  }

  describeEmpty() {
    const { tail } = this;
    if (tail.error !== "") return tail.error;
    if (tail.rows.length > 0) return "No loaded entry matches the filter.";
    if (tail.mode === "history" && this.newest !== "") return this.newest;
    if (tail.end !== "") return "No entries.";
    return tail.mode === "loading" ? "" : "No entries yet. New entries appear here.";
  }

  /** What there is, where a jump has led beyond it. */
  async describeNewest() {
    // The stream's own length does not count what is archived.
    const page = await api.listEntries(this.tail.stream, { last: 1 }).catch(() => null);
    const id = page?.entries[0]?.id;
    if (id === undefined) return "No entries yet. New entries appear here.";
    return `Nothing from there on. The newest entry is ${id}, of ${formatWhen(idMs(id), Date.now())}.`;
  }

  /** The age of the newest row while more entries wait, 0 otherwise. */
  behindMs() {
    const last = lastId(this.tail.rows);
    return this.tail.mode === "live" && !this.tail.isCaughtUp && last !== null ? Date.now() - idMs(last) : 0;
  }

  /** @param {number} behindMs */
  describeProgress(behindMs) {
    const { trouble } = this.tail;
    return trouble === "" ? this.describeRows(behindMs) : `${this.describeRows(behindMs)} · no more could be loaded: ${trouble}`;
  }

  /** @param {number} behindMs */
  describeRows(behindMs) {
    const { tail } = this;
    const size = tail.test === null ? `${pluralize(tail.rows.length, "row")} loaded` : `${pluralize(tail.shown.length, "row")} shown`;
    if (tail.mode === "paused") {
      const more = tail.isOutOfCredit ? ", more wait in the stream" : "";
      const older = tail.isFull ? " · jump to see older entries" : "";
      return `${pluralize(tail.waitingCount, "new entry", "new entries")}${more} · ${size}${older}`;
    }
    if (tail.mode === "history") return `${size}${tail.atEnd ? " · the newest entry is reached" : ""}`;
    return behindMs > BEHIND_MS_MAX ? `${formatDuration(behindMs)} behind · ${size}` : `${formatCount(tail.receivedCount)} received · ${size}`;
  }
}
