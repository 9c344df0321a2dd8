/*
 * The state of a group or a stream as a word with a colour.
 *
 * Knows: the words. Must never know: what they follow from.
 */

import { setText } from "./dom.js";

/** What each means, in a sentence. @type {Record<string, string>} */
const MEANINGS = {
  drained: "The stream is closed, and the group is done with it.",
  paused: "Nothing is delivered until the group is resumed.",
  no_consumers: "There is work, and no consumer has asked for it for a minute.",
  failing: "An entry became a dead letter, or was delivered for the third time, within five minutes.",
  running: "Something is pending, or was delivered within a minute.",
  idle: "Nothing is to be done.",
  closed: "It takes no entries any more, and its groups are done.",
  ending: "It takes no entries any more, and a group has still to read or to acknowledge.",
};

/** @param {HTMLElement} element @param {string | undefined} state undefined of a gateway that says none */
export function showState(element, state = "") {
  setText(element, state.replace("_", " "));
  element.dataset.state = state;
  element.title = MEANINGS[state] ?? "";
}
