/*
 * The form that publishes: one entry field by field, or many entries as lines of JSON.
 *
 * Knows: the form. Must never know: the readers of what is published.
 */

import { attempt } from "../shared/announce.js";
import * as api from "../shared/api.js";
import { button, h } from "../shared/dom.js";
import { pairsOf } from "../shared/entry.js";
import { countEntries } from "../shared/format.js";

const LINES_SHOWN_MAX = 12;

export class PublishForm {
  constructor() {
    this.stream = "";
    /** The encoding of names and values, "" for text. */
    this.encoding = "";
    this.notice = h("p.hint", { hidden: true }, "Names and values are base64, because the entry is binary. ");
    this.notice.append(button("Start with text", () => this.fill([], ""), {}, "button.plain.tiny"));
    /** The text a control was filled with, where the control shows it differently (line ends).
     * @type {WeakMap<Element, {shown: string, original: string}>} */
    this.originals = new WeakMap();
    this.pairs = h("div.pairs", { role: "group", "aria-label": "Fields" });
    this.id = h("input", { id: "publish-id", autocomplete: "off", spellcheck: "false", placeholder: "* (generated)" });
    this.lines = h("textarea", {
      id: "publish-lines",
      rows: 8,
      spellcheck: "false",
      placeholder: '{"sensor": "cellar", "temperature": 11.5}',
    });
    this.one = h("form.panel", { onsubmit: (/** @type {Event} */ event) => this.publish(event) }, h("fieldset", {},
      h("h2.small", {}, "One entry"),
      this.notice,
      this.pairs,
      h("div.actions.left", {}, button("Add field", () => this.addPair().focus())),
      h("div.field", {}, h("label", { for: "publish-id" }, "ID"), this.id),
      h("div.actions.left", {}, h("button.button.primary", { type: "submit" }, "Publish"), h("span.hint", {}, "or Ctrl + Enter")),
    ));
    this.many = h("form.panel", { onsubmit: (/** @type {Event} */ event) => this.publishLines(event) }, h("fieldset", {},
      h("h2.small", {}, "Many entries"),
      h("div.field", {}, h("label", { for: "publish-lines" }, "One JSON object per line"), this.lines, h("span.hint", {}, "All entries are stored, or none.")),
      h("div.actions.left", {}, h("button.button", { type: "submit" }, "Publish lines")),
    ));
    this.closed = h("p.notice.info", { hidden: true }, "This stream is closed: it takes no entries any more.");
    this.element = h("div", {}, this.closed, h("div.publish", {}, this.one, this.many));
    this.element.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        const target = /** @type {HTMLElement} */ (event.target);
        if (this.closed.hidden) target.closest("form")?.requestSubmit();
      }
    });
    this.addPair();
  }

  /** @param {string} stream */
  open(stream) {
    if (stream !== this.stream && this.encoding !== "") this.fill([], "");
    this.stream = stream;
  }

  /** @param {boolean} isClosed */
  setClosed(isClosed) {
    this.closed.hidden = !isClosed;
    for (const controls of this.element.querySelectorAll("fieldset")) controls.disabled = isClosed;
  }

  /** Copy an entry into the form, to publish it with or without changes. @param {import("../shared/api.js").Entry} entry */
  copy(entry) {
    this.fill(pairsOf(entry), entry.encoding ?? "");
    this.one.querySelector("input")?.focus();
  }

  /** @param {[string, string][]} pairs @param {string} encoding */
  fill(pairs, encoding) {
    this.encoding = encoding;
    this.notice.hidden = encoding === "";
    this.id.value = "";
    this.pairs.textContent = "";
    for (const [name, value] of pairs) this.addPair(name, value);
    if (pairs.length === 0) this.addPair();
  }

  /** Add a name and a value; returns the control of the name. @param {string} [name] @param {string} [value] */
  addPair(name = "", value = "") {
    const common = { autocomplete: "off", spellcheck: "false" };
    const nameControl = h("input", { "aria-label": "Field name", placeholder: "field", ...common });
    // An input of one line would drop line ends.
    const lineCount = value.split("\n").length;
    const valueControl = lineCount === 1 && !value.includes("\r")
      ? h("input", { "aria-label": "Value", placeholder: "value", ...common })
      : h("textarea", { "aria-label": "Value", rows: Math.min(LINES_SHOWN_MAX, lineCount), ...common });
    for (const [control, original] of [[nameControl, name], [valueControl, value]]) {
      control.value = original;
      this.originals.set(control, { shown: control.value, original });
    }
    const remove = button("Remove", () => {
      row.remove();
      if (this.pairs.childElementCount === 0) this.addPair();
      this.pairs.querySelector("input")?.focus();
    }, { "aria-label": "Remove this field" }, "button.plain");
    const row = h("div.pair", {}, nameControl, valueControl, remove);
    this.pairs.append(row);
    return nameControl;
  }

  /** The text of a control; the original if it was not changed. @param {HTMLInputElement} control */
  read(control) {
    const filled = this.originals.get(control);
    return filled?.shown === control.value ? filled.original : control.value;
  }

  /** @param {Event} event */
  async publish(event) {
    event.preventDefault();
    const fields = [...this.pairs.children].map((row) => {
      const [name = "", value = ""] = [...row.querySelectorAll("input, textarea")].map((control) => this.read(control));
      return /** @type {[string, string]} */ ([name, value]);
    });
    const id = this.id.value.trim();
    const entry = {
      fields: fields.filter(([name, value]) => name !== "" || value !== ""),
      ...(id === "" ? {} : { id }),
      ...(this.encoding === "" ? {} : { encoding: this.encoding }),
    };
    await attempt(() => api.publish(this.stream, entry), (result) => `Published ${result.id}`);
  }

  /** @param {Event} event */
  async publishLines(event) {
    event.preventDefault();
    const isStored = await attempt(
      () => api.publishLines(this.stream, this.lines.value),
      (result) => `Published ${countEntries(result.count)}, the last is ${result.last_id}`,
    );
    if (isStored) this.lines.value = "";
  }
}
