/*
 * The policy of a group for entries that are not acknowledged: as a sentence, and as form fields and back.
 *
 * Knows: the members of a policy. Must never know: elements, which group it is.
 */

import { formatMs, formatNumber, parseMs, parseNumber } from "../shared/fields.js";
import { formatDuration, pluralize } from "../shared/format.js";

/** @typedef {import("../shared/api.js").Policy} Policy */

/** @type {Policy} */
export const NO_POLICY = { dead_letter: null, ack_timeout_ms: null, consumer_timeout_ms: null, max_age_ms: null };

/** @param {Policy & {paused?: boolean}} policy @returns {string} sentences */
export function describePolicy({ dead_letter: deadLetter, ack_timeout_ms: ackMs, consumer_timeout_ms: consumerMs, max_age_ms: ageMs, paused = false, ordered_by: field = null, in_flight_per_key: most = 1 }) {
  return [
    paused ? "Paused: nothing is delivered until the group is resumed." : "",
    deadLetter === null ? "No dead-letter stream." : describeDeadLetters(deadLetter),
    ackMs === null ? "" : `An entry that is not acknowledged within ${formatDuration(ackMs)} goes to another consumer.`,
    field === null ? "" : `At most ${pluralize(most, "entry", "entries")} ${field === "*" ? "" : `with the same ${field} `}${most === 1 ? "is" : "are"} in flight.`,
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
export function policyFields({ dead_letter: deadLetter, ack_timeout_ms: ackMs, consumer_timeout_ms: consumerMs, max_age_ms: ageMs, ordered_by: field = null, in_flight_per_key: most = 1 }) {
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
      label: "Acknowledgement timeout",
      value: formatMs(ackMs),
      hint: "Such as 30s or 5m. Then the entry goes to another consumer. Make it longer than the slowest job. Leave empty for none.",
    },
    {
      name: "consumer",
      label: "Consumer timeout",
      value: formatMs(consumerMs),
      hint: "Then an inactive consumer is removed and its entries are released. Leave empty for none.",
    },
    {
      name: "age",
      label: "Maximum age",
      value: formatMs(ageMs),
      hint: "Older entries are acknowledged instead of delivered, with a dead letter where there is a stream for them. Leave empty for none.",
    },
    {
      name: "ordered",
      label: "Ordered by",
      value: field ?? "",
      hint: "A field. Entries with the same value are delivered one after the other. It changes only while nothing is pending. Leave empty for no order.",
    },
    { name: "flight", label: "In flight per key", type: "number", min: 1, value: formatNumber(most), hint: "How many entries with the same value at a time." },
  ];
}

/** @param {Record<string, string>} values of the fields @returns {Policy} */
export function parsePolicy(values) {
  return {
    dead_letter: values.stream ? { stream: values.stream, max_deliveries: parseNumber(values.deliveries) } : null,
    ack_timeout_ms: parseMs(values.ack),
    consumer_timeout_ms: parseMs(values.consumer),
    max_age_ms: parseMs(values.age),
    ordered_by: values.ordered || null,
    in_flight_per_key: (values.ordered && parseNumber(values.flight)) || 1,
  };
}
