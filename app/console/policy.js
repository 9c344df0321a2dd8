/*
 * What becomes of a group's entries that are not acknowledged: as a sentence, and as fields to change it.
 *
 * Knows: the policy of a group. Must never know: how a group is found, elements.
 */

import { count, duration } from "./format.js";

/** @typedef {import("./api.js").Policy} Policy */

/** @param {Policy} policy */
export function told({ dead_letter: letters, ack_timeout_ms: ackMs, consumer_timeout_ms: consumerMs }) {
  return [
    letters === null ? "No dead letters." : lettersTold(letters),
    ackMs === null ? "" : `Given to somebody else after ${duration(ackMs)}.`,
    consumerMs === null ? "" : `Consumers that are gone for ${duration(consumerMs)} are removed.`,
  ].filter((one) => one !== "").join(" ");
}

/** @param {{stream: string, max_deliveries: number | null}} letters */
function lettersTold({ stream, max_deliveries: most }) {
  if (most === null) return `Dead letters go to ${stream}, by hand.`;
  return `After ${count(most)} ${most === 1 ? "delivery" : "deliveries"} an entry goes to ${stream}.`;
}

/** @param {Policy} policy @returns {import("./dialogs.js").Field[]} */
export function fields({ dead_letter: letters, ack_timeout_ms: ackMs, consumer_timeout_ms: consumerMs }) {
  return [
    { name: "letters", label: "Dead letters go to the stream", value: letters?.stream ?? "", hint: "empty: there are none" },
    {
      name: "deliveries",
      label: "once delivered so many times",
      type: "number",
      min: 1,
      value: text(letters?.max_deliveries ?? null),
      hint: "empty: by hand alone",
    },
    { name: "ack", label: "Give to somebody else after so many seconds", type: "number", min: 0, value: text(seconds(ackMs)), hint: "longer than the longest work; empty: never" },
    { name: "consumer", label: "Remove consumers that are gone for so many seconds", type: "number", min: 0, value: text(seconds(consumerMs)), hint: "what they hold is given back; empty: never" },
  ];
}

/** @param {Record<string, string>} values as the fields have them @returns {Policy} */
export function policy(values) {
  return {
    dead_letter: values.letters ? { stream: values.letters, max_deliveries: number(values.deliveries) } : null,
    ack_timeout_ms: milliseconds(values.ack),
    consumer_timeout_ms: milliseconds(values.consumer),
  };
}

/** @param {number | null} ms */
const seconds = (ms) => (ms === null ? null : ms / 1000);

/** @param {number | null} value */
const text = (value) => (value === null ? "" : String(value));

/** @param {string | undefined} value */
const number = (value) => (value === undefined || value === "" ? null : Number(value));

/** @param {string | undefined} value in seconds */
function milliseconds(value) {
  const found = number(value);
  return found === null ? null : Math.round(found * 1000);
}
