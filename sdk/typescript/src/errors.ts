/** What can go wrong between a program and a gateway. Every error of this package is a `WeirError`. */

import type { Schema } from "./documents/types.js";
import type { Gap } from "./entries.js";

export class WeirError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
  }
}

/**
 * No answer arrived, even after the retries that were allowed. With `outcomeUnknown` the request may have been
 * carried out all the same, and it was not safe to send it again.
 */
export class NoAnswerError extends WeirError {
  constructor(
    message: string,
    readonly outcomeUnknown: boolean,
    options?: ErrorOptions,
  ) {
    super(message, options);
  }
}

/** An argument that cannot be sent: a name, a value, a key or a URL. Nothing was sent. */
export class InvalidValueError extends WeirError {}

/** Something answered, but not as a gateway does. */
export class NotAGatewayError extends WeirError {}

/**
 * Entries after the cursor were removed before they were read; `gap.lost` of them, where that is known. `gap.reason` is
 * `failover` where a server of the backend has failed before another one had them.
 */
export class GapError extends WeirError {
  constructor(
    readonly stream: string,
    readonly gap: Gap,
  ) {
    const end = gap.reason === "failover" ? "lost in a fail-over" : "removed before they were read";
    super(`${gap.lost ?? "some"} entries of ${stream} after ${gap.requested} were ${end}`);
  }
}

/** Another connection consumes under the same name, or the group or stream is gone; `reason` says which. */
export class ConsumerReplacedError extends WeirError {
  constructor(readonly reason: string) {
    super(`this consumer's subscription ended: ${reason}`);
  }
}

/** The gateway closed a WebSocket with a code that means: do not come again. */
export class ConnectionClosedError extends WeirError {
  constructor(
    readonly code: number,
    readonly reason: string,
  ) {
    super(`the gateway closed the connection with ${code} ${reason}`);
  }
}

/** A problem document (RFC 9457). What stands between may answer with less than a gateway does. */
export type Problem = Partial<Schema<"Problem">>;

/** The gateway refused. `code` is one of the documented codes: `no_stream`, `forbidden`, `rate_limited` and so on. */
export class ApiError extends WeirError {
  readonly code: string;
  readonly retryable: boolean;

  constructor(
    readonly status: number,
    readonly problem: Problem,
    /** After how many milliseconds the gateway asks to try again, where it says so. */
    readonly retryAfterMs?: number,
  ) {
    super(problem.detail ?? `the gateway answered ${status}`);
    this.code = problem.code ?? "";
    this.retryable = problem.retryable ?? false;
  }
}
