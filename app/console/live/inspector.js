/*
 * The inspector: one entry as a list of fields or as JSON, and the actions on it.
 *
 * Knows: entries, and how to show a value. Must never know: where the entry was found.
 */

import { attempt, toast } from "../shared/announce.js";
import * as api from "../shared/api.js";
import { ask } from "../shared/dialogs.js";
import { button, fill, h } from "../shared/dom.js";
import { idMs, pairsOf } from "../shared/entry.js";
import { formatBytes, formatDateTime, formatName, pluralize } from "../shared/format.js";
import { formatCurlPublish, formatCurlRead } from "./export.js";

/** @typedef {import("../shared/api.js").Entry} Entry */

const VALUE_CHARS_MAX = 64 << 10;
const HEX_BYTES_MAX = 4 << 10;
// A row of more would not fit into the inspector of a narrow window.
const HEX_ROW_BYTES = 8;
// A longer value scrolls, so it must be reachable with the keyboard.
const FOCUSABLE_CHARS_MIN = 400;

/** Fires `delete` with stream and ID, `copy` with an entry for the publish form. */
export class Inspector extends EventTarget {
  constructor() {
    super();
    this.element = h("aside.inspector", { "aria-label": "Entry", hidden: true, tabindex: -1 });
    this.id = "";
    this.stream = "";
    this.asJson = false;
    /** @type {Entry | null} */
    this.entry = null;
    this.again = button("Publish again…", () => this.dispatchEvent(new CustomEvent("copy", { detail: this.entry })), { "data-needs": "write" });
    /** Where the focus returns to. @type {HTMLElement | null} */
    this.opener = null;
  }

  /** @param {string} stream @param {Entry} entry */
  open(stream, entry) {
    if (this.element.hidden) this.opener = /** @type {HTMLElement | null} */ (document.activeElement);
    this.stream = stream;
    this.id = entry.id;
    this.element.hidden = false;
    this.draw(entry);
    this.element.focus({ preventScroll: true });
  }

  /** A closed stream takes nothing again. @param {boolean} isClosed */
  setClosed(isClosed) {
    this.again.hidden = isClosed;
  }

  /** @param {Entry} entry */
  draw(entry) {
    this.entry = entry;
    const pairs = pairsOf(entry);
    const chars = pairs.reduce((sum, [name, value]) => sum + name.length + value.length, 0);
    const header = h("header", {}, h("h2", {}, entry.id), button("Close", () => this.close(), { "aria-label": "Close the entry", title: "Esc" }, "button.plain"));
    const summary = `${formatDateTime(idMs(entry.id))} · ${pluralize(pairs.length, "field")} · ${formatBytes(chars)}`;
    const remove = button("Delete…", () => this.deleteEntry(), { "data-needs": "write" }, "button.button.danger-quiet");
    if (entry.fields === null) {
      fill(this.element, header, h("p.muted", {}, formatDateTime(idMs(entry.id))), h("p.empty", {}, "This entry was deleted."), h("div.actions.left.wrap", {}, remove));
      return;
    }
    const choose = (/** @type {string} */ label, /** @type {boolean} */ asJson) =>
      button(label, () => this.setForm(entry, asJson), { "aria-pressed": String(this.asJson === asJson) }, "button.button.choice-of");
    fill(
      this.element,
      header,
      h("p.muted", {}, summary),
      h("div.bar.forms", { role: "group", "aria-label": "Show as" }, choose("Fields", false), choose("JSON", true)),
      this.asJson ? makeJson(entry) : h("dl.fields", {}, ...pairs.flatMap(([name, value]) => makeField(name, value, entry.encoding))),
      h("div.actions.left.wrap", {}, ...this.makeCopyActions(entry), remove),
    );
  }

  /** @param {Entry} entry */
  makeCopyActions(entry) {
    const { origin } = location;
    return [
      button("Copy as JSON", () => copy(JSON.stringify(entry, null, 2))),
      button("Copy as curl", () => copy(formatCurlRead(origin, this.stream, entry.id)), { title: "A command that reads this entry" }),
      button("Copy as curl to publish", () => copy(formatCurlPublish(origin, this.stream, entry)), { title: "A command that publishes these fields again" }),
      this.again,
    ];
  }

  /** @param {Entry} entry @param {boolean} asJson */
  setForm(entry, asJson) {
    this.asJson = asJson;
    this.draw(entry);
    /** @type {HTMLElement | null} */ (this.element.querySelector('[aria-pressed="true"]'))?.focus();
  }

  async deleteEntry() {
    const { id, stream } = this;
    const values = await ask({
      title: "Delete this entry?",
      text: `This removes ${id} from ${stream} for all readers. A group that has not acknowledged it keeps its ID as pending.`,
      submit: "Delete entry",
      dangerous: true,
    });
    if (values === null) return;
    if (await attempt(() => api.deleteEntries(stream, [id]), ({ deleted }) => (deleted ? `Deleted ${id}` : `${id} was already deleted`))) {
      this.dispatchEvent(new CustomEvent("delete", { detail: { stream, id } }));
      this.close();
    }
  }

  close() {
    if (this.element.hidden) return;
    this.element.hidden = true;
    fill(this.element);
    this.opener?.focus?.({ preventScroll: true });
  }
}

/** @param {string} name @param {string} value @param {string | undefined} encoding */
function makeField(name, value, encoding) {
  const text = encoding === "base64" ? formatHex(value) : indentJson(value);
  const label = h("dt", {}, h("span.name", {}, formatName(name)), button("Copy", () => copy(value), { "aria-label": `Copy ${formatName(name)}` }, "button.plain.tiny"));
  return [label, h("dd", {}, ...makeText(text, formatName(name)))];
}

/** The entry as the API returns it. @param {Entry} entry */
const makeJson = (entry) => h("div.fields", {}, ...makeText(JSON.stringify(entry, null, 2), "The entry as JSON", ".json"));

/** A text, cut off at a limit with a button for the rest. @param {string} text @param {string} label @param {string} [kind] */
function makeText(text, label, kind = "") {
  const isLong = text.length > FOCUSABLE_CHARS_MIN || kind !== "";
  const box = h(`pre.value${kind}`, isLong ? { tabindex: 0, "aria-label": label } : {}, text.slice(0, VALUE_CHARS_MAX));
  return [box, text.length > VALUE_CHARS_MAX && button(`Show all ${formatBytes(text.length)}`, () => fill(box, text))];
}

/** Indent JSON; any other text stays as it is. @param {string} value */
function indentJson(value) {
  if (!/^\s*[[{]/.test(value) || value.length > VALUE_CHARS_MAX) return value;
  try {
    return JSON.stringify(JSON.parse(value), null, 2);
  } catch {
    return value;
  }
}

/** @param {string} base64 */
function formatHex(base64) {
  let raw;
  try {
    raw = atob(base64);
  } catch {
    return base64;
  }
  const lines = [];
  for (let start = 0; start < Math.min(raw.length, HEX_BYTES_MAX); start += HEX_ROW_BYTES) {
    const codes = [...raw.slice(start, start + HEX_ROW_BYTES)].map((char) => char.charCodeAt(0));
    const digits = codes.map((code) => code.toString(16).padStart(2, "0")).join(" ");
    const chars = codes.map((code) => (code >= 32 && code < 127 ? String.fromCharCode(code) : "·")).join("");
    lines.push(`${start.toString(16).padStart(4, "0")}  ${digits.padEnd(3 * HEX_ROW_BYTES - 1)}  ${chars}`);
  }
  if (raw.length > HEX_BYTES_MAX) lines.push(`… ${formatBytes(raw.length)} in total`);
  return lines.join("\n");
}

/** @param {string} text */
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied");
  } catch {
    toast("The browser does not allow copying here. Select the text instead.", "bad");
  }
}
