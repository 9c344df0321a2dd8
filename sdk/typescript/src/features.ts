/**
 * What a gateway knows that older ones refuse: it says so at `/v1`, in `features`.
 *
 * Knows: the words for it, and how one that does not know it refuses. Must never know: how a call is sent.
 */

import { ApiError } from "./errors.js";

/** What is given back, or is to be a dead letter, names the consumer who holds it. */
export type Feature = "ack_consumer" | "nack_consumer" | "dead_letter_consumer";

/** Whether a gateway does not know the member `consumer`. */
export function refusesConsumer(error: unknown): boolean {
  if (!(error instanceof ApiError) || error.status !== 422) return false;
  return (error.problem.errors ?? []).some((one) => "pointer" in one && one.pointer === "/consumer");
}
