/*
 * Publishing by hand: one entry field by field, or many as lines of JSON.
 *
 * Knows: the form. Must never know: who reads what is published.
 */

import * as api from "./api.js";
import { act } from "./announce.js";
import { button, h } from "./dom.js";
import { plural } from "./format.js";

export class Publish {
  constructor() {
    this.stream = "";
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
    this.stream = stream;
  }

  /** One more pair of inputs; the first of them. */
  add() {
    const name = h("input", { "aria-label": "Field name", placeholder: "field", autocomplete: "off", spellcheck: "false" });
    const value = h("input", { "aria-label": "Value", placeholder: "value", autocomplete: "off", spellcheck: "false" });
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

  /** @param {Event} event */
  async publish(event) {
    event.preventDefault();
    /** @type {[string, string][]} */
    const fields = [...this.pairs.children].map((row) => {
      const [name, value] = row.querySelectorAll("input");
      return [name?.value ?? "", value?.value ?? ""];
    });
    const id = this.id.value.trim();
    const entry = { fields: fields.filter(([name, value]) => name !== "" || value !== ""), ...(id === "" ? {} : { id }) };
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
