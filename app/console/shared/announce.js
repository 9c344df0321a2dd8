/*
 * What is said to people: toasts for eyes, one polite live region for ears.
 *
 * Knows: how often one may speak. Must never know: what about.
 */

import { button, h } from "./dom.js";

const SPEAK_MS_MIN = 1_000;
const ARRIVALS_MS_MIN = 10_000;
const TOAST_MS = 6_000;
const TOASTS_MAX = 4;

const region = /** @type {HTMLElement} */ (document.getElementById("announcer"));
const stack = /** @type {HTMLElement} */ (document.getElementById("toasts"));

/** @type {string[]} */
let waiting = [];
let speaking = 0;
let arrivedCount = 0;
let arrivedAtMs = 0;

/** Say it, after what was said before. @param {string} text */
export function say(text) {
  // What happens again and again is said once.
  if (waiting.at(-1) !== text) waiting.push(text);
  waiting = waiting.slice(-3);
  if (speaking === 0) speak();
}

function speak() {
  const text = waiting.shift();
  speaking = 0;
  if (text === undefined) return;
  region.textContent = text;
  speaking = window.setTimeout(speak, SPEAK_MS_MIN);
}

/** So many entries came: said now and then, never for each. @param {number} count */
export function arrived(count) {
  arrivedCount += count;
  const nowMs = Date.now();
  if (nowMs - arrivedAtMs < ARRIVALS_MS_MIN) return;
  say(`${arrivedCount} new ${arrivedCount === 1 ? "entry" : "entries"}`);
  arrivedAtMs = nowMs;
  arrivedCount = 0;
}

/**
 * Show it for a while, and say it.
 * @param {string} text
 * @param {"good" | "bad"} [tone]
 */
export function toast(text, tone = "good") {
  const element = h(`div.toast.${tone}`, {}, h("span", {}, text));
  element.append(button("×", () => element.remove(), { "aria-label": "Dismiss" }, "button.plain"));
  stack.append(element);
  while (stack.children.length > TOASTS_MAX) stack.firstElementChild?.remove();
  setTimeout(() => element.remove(), tone === "bad" ? TOAST_MS * 3 : TOAST_MS);
  say(text);
}

/**
 * Do it, and tell how it ended.
 * @template T
 * @param {() => Promise<T>} work
 * @param {(result: T) => string} told
 * @returns {Promise<boolean>}
 */
export async function act(work, told) {
  try {
    toast(told(await work()));
    return true;
  } catch (error) {
    toast(error instanceof Error ? error.message : String(error), "bad");
    return false;
  }
}
