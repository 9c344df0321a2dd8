/*
 * A separator between two parts of the page that people move with the pointer or the arrow keys.
 *
 * Knows: pointers, keys, bounds. Must never know: what it separates.
 */

import { h } from "./dom.js";

const STEP_PX = 16;

/**
 * @typedef {object} Options
 * @property {string} label
 * @property {number} minPx
 * @property {() => number} maxPx
 * @property {() => number} width the current width in pixels
 * @property {(px: number | null) => void} resize null resets the width
 * @property {number} [tabindex]
 */

/** @param {Options} options @returns {HTMLElement} */
export function makeSeparator({ label, minPx, maxPx, width, resize, tabindex = 0 }) {
  let startX = 0;
  let startPx = 0;
  const resizeTo = (/** @type {number | null} */ px) => {
    resize(px === null ? null : Math.round(Math.max(minPx, Math.min(maxPx(), px))));
    element.setAttribute("aria-valuenow", String(Math.round(width())));
  };
  const drag = (/** @type {PointerEvent} */ event) => resizeTo(startPx + event.clientX - startX);
  const element = h("div.separator", {
    role: "separator",
    tabindex,
    title: "Drag to resize; double-click to reset",
    "aria-label": label,
    "aria-orientation": "vertical",
    "aria-valuemin": minPx,
    "aria-valuenow": minPx,
    ondblclick: () => resizeTo(null),
    onfocus: () => element.setAttribute("aria-valuenow", String(Math.round(width()))),
    onpointerdown: (/** @type {PointerEvent} */ event) => {
      event.preventDefault();
      event.stopPropagation();
      element.setPointerCapture(event.pointerId);
      [startX, startPx] = [event.clientX, width()];
      element.addEventListener("pointermove", drag);
      element.addEventListener("lostpointercapture", () => element.removeEventListener("pointermove", drag), { once: true });
    },
    onkeydown: (/** @type {KeyboardEvent} */ event) => {
      /** @type {Record<string, number | null>} */
      const targets = { ArrowLeft: width() - STEP_PX, ArrowRight: width() + STEP_PX, Home: minPx, End: maxPx(), Enter: null };
      const px = targets[event.key];
      if (px === undefined) return;
      event.preventDefault();
      event.stopPropagation();
      resizeTo(px);
    },
  });
  return element;
}
