/*
 * Dialogs: a form that ends with its values or is cancelled, and a text that can be closed.
 *
 * Knows: fields, focus, the keyboard. Must never know: what the values are for.
 */

import { toast } from "./announce.js";
import { button, h, setText } from "./dom.js";
import { formatError } from "./format.js";

/** @typedef {{name: string, label: string, value?: string, type?: string, hint?: string, required?: boolean,
 *   options?: [string, string][], list?: string[], min?: number}} Field */
/** @typedef {Record<string, string>} Values by the names of the fields */
/**
 * @typedef {object} Question
 * @property {string} title
 * @property {string} [text]
 * @property {Field[]} [fields]
 * @property {string} submit the label of the button that submits
 * @property {boolean} [dangerous]
 * @property {string} [confirm] a text that must be typed before the form can be submitted
 * @property {(values: Values) => Promise<string>} [preview] shown while the fields change
 * @property {(values: Values) => Promise<string>} [work] runs before the dialog closes; its result is a toast. If it
 *   fails, the dialog shows why and stays open with its values
 */

let dialogCount = 0;

/** @param {Question} question @returns {Promise<Values | null>} null if it was cancelled */
export function ask(question) {
  const { title, titleId } = makeTitle(question.title);
  const form = h("form", { novalidate: true }, title, question.text && h("p", {}, question.text));
  const fields = [...(question.fields ?? [])];
  if (question.confirm !== undefined) {
    fields.push({ name: "confirm", label: `Type ${question.confirm} to confirm`, required: true });
  }
  const inputs = fields.map((field) => makeInput(field, `${titleId}-${field.name}`));
  const preview = h("p.preview", { "aria-live": "polite" });
  const problem = h("p.problem", { role: "alert" });
  const submit = h(question.dangerous ? "button.button.danger" : "button.button.primary", { type: "submit" }, question.submit);
  const dialog = h("dialog.dialog", { "aria-labelledby": titleId }, form);
  form.append(
    ...inputs.map(({ element }) => element),
    preview,
    problem,
    h("div.actions", {}, button("Cancel", () => dialog.close()), submit),
  );

  const readValues = () => Object.fromEntries(inputs.map(({ field, control }) => [field.name, control.value]));
  const isReady = () =>
    inputs.every(({ field, control }) => !field.required || control.value !== "") &&
    (question.confirm === undefined || readValues().confirm === question.confirm);
  let previewCount = 0;
  let isBusy = false;
  const update = async () => {
    submit.disabled = isBusy || !isReady();
    if (question.preview === undefined) return;
    previewCount += 1;
    const current = previewCount;
    const text = isReady() ? await question.preview(readValues()).catch(formatError) : "";
    if (current === previewCount) setText(preview, text);
  };
  /** @param {Values} values @returns {Promise<boolean>} whether the dialog may close */
  const run = async (values) => {
    if (question.work === undefined) return true;
    isBusy = submit.disabled = true;
    setText(problem, "");
    try {
      toast(await question.work(values));
      return true;
    } catch (error) {
      setText(problem, formatError(error));
      return false;
    } finally {
      isBusy = submit.disabled = false;
    }
  };
  return new Promise((resolve) => {
    /** @type {Values | null} */
    let answer = null;
    form.addEventListener("input", update);
    form.addEventListener("submit", async (/** @type {Event} */ event) => {
      event.preventDefault();
      if (isBusy || !isReady()) return;
      const values = readValues();
      if (!(await run(values))) return;
      answer = values;
      dialog.close();
    });
    dialog.addEventListener("close", () => resolve(answer));
    open(dialog);
    update();
  });
}

/** Show a text with a button that closes it. @param {string} text of the title @param {Node[]} children */
export function show(text, ...children) {
  const { title, titleId } = makeTitle(text);
  const dialog = h("dialog.dialog", { "aria-labelledby": titleId }, title, ...children);
  dialog.append(h("div.actions", {}, button("Close", () => dialog.close(), {}, "button.button.primary")));
  open(dialog);
}

/** @param {string} text */
function makeTitle(text) {
  dialogCount += 1;
  const titleId = `dialog-${dialogCount}`;
  return { titleId, title: h("h2", { id: titleId }, text) };
}

/** @param {HTMLDialogElement} dialog */
function open(dialog) {
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

/** @param {Field} field @param {string} id */
function makeInput(field, id) {
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
  const suggestions = field.list ? h("datalist", { id: `${id}-list` }, ...field.list.map((value) => h("option", { value }))) : null;
  return { field, control, element: h("div.field", {}, h("label", { for: id }, field.label), control, hint, suggestions) };
}
