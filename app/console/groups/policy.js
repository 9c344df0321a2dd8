/*
 * The policy of a group for entries that are not acknowledged: as a sentence, and as form fields and back.
 *
 * Knows: the members of a policy. Must never know: elements, which group it is.
 */

import { formatNumber, formatSeconds, parseMs, parseNumber } from "../shared/fields.js";
import { formatDuration, pluralize } from "../shared/format.js";

/** @typedef {import("../shared/api.js").Policy} Policy */

/** @param {Policy & {paused?: boolean}} policy @returns {string} sentences */
export function describePolicy({ dead_letter: deadLetter, ack_timeout_ms: ackMs, consumer_timeout_ms: consumerMs, max_age_ms: ageMs, paused = false }) {
  return [
    paused ? "Paused: nothing is delivered until the group is resumed." : "",
    deadLetter === null ? "No dead-letter stream." : describeDeadLetters(deadLetter),
    ackMs === null ? "" : `An entry that is not acknowledged within ${formatDuration(ackMs)} goes to another consumer.`,
    ageMs === null ? "" : `Entries older than ${formatDuration(ageMs)} are acknowledged instead of delivered.`,
    consumerMs === null ? "" : `Consumers that are inactive for ${formatDuration(consumerMs)} are removed.`,
  ].filter((sentence) => sentence !== "").join(" ");
}

/** @param {{stream: string, max_deliveries: number | null}} deadLetter */
function describeDeadLetters({ stream, max_deliveries: deliveries }) {
  if (deliveries === null) return `Dead letters are moved to ${stream} by hand only.`;
  return `After ${pluralize(deliveries, "delivery", "deliveries")} an entry moves to ${stream}.`;
}

/** @param {Policy} policy @returns {import("../shared/dialogs.js").Field[]} */
export function policyFields({ dead_letter: deadLetter, ack_timeout_ms: ackMs, consumer_timeout_ms: consumerMs, max_age_ms: ageMs }) {
  return [
    { name: "stream", label: "Dead-letter stream", value: deadLetter?.stream ?? "", hint: "Leave empty for no dead letters." },
    {
      name: "deliveries",
      label: "Maximum deliveries",
      type: "number",
      min: 1,
      value: formatNumber(deadLetter?.max_deliveries ?? null),
      hint: "After this many, an entry becomes a dead letter. Leave empty to move entries by hand only.",
    },
    {
      name: "ack",
      label: "Acknowledgement timeout in seconds",
      type: "number",
      min: 0,
      value: formatSeconds(ackMs),
      hint: "Then the entry goes to another consumer. Make it longer than the slowest job. Leave empty for none.",
    },
    {
      name: "consumer",
      label: "Consumer timeout in seconds",
      type: "number",
      min: 0,
      value: formatSeconds(consumerMs),
      hint: "Then an inactive consumer is removed and its entries are released. Leave empty for none.",
    },
    {
      name: "age",
      label: "Maximum age in seconds",
      type: "number",
      min: 0,
      value: formatSeconds(ageMs),
      hint: "Older entries are acknowledged instead of delivered, with a dead letter where there is a stream for them. Leave empty for none.",
    },
  ];
}

/** @param {Record<string, string>} values of the fields @returns {Policy} */
export function parsePolicy(values) {
  return {
    dead_letter: values.stream ? { stream: values.stream, max_deliveries: parseNumber(values.deliveries) } : null,
    ack_timeout_ms: parseMs(values.ack),
    consumer_timeout_ms: parseMs(values.consumer),
    max_age_ms: parseMs(values.age),
  };
}
