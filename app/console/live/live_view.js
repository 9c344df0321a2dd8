/*
 * The live view: a tail, its list, and what a reader does with them: hold, filter, jump, choose columns.
 *
 * Knows: the controls, and what they say. Must never know: how entries arrive.
 */

import { arrived, say } from "../shared/announce.js";
import { button, fill, h, save, write } from "../shared/dom.js";
import { csv, ndjson } from "./export.js";
import { idMs, pairsOf } from "../shared/entry.js";
import { clock, count, duration, plural } from "../shared/format.js";
import { parse } from "./filter.js";
import { parseJump } from "./jump.js";
import { Grid } from "./grid.js";

/** @typedef {import("./tail.js").Tail} Tail */

const COLUMNS_SHOWN = 5;
const COLUMNS_KNOWN_MAX = 64;
// Further behind than this, going on means reading a lot before the present is reached.
const BEHIND_MS_MAX = 5_000;

export class Live {
  /** @param {Tail} tail @param {(entry: import("../shared/api.js").Entry) => void} inspect */
  constructor(tail, inspect) {
    this.tail = tail;
    this.inspect = inspect;
    this.grid = new Grid("Entries");
    /** Fields that were seen, in the order in which they were first seen. @type {Map<string, boolean>} */
    this.fields = new Map();
    this.chosen = false;
    this.pause = button("Pause", () => this.toggle(), { "aria-pressed": "false", title: "Space" });
    this.now = button("Go to now", () => this.toNow(), { hidden: true, title: "L" }, "button.button.primary");
    this.state = h("span.state", {});
    this.filter = h("input.filter", {
      type: "search", "aria-label": "Filter entries", autocomplete: "off", spellcheck: "false",
      placeholder: "Filter: word, field:word, field>10, -word",
      oninput: () => this.tail.filter(parse(this.filter.value)),
    });
    this.jump = h("input.jump", {
      "aria-label": "Jump to a time or an ID", autocomplete: "off", spellcheck: "false",
      placeholder: "Jump: 12:30, 5m, or an ID",
      onkeydown: (/** @type {KeyboardEvent} */ event) => event.key === "Enter" && this.go(),
      oninput: () => this.jump.setCustomValidity(""),
    });
    this.menu = h("div.menu", { hidden: true, role: "group", "aria-label": "Columns" });
    this.columns = button("Columns", () => this.toggleMenu(), { "aria-expanded": "false" });
    this.download = h("select.download", { "aria-label": "Download the rows shown", title: "What is kept here and passes the filter", onchange: () => this.keep() },
      ...[["", "Download"], ["ndjson", "as NDJSON"], ["csv", "as CSV"]].map(([value, label]) => h("option", { value }, label)));
    this.empty = h("p.empty.over", { hidden: true });
    this.status = h("p.status");
    this.element = h(
      "div.live", {},
      h("div.bar", { role: "toolbar", "aria-label": "Live tail" },
        this.pause, this.now, this.filter, this.jump, h("div.anchor", {}, this.columns, this.menu), this.download),
      h("div.stage", {}, this.grid.element, this.empty),
      h("div.foot", {}, this.state, this.status),
    );
    this.listen();
    setInterval(() => this.tell(), 500);
  }

  listen() {
    const { tail, grid } = this;
    tail.addEventListener("rows", (event) => this.drawn(/** @type {CustomEvent} */ (event).detail ?? {}));
    tail.addEventListener("mode", () => this.tell());
    tail.addEventListener("arrived", (event) => {
      const { entries, live } = /** @type {CustomEvent} */ (event).detail;
      if (live && !document.hidden) arrived(entries.length);
    });
    tail.addEventListener("told", (event) => say(/** @type {CustomEvent} */ (event).detail.text));
    grid.addEventListener("left", () => this.hold());
    grid.addEventListener("start", () => tail.older().catch(() => undefined));
    grid.addEventListener("end", () => {
      if (tail.mode === "past") tail.newer().catch(() => undefined);
    });
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
    this.chosen = false;
    this.filter.value = "";
    this.tail.test = null;
    this.grid.setColumns([]);
    this.grid.show(this.tail.shown);
    return this.tail.open(stream);
  }

  /** @param {{before?: number, refiltered?: boolean}} detail */
  drawn(detail) {
    this.learn();
    if (detail.before) this.grid.shifted(detail.before);
    if (detail.refiltered) this.grid.selected = -1;
    if (this.tail.mode === "live") this.grid.sticky = true;
    this.grid.draw();
    this.tell();
  }

  /** New fields of the newest entries: the first few get a column, until somebody chooses. */
  learn() {
    const { rows } = this.tail;
    const known = this.fields.size;
    for (let i = Math.max(0, rows.length - 50); i < rows.length; i += 1) {
      const row = rows.at(i);
      if (row?.kind !== "entry") continue;
      for (const [name] of pairsOf(row.entry)) {
        if (!this.fields.has(name) && this.fields.size < COLUMNS_KNOWN_MAX) {
          this.fields.set(name, !this.chosen && this.shownFields().length < COLUMNS_SHOWN);
        }
      }
    }
    if (this.fields.size !== known) {
      this.grid.setColumns(this.shownFields());
      if (!this.menu.hidden) this.drawMenu();
    }
  }

  shownFields() {
    return [...this.fields].filter(([, shown]) => shown).map(([name]) => name);
  }

  toggleMenu() {
    this.menu.hidden = !this.menu.hidden;
    this.columns.setAttribute("aria-expanded", String(!this.menu.hidden));
    if (this.menu.hidden) return;
    this.drawMenu();
    this.menu.querySelector("input")?.focus();
  }

  drawMenu() {
    const lines = [...this.fields].map(([name, shown]) => {
      const box = h("input", {
        type: "checkbox",
        onchange: () => {
          this.chosen = true;
          this.fields.set(name, box.checked);
          this.grid.setColumns(this.shownFields());
          for (const one of box.closest("div").querySelectorAll("button")) one.disabled = !box.checked;
        },
      });
      box.checked = shown;
      const resize = (/** @type {string} */ sign, /** @type {string} */ word, /** @type {number} */ steps) =>
        button(sign, () => this.grid.widen(name, steps), { "aria-label": `${word} ${name}`, title: word, disabled: !shown }, "button.plain.tiny");
      return h("div.choice", {}, h("label.choice.grow", {}, box, h("bdi", {}, name)), resize("−", "Narrower", -1), resize("+", "Wider", 1));
    });
    fill(this.menu, ...(lines.length === 0 ? [h("span.muted", {}, "No field was seen yet.")] : lines));
  }

  /** Give the reader the entries that are shown, those out of sight too. */
  keep() {
    const form = this.download.value;
    this.download.value = "";
    const entries = this.tail.shown.entries();
    const name = `${this.tail.stream.replaceAll(/[^\w.-]+/g, "_")}.${form}`;
    if (form === "csv") save(name, "text/csv;charset=utf-8", csv(entries));
    else if (form === "ndjson") save(name, "application/x-ndjson", ndjson(entries));
    if (form !== "") say(`Downloaded ${plural(entries.length, "entry", "entries")}`);
  }

  hold() {
    if (this.tail.mode !== "live") return;
    this.tail.hold();
    this.grid.sticky = false;
    say("Paused");
  }

  toggle() {
    if (this.tail.mode === "live") this.hold();
    else if (this.tail.mode === "held") {
      this.grid.toEnd();
      this.tail.release();
      say("Live");
    } else this.toNow();
  }

  async toNow() {
    this.grid.show(this.tail.shown);
    await this.tail.toLive();
    say("Live, at the newest entries");
  }

  async go() {
    const id = parseJump(this.jump.value, Date.now());
    if (id === null) {
      this.jump.setCustomValidity("A time like 12:30 or 2026-01-31 12:30, a while ago like 5m, or an ID");
      this.jump.reportValidity();
      return;
    }
    this.grid.show(this.tail.shown);
    this.grid.sticky = false;
    await this.tail.jump(id);
    this.grid.scrollTo(0);
    const first = this.tail.span?.first;
    say(first === undefined ? "Nothing is there" : `At ${first}`);
    const at = this.tail.shown.findIndex((row) => row.kind === "entry");
    if (at >= 0) this.grid.select(at, false);
    this.grid.draw();
    this.grid.element.focus({ preventScroll: true });
    // So that there is something to scroll up to.
    await this.tail.older().catch(() => undefined);
  }

  /** What it is doing, in words. */
  tell() {
    const { tail } = this;
    const { phase } = tail.connection.state;
    const behindMs = this.behindMs();
    /** @type {Record<string, [string, string]>} */
    const words = {
      loading: ["wait", "Loading"],
      live: phase === "open" ? ["live", tail.caughtUp ? "Live" : "Catching up"] : ["away", "Not connected"],
      held: ["held", `Paused at ${clock(tail.since)}`],
      past: ["past", "History"],
    };
    const [tone, word] = words[tail.mode] ?? ["wait", ""];
    this.state.className = `state ${tone}`;
    write(this.state, word);
    write(this.pause, tail.mode === "live" ? "Pause" : tail.mode === "held" ? "Resume" : "Pause");
    this.pause.setAttribute("aria-pressed", String(tail.mode === "held"));
    this.pause.disabled = tail.mode === "past" || tail.mode === "loading";
    this.now.hidden = !(tail.mode === "past" || tail.mode === "held" || behindMs > BEHIND_MS_MAX);
    write(this.status, this.sentence(behindMs));
    this.empty.hidden = tail.shown.length > 0;
    write(this.empty, tail.error || (tail.rows.length > 0 ? "No entry that is kept here matches the filter." : tail.mode === "loading" ? "" : "Nothing here yet. What is published appears at once."));
  }

  /** How long ago the gateway gave the newest entry that is here, where more is waiting. */
  behindMs() {
    const last = this.tail.span?.last;
    return this.tail.mode === "live" && !this.tail.caughtUp && last !== undefined ? Date.now() - idMs(last) : 0;
  }

  /** @param {number} behindMs */
  sentence(behindMs) {
    const { tail } = this;
    const kept = tail.test === null ? `${plural(tail.rows.length, "row")} kept` : `${plural(tail.shown.length, "row")} shown`;
    if (tail.mode === "held") {
      const more = tail.starved ? " here, more wait in the stream" : "";
      return `${plural(tail.waiting, "new entry", "new entries")}${more} · ${kept}`;
    }
    if (tail.mode === "past") return `${kept}${tail.atEnd ? " · the newest is reached" : ""}`;
    return behindMs > BEHIND_MS_MAX ? `${duration(behindMs)} behind · ${kept}` : `${count(tail.total)} received · ${kept}`;
  }
}
