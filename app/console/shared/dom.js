/*
 * Elements from code: the one place where the page makes them.
 *
 * Knows: tags, attributes, text, which characters are hidden. Must never know: markup. Text from a stream becomes a text node or the value of a
 * harmless attribute; neither this module nor its callers ever parse a string as HTML.
 */

import { formatCode, showHidden, splitHidden } from "./format.js";

/** @typedef {Node | string | number | null | undefined | false} Child */
/** @typedef {Record<string, string | number | boolean | null | undefined | ((event: any) => void)>} Attributes */

// No attribute may carry code or style: `on…` takes functions only, and links stay on this page.
const FORBIDDEN = new Set(["style", "srcdoc", "src", "innerHTML"]);
// What browsers and screen readers show as plain text.
const SHOWN = new Set(["title", "aria-label", "placeholder"]);
// Elements for hidden characters in one text; a text with more is escaped.
const CODES_MAX = 1_000;

/**
 * Make an element: `h("td.number", { title: "…" }, "text", child)`.
 * @param {string} kind tag and classes, separated by dots
 * @param {Attributes} [attributes] functions (`onclick`) become listeners; `true` is an attribute without a value
 * @param {...Child} children
 * @returns {any} any, because a caller knows which element it asked for
 */
export function h(kind, attributes = {}, ...children) {
  const [tag = "div", ...classes] = kind.split(".");
  const element = document.createElement(tag);
  if (classes.length > 0) element.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") {
      element.addEventListener(name.slice(2), value);
    } else if (FORBIDDEN.has(name) || name.startsWith("on") || (name === "href" && !String(value).startsWith("#"))) {
      throw new Error(`the attribute ${name} is not allowed in this page`);
    } else {
      const text = value === true ? "" : String(value);
      element.setAttribute(name, SHOWN.has(name) ? showHidden(text) : text);
    }
  }
  append(element, children);
  return element;
}

/**
 * @param {Node} parent
 * @param {Child[]} children
 */
function append(parent, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (child instanceof Node) parent.appendChild(child);
    else appendText(parent, String(child));
  }
}

/**
 * Hidden characters are shown by their code, each in an element of its own, so that none changes the order of others.
 * The text of the element stays as it is, also when it is copied.
 * @param {Node} parent @param {string} text
 */
function appendText(parent, text) {
  const parts = splitHidden(text);
  if (parent instanceof HTMLOptionElement || parts.length > 2 * CODES_MAX) {
    parent.appendChild(document.createTextNode(showHidden(text)));
    return;
  }
  for (const [index, part] of parts.entries()) {
    if (index % 2 === 0) parent.appendChild(document.createTextNode(part));
    else parent.appendChild(makeCode(part));
  }
}

/** @param {string} character */
function makeCode(character) {
  const element = document.createElement("span");
  element.className = "code";
  element.dataset.code = formatCode(character);
  element.textContent = character;
  return element;
}

/**
 * Replace all children.
 * @param {Element} parent
 * @param {...Child} children
 */
export function fill(parent, ...children) {
  parent.textContent = "";
  append(parent, children);
}

/**
 * Set a text if it differs, so that unchanged text causes no layout.
 * @param {Element} element
 * @param {string} text
 */
export function setText(element, text) {
  if (element.textContent === text) return;
  if (splitHidden(text).length === 1) element.textContent = text;
  else fill(element, text);
}

/**
 * Make a button.
 * @param {string} label
 * @param {(event: any) => void} onclick
 * @param {Attributes} [attributes]
 * @param {string} [kind]
 * @returns {HTMLButtonElement}
 */
export function button(label, onclick, attributes = {}, kind = "button") {
  return h(kind, { type: "button", onclick, ...attributes }, label);
}

/**
 * Make a table that scrolls sideways where it does not fit.
 * @param {string} caption for screen readers @param {any[]} heads the cells of its head @param {Element} body
 */
export function makeTable(caption, heads, body) {
  return h("div.sideways", {}, h("table.list", {}, h("caption.unseen", {}, caption), h("thead", {}, h("tr", {}, ...heads)), body));
}

/**
 * Make a head cell; the head of a column without a name is no header.
 * @param {string} label @param {boolean} [isNumber]
 */
export const makeHead = (label, isNumber = false) => (label === "" ? h("td") : h(isNumber ? "th.number" : "th", { scope: "col" }, label));

/**
 * Save a text as a file.
 * @param {string} name @param {string} type @param {string} text
 */
export function save(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  // The download starts while the click is handled; the URL is not needed after that.
  setTimeout(() => URL.revokeObjectURL(link.href), 1_000);
}

/** @template T @typedef {{element: Element, update: (item: T) => void}} Row */

/**
 * Update keyed children in order. Existing elements are reused, so that focus and selection survive.
 * @template T
 * @param {Element} parent
 * @param {Map<string, Row<T>>} rows the rows by key, kept between calls
 * @param {Iterable<[string, T]>} items
 * @param {(item: T) => Row<T>} make
 */
export function reconcile(parent, rows, items, make) {
  const seen = new Set();
  /** @type {ChildNode | null} */
  let next = parent.firstChild;
  for (const [key, item] of items) {
    seen.add(key);
    let row = rows.get(key);
    if (row === undefined) {
      row = make(item);
      rows.set(key, row);
    }
    row.update(item);
    if (row.element === next) next = next.nextSibling;
    else parent.insertBefore(row.element, next);
  }
  for (const [key, row] of rows) {
    if (!seen.has(key)) {
      row.element.remove();
      rows.delete(key);
    }
  }
}
