/*
 * The rows of a list that the reader has chosen, by ID.
 *
 * Knows: IDs, checkboxes. Must never know: what a row shows, what is done with the chosen rows.
 */

import { h } from "../shared/dom.js";

/** Fires `change` when the reader chooses or unchooses a row. */
export class Selection extends EventTarget {
  constructor() {
    super();
    /** @type {Set<string>} */
    this.ids = new Set();
  }

  get size() {
    return this.ids.size;
  }

  /** @param {string} id @returns {HTMLInputElement} */
  makeBox(id) {
    const box = h("input", {
      type: "checkbox",
      "aria-label": `Choose ${id}`,
      onchange: () => {
        if (box.checked) this.ids.add(id);
        else this.ids.delete(id);
        this.dispatchEvent(new Event("change"));
      },
    });
    return box;
  }

  /** Drop chosen rows that are no longer listed. @param {{id: string}[]} rows */
  retain(rows) {
    const listed = new Set(rows.map(({ id }) => id));
    for (const id of this.ids) if (!listed.has(id)) this.ids.delete(id);
  }

  /** @param {{id: string}[]} rows */
  replace(rows) {
    this.ids = new Set(rows.map(({ id }) => id));
  }
}
