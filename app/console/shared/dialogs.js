/*
 * Questions: a dialog with fields, one answer or none.
 *
 * Knows: fields, focus, the keyboard. Must never know: what the answer is for.
 */

import { toast } from "./announce.js";
import { button, h, write } from "./dom.js";

/** @typedef {{name: string, label: string, value?: string, type?: string, hint?: string, required?: boolean,
 *   options?: [string, string][], list?: string[], min?: number}} Field */
/**
 * @typedef {object} Question
 * @property {string} title
 * @property {string} [text]
 * @property {Field[]} [fields]
 * @property {string} go what the button says
 * @property {boolean} [dangerous]
 * @property {string} [typed] what has to be typed before it goes
 * @property {(values: Record<string, string>) => Promise<string>} [preview] told while the fields change
 * @property {(values: Record<string, string>) => Promise<string>} [work] done before the dialog closes, and told;
 *   where it is refused the dialog says why and stays, with all that was typed
 */

let serials = 0;

/** @param {Question} question @returns {Promise<Record<string, string> | null>} null where it was left */
export function ask(question) {
  serials += 1;
  const titleId = `dialog-${serials}`;
  const fields = [...(question.fields ?? [])];
  if (question.typed !== undefined) {
    fields.push({ name: "typed", label: `Type ${question.typed} to go on`, required: true });
  }
  const inputs = fields.map((field) => input(field, `${titleId}-${field.name}`));
  const told = h("p.preview", { "aria-live": "polite" });
  const refused = h("p.refused", { role: "alert" });
  const go = h(question.dangerous ? "button.button.danger" : "button.button.primary", { type: "submit" }, question.go);
  const form = h(
    "form",
    { novalidate: true },
    h("h2", { id: titleId }, question.title),
    question.text && h("p", {}, question.text),
    ...inputs.map(({ element }) => element),
    told,
    refused,
  );
  const dialog = h("dialog.dialog", { "aria-labelledby": titleId }, form);
  form.append(h("div.actions", {}, button("Cancel", () => dialog.close()), go));

  const values = () => Object.fromEntries(inputs.map(({ field, control }) => [field.name, control.value]));
  const ready = () =>
    inputs.every(({ field, control }) => !field.required || control.value !== "") &&
    (question.typed === undefined || values().typed === question.typed);
  let asked = 0;
  let isBusy = false;
  const changed = async () => {
    go.disabled = isBusy || !ready();
    if (question.preview === undefined) return;
    asked += 1;
    const mine = asked;
    const text = ready() ? await question.preview(values()).catch((error) => String(error.message ?? error)) : "";
    if (mine === asked) write(told, text);
  };
  return new Promise((resolve) => {
    /** @type {Record<string, string> | null} */
    let answer = null;
    form.addEventListener("input", changed);
    form.addEventListener("submit", async (/** @type {Event} */ event) => {
      event.preventDefault();
      if (isBusy || !ready()) return;
      const given = values();
      if (question.work !== undefined) {
        isBusy = go.disabled = true;
        write(refused, "");
        try {
          toast(await question.work(given));
        } catch (error) {
          write(refused, error instanceof Error ? error.message : String(error));
          return;
        } finally {
          isBusy = go.disabled = false;
        }
      }
      answer = given;
      dialog.close();
    });
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(answer);
    });
    document.body.append(dialog);
    changed();
    dialog.showModal();
  });
}

/** @param {Field} field @param {string} id */
function input(field, id) {
  const hint = field.hint ? h("span.hint", { id: `${id}-hint` }, field.hint) : null;
  const common = { id, name: field.name, "aria-describedby": field.hint ? `${id}-hint` : null };
  const control = field.options
    ? h("select", common, ...field.options.map(([value, label]) => h("option", { value }, label)))
    : h("input", {
        ...common,
        type: field.type ?? "text",
        min: field.min,
        required: field.required,
        autocomplete: "off",
        spellcheck: "false",
        list: field.list ? `${id}-list` : null,
      });
  if (field.value !== undefined) control.value = field.value;
  const known = field.list ? h("datalist", { id: `${id}-list` }, ...field.list.map((value) => h("option", { value }))) : null;
  return { field, control, element: h("div.field", {}, h("label", { for: id }, field.label), control, hint, known) };
}

/** A page of text with a way out. @param {string} title @param {Node[]} inside */
export function show(title, ...inside) {
  serials += 1;
  const titleId = `dialog-${serials}`;
  const dialog = h("dialog.dialog", { "aria-labelledby": titleId }, h("h2", { id: titleId }, title), ...inside);
  dialog.append(h("div.actions", {}, button("Close", () => dialog.close(), {}, "button.button.primary")));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
