/*
 * Elements out of code: the one place where the page makes them.
 *
 * Knows: tags, attributes, text. Must never know: markup. Whatever comes from a stream goes in as text nodes or as
 * the value of an attribute that holds text; nothing here, and nothing that uses it, reads a string as HTML.
 */

/** @typedef {Node | string | number | null | undefined | false} Child */
/** @typedef {Record<string, string | number | boolean | null | undefined | ((event: any) => void)>} Attributes */

// An attribute that is code or style has no business here: `on…` takes functions alone, and links stay on this page.
const FORBIDDEN = new Set(["style", "srcdoc", "src", "innerHTML"]);

/**
 * An element: `h("td.number", { title: "…" }, "text", child)`.
 * @param {string} kind tag and classes, with dots between
 * @param {Attributes} [attributes] `onclick` and the like are listeners; `true` is an attribute without value
 * @param {...Child} children
 * @returns {any} any, for a caller knows which element it asked for
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
      throw new Error(`the attribute ${name} is not for this page`);
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  add(element, children);
  return element;
}

/**
 * @param {Node} parent
 * @param {Child[]} children
 */
function add(parent, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    parent.appendChild(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/**
 * Put these children in the place of all others.
 * @param {Element} parent
 * @param {...Child} children
 */
export function fill(parent, ...children) {
  parent.textContent = "";
  add(parent, children);
}

/**
 * Set a text where it differs: what does not change is not laid out again.
 * @param {Element} element
 * @param {string} text
 */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * A button that says what it does.
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
 * Give the reader a file to keep.
 * @param {string} name @param {string} type @param {string} text
 */
export function save(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  // The browser has taken it once the click was handled.
  setTimeout(() => URL.revokeObjectURL(link.href), 1_000);
}

/**
 * Keep keyed children in order without making anew what is there: focus and selection survive.
 * @template T
 * @param {Element} parent
 * @param {Map<string, {element: Element, update: (item: T) => void}>} kept
 * @param {Iterable<[string, T]>} items
 * @param {(item: T) => {element: Element, update: (item: T) => void}} make
 */
export function reconcile(parent, kept, items, make) {
  const seen = new Set();
  /** @type {ChildNode | null} */
  let place = parent.firstChild;
  for (const [key, item] of items) {
    seen.add(key);
    let row = kept.get(key);
    if (row === undefined) {
      row = make(item);
      kept.set(key, row);
    }
    row.update(item);
    if (row.element === place) place = place.nextSibling;
    else parent.insertBefore(row.element, place);
  }
  for (const [key, row] of kept) {
    if (!seen.has(key)) {
      row.element.remove();
      kept.delete(key);
    }
  }
}
