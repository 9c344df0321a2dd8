/*
 * Messages to people: toasts on screen, and one polite live region for screen readers.
 *
 * Knows: how often to speak. Must never know: what the messages are about.
 */

import { button, h } from "./dom.js";
import { formatError } from "./format.js";

const SPEAK_MS_MIN = 1_000;
const ARRIVALS_MS_MIN = 10_000;
const TOAST_MS = 6_000;
const TOASTS_MAX = 4;
const WAITING_MAX = 3;

const region = /** @type {HTMLElement} */ (document.getElementById("announcer"));
const stack = /** @type {HTMLElement} */ (document.getElementById("toasts"));

/** @type {string[]} */
let waiting = [];
let speakTimer = 0;
let arrivedCount = 0;
let arrivalsSaidAtMs = 0;

/** Speak a text after those that are waiting. @param {string} text */
export function say(text) {
  // A text that is repeated is spoken once.
  if (waiting.at(-1) !== text) waiting.push(text);
  waiting = waiting.slice(-WAITING_MAX);
  if (speakTimer === 0) speakNext();
}

function speakNext() {
  const text = waiting.shift();
  speakTimer = 0;
  if (text === undefined) return;
  region.textContent = text;
  speakTimer = window.setTimeout(speakNext, SPEAK_MS_MIN);
}

/** Count new entries, and speak the sum now and then. @param {number} count */
export function sayArrivals(count) {
  arrivedCount += count;
  const nowMs = Date.now();
  if (nowMs - arrivalsSaidAtMs < ARRIVALS_MS_MIN) return;
  say(`${arrivedCount} new ${arrivedCount === 1 ? "entry" : "entries"}`);
  arrivalsSaidAtMs = nowMs;
  arrivedCount = 0;
}

/**
 * Show a text for a while, and speak it.
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
 * Run a task and show a toast with its result or its error.
 * @template T
 * @param {() => Promise<T>} task
 * @param {(result: T) => string} describe
 * @returns {Promise<boolean>} whether it succeeded
 */
export async function attempt(task, describe) {
  try {
    toast(describe(await task()));
    return true;
  } catch (error) {
    toast(formatError(error), "bad");
    return false;
  }
}
