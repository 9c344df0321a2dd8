/*
 * Publishing by hand: one entry field by field, or many as lines of JSON.
 *
 * Knows: the form. Must never know: who reads what is published.
 */

import * as api from "../shared/api.js";
import { act } from "../shared/announce.js";
import { button, h } from "../shared/dom.js";
import { pairsOf } from "../shared/entry.js";
import { plural } from "../shared/format.js";

const LINES_SHOWN_MAX = 12;

export class Publish {
  constructor() {
    this.stream = "";
    /** How the values are written: "" for text. */
    this.encoding = "";
    this.notice = h("p.hint", { hidden: true }, "Names and values are base64, as the entry's bytes are no text. ");
    this.notice.append(button("Begin anew", () => this.fill([], ""), {}, "button.plain.tiny"));
    /** What a control was filled with, where showing it changes it: ends of lines. @type {WeakMap<Element, {shown: string, held: string}>} */
    this.filled = new WeakMap();
    this.pairs = h("div.pairs", { role: "group", "aria-label": "Fields" });
    this.id = h("input", { id: "publish-id", autocomplete: "off", spellcheck: "false", placeholder: "* (from the clock)" });
    this.lines = h("textarea", {
      id: "publish-lines",
      rows: 8,
      spellcheck: "false",
      placeholder: '{"sensor": "cellar", "temperature": 11.5}',
    });
    this.one = h("form.panel", { onsubmit: (/** @type {Event} */ event) => this.publish(event) },
      h("h2.small", {}, "One entry"),
      this.notice,
      this.pairs,
      h("div.actions.left", {}, button("Add field", () => this.add().focus())),
      h("div.field", {}, h("label", { for: "publish-id" }, "ID"), this.id),
      h("div.actions.left", {}, h("button.button.primary", { type: "submit" }, "Publish"), h("span.hint", {}, "Ctrl + Enter, in any of these")),
    );
    this.many = h("form.panel", { onsubmit: (/** @type {Event} */ event) => this.publishLines(event) },
      h("h2.small", {}, "Many entries"),
      h("div.field", {}, h("label", { for: "publish-lines" }, "One JSON object a line; all are stored, or none"), this.lines),
      h("div.actions.left", {}, h("button.button", { type: "submit" }, "Publish lines")),
    );
    this.element = h("div.publish", {}, this.one, this.many);
    this.element.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        const target = /** @type {HTMLElement} */ (event.target);
        target.closest("form")?.requestSubmit();
      }
    });
    this.add();
  }

  /** @param {string} stream */
  open(stream) {
    if (stream !== this.stream && this.encoding !== "") this.fill([], "");
    this.stream = stream;
  }

  /** Put an entry into the form, to be published as it is or with changes. @param {import("../shared/api.js").Entry} entry */
  again(entry) {
    this.fill(pairsOf(entry), entry.encoding ?? "");
    this.one.querySelector("input")?.focus();
  }

  /** @param {[string, string][]} pairs @param {string} encoding */
  fill(pairs, encoding) {
    this.encoding = encoding;
    this.notice.hidden = encoding === "";
    this.id.value = "";
    this.pairs.textContent = "";
    for (const [name, value] of pairs) this.add(name, value);
    if (pairs.length === 0) this.add();
  }

  /** One more pair of controls; the first of them. @param {string} [was] @param {string} [held] */
  add(was = "", held = "") {
    const name = h("input", { "aria-label": "Field name", placeholder: "field", autocomplete: "off", spellcheck: "false" });
    // An input of one line would drop the ends of lines.
    const lines = held.split("\n").length;
    const value = lines === 1 && !held.includes("\r")
      ? h("input", { "aria-label": "Value", placeholder: "value", autocomplete: "off", spellcheck: "false" })
      : h("textarea", { "aria-label": "Value", spellcheck: "false", rows: Math.min(LINES_SHOWN_MAX, lines) });
    for (const [control, text] of [[name, was], [value, held]]) {
      control.value = text;
      this.filled.set(control, { shown: control.value, held: text });
    }
    const row = h("div.pair", {}, name, value);
    row.append(
      button("Remove", () => {
        row.remove();
        if (this.pairs.childElementCount === 0) this.add();
        this.pairs.querySelector("input")?.focus();
      }, { "aria-label": "Remove this field" }, "button.plain"),
    );
    this.pairs.append(row);
    return name;
  }

  /** What was not changed goes as it was. @param {HTMLInputElement | undefined} control */
  textOf(control) {
    const filled = control && this.filled.get(control);
    return filled !== undefined && filled.shown === control?.value ? filled.held : control?.value ?? "";
  }

  /** @param {Event} event */
  async publish(event) {
    event.preventDefault();
    /** @type {[string, string][]} */
    const fields = [...this.pairs.children].map((row) => {
      const [name, value] = /** @type {NodeListOf<HTMLInputElement>} */ (row.querySelectorAll("input, textarea"));
      return [this.textOf(name), this.textOf(value)];
    });
    const id = this.id.value.trim();
    const entry = { fields: fields.filter(([name, value]) => name !== "" || value !== ""), ...(id === "" ? {} : { id }), ...(this.encoding === "" ? {} : { encoding: this.encoding }) };
    await act(() => api.publish(this.stream, entry), (found) => `Published ${found.id}`);
  }

  /** @param {Event} event */
  async publishLines(event) {
    event.preventDefault();
    const stored = await act(
      () => api.publishLines(this.stream, this.lines.value),
      (found) => `Published ${plural(found.count, "entry", "entries")}, the last is ${found.last_id}`,
    );
    if (stored) this.lines.value = "";
  }
}
