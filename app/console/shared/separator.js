/*
 * A line between two parts of the page that people move, with the pointer or with arrows.
 *
 * Knows: pointers, keys, bounds. Must never know: what it divides.
 */

import { h } from "./dom.js";

const STEP_PX = 16;

/**
 * @typedef {object} Divider
 * @property {string} label
 * @property {number} minPx
 * @property {() => number} maxPx
 * @property {() => number} width now, in pixels
 * @property {(px: number | null) => void} resize null: as it was made
 * @property {number} [tabindex]
 */

/** @param {Divider} divider @returns {HTMLElement} */
export function separator({ label, minPx, maxPx, width, resize, tabindex = 0 }) {
  let fromX = 0;
  let fromPx = 0;
  const set = (/** @type {number | null} */ px) => {
    resize(px === null ? null : Math.round(Math.max(minPx, Math.min(maxPx(), px))));
    element.setAttribute("aria-valuenow", String(Math.round(width())));
  };
  const move = (/** @type {PointerEvent} */ event) => set(fromPx + event.clientX - fromX);
  const element = h("div.separator", {
    role: "separator",
    tabindex,
    title: "Drag to resize; double-click to reset",
    "aria-label": label,
    "aria-orientation": "vertical",
    "aria-valuemin": minPx,
    "aria-valuenow": minPx,
    ondblclick: () => set(null),
    onfocus: () => element.setAttribute("aria-valuenow", String(Math.round(width()))),
    onpointerdown: (/** @type {PointerEvent} */ event) => {
      event.preventDefault();
      event.stopPropagation();
      element.setPointerCapture(event.pointerId);
      [fromX, fromPx] = [event.clientX, width()];
      element.addEventListener("pointermove", move);
      element.addEventListener("lostpointercapture", () => element.removeEventListener("pointermove", move), { once: true });
    },
    onkeydown: (/** @type {KeyboardEvent} */ event) => {
      /** @type {Record<string, number | null>} */
      const wanted = { ArrowLeft: width() - STEP_PX, ArrowRight: width() + STEP_PX, Home: minPx, End: maxPx(), Enter: null };
      const px = wanted[event.key];
      if (px === undefined) return;
      event.preventDefault();
      event.stopPropagation();
      set(px);
    },
  });
  return element;
}
