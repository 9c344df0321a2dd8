/*
 * One entry, whole: every field as it is stored, or all of it as JSON.
 *
 * Knows: entries and ways to look at a value. Must never know: where the entry was found.
 */

import * as api from "../shared/api.js";
import { act, toast } from "../shared/announce.js";
import { ask } from "../shared/dialogs.js";
import { button, fill, h } from "../shared/dom.js";
import { curlPublish, curlRead } from "./export.js";
import { idMs, pairsOf } from "../shared/entry.js";
import { bytes, moment } from "../shared/format.js";

/** @typedef {import("../shared/api.js").Entry} Entry */

const VALUE_CHARS_MAX = 64 << 10;
const HEX_BYTES_MAX = 4 << 10;

/** Fires `closed`, `deleted` with stream and ID, `again` with an entry to publish once more. */
export class Inspector extends EventTarget {
  constructor() {
    super();
    this.element = h("aside.inspector", { "aria-label": "Entry", hidden: true, tabindex: -1 });
    this.id = "";
    this.stream = "";
    this.asJson = false;
    /** @type {HTMLElement | null} */
    this.cameFrom = null;
  }

  /** @param {string} stream @param {Entry} entry */
  open(stream, entry) {
    if (this.element.hidden) this.cameFrom = /** @type {HTMLElement | null} */ (document.activeElement);
    this.stream = stream;
    this.id = entry.id;
    this.element.hidden = false;
    this.draw(entry);
    this.element.focus({ preventScroll: true });
  }

  /** @param {Entry} entry */
  draw(entry) {
    const pairs = pairsOf(entry);
    const chars = pairs.reduce((sum, [name, value]) => sum + name.length + value.length, 0);
    const { origin } = location;
    const toggle = (/** @type {string} */ label, /** @type {boolean} */ asJson) =>
      button(label, () => this.turn(entry, asJson), { "aria-pressed": String(this.asJson === asJson) }, "button.button.choice-of");
    const isGone = entry.fields === null;
    const inside = this.asJson ? json(entry) : h("dl.fields", {}, ...this.fields(entry, pairs));
    fill(
      this.element,
      h("header", {}, h("h2", {}, entry.id), button("Close", () => this.close(), { "aria-label": "Close the entry", title: "Escape" }, "button.plain")),
      h("p.muted", {}, `${moment(idMs(entry.id))} · ${pairs.length} ${pairs.length === 1 ? "field" : "fields"} · ${bytes(chars)}`),
      isGone ? h("p.empty", {}, "This entry was deleted.") : h("div.bar.forms", { role: "group", "aria-label": "Show as" }, toggle("Fields", false), toggle("JSON", true)),
      isGone ? null : inside,
      h("div.actions.left.wrap", {},
        isGone ? null : button("Copy as JSON", () => copy(JSON.stringify(entry, null, 2))),
        isGone ? null : button("Copy as curl", () => copy(curlRead(origin, this.stream, entry.id)), { title: "A command that reads this entry" }),
        isGone ? null : button("Copy as curl to publish", () => copy(curlPublish(origin, this.stream, entry)), { title: "A command that publishes these fields again" }),
        isGone ? null : button("Publish again…", () => this.dispatchEvent(new CustomEvent("again", { detail: entry }))),
        button("Delete…", () => this.remove(), {}, "button.button.danger-quiet")),
    );
  }

  /** @param {Entry} entry @param {boolean} asJson */
  turn(entry, asJson) {
    this.asJson = asJson;
    this.draw(entry);
    /** @type {HTMLElement | null} */ (this.element.querySelector('[aria-pressed="true"]'))?.focus();
  }

  /** @param {Entry} entry @param {[string, string][]} pairs */
  fields(entry, pairs) {
    return pairs.flatMap(([name, value]) => {
      const text = entry.encoding === "base64" ? hex(value) : pretty(value);
      const box = h("pre.value", { tabindex: text.length > 400 ? 0 : null, "aria-label": text.length > 400 ? name : null }, text.slice(0, VALUE_CHARS_MAX));
      const more = text.length > VALUE_CHARS_MAX ? button(`Show all ${bytes(text.length)}`, () => fill(box, text)) : null;
      const label = h("dt", {}, h("span.name", {}, name), button("Copy", () => copy(value), { "aria-label": `Copy ${name}` }, "button.plain.tiny"));
      return [label, h("dd", {}, box, more)];
    });
  }

  async remove() {
    const { id, stream } = this;
    const sure = await ask({
      title: "Delete this entry?",
      text: `${id} leaves ${stream} for all readers. Groups that have not acknowledged it keep an ID without an entry.`,
      go: "Delete entry",
      dangerous: true,
    });
    if (sure === null) return;
    if (await act(() => api.deleteEntries(stream, [id]), ({ deleted }) => (deleted ? `Deleted ${id}` : `${id} was gone already`))) {
      this.dispatchEvent(new CustomEvent("deleted", { detail: { stream, id } }));
      this.close();
    }
  }

  close() {
    if (this.element.hidden) return;
    this.element.hidden = true;
    fill(this.element);
    this.cameFrom?.focus?.({ preventScroll: true });
    this.dispatchEvent(new Event("closed"));
  }
}

/** The entry as the API gives it. @param {Entry} entry */
function json(entry) {
  const text = JSON.stringify(entry, null, 2);
  const box = h("pre.value.json", { tabindex: 0, "aria-label": "The entry as JSON" }, text.slice(0, VALUE_CHARS_MAX));
  return h("div.fields", {}, box, text.length > VALUE_CHARS_MAX && button(`Show all ${bytes(text.length)}`, () => fill(box, text)));
}

/** JSON in lines, where it is JSON and nothing is changed by that but space. @param {string} value */
function pretty(value) {
  if (!/^\s*[[{]/.test(value) || value.length > VALUE_CHARS_MAX) return value;
  try {
    return JSON.stringify(JSON.parse(value), null, 2);
  } catch {
    return value;
  }
}

/** @param {string} base64 */
function hex(base64) {
  let raw;
  try {
    raw = atob(base64);
  } catch {
    return base64;
  }
  const lines = [];
  for (let at = 0; at < Math.min(raw.length, HEX_BYTES_MAX); at += 16) {
    const codes = [...raw.slice(at, at + 16)].map((letter) => letter.charCodeAt(0));
    const digits = codes.map((code) => code.toString(16).padStart(2, "0")).join(" ");
    const letters = codes.map((code) => (code >= 32 && code < 127 ? String.fromCharCode(code) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${digits.padEnd(47)}  ${letters}`);
  }
  if (raw.length > HEX_BYTES_MAX) lines.push(`… ${bytes(raw.length)} in all`);
  return lines.join("\n");
}

/** @param {string} text */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied");
  } catch {
    toast("The browser allows no copying here: select the text instead", "bad");
  }
}

