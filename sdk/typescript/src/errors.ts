/** What can go wrong between a program and a gateway. Every error of this package is a `WeirError`. */

import type { Schema } from "./documents/types.js";

/**
 * Entries between `requested` and `first_available` were removed; `lost` of them, where that is known. `reason` is not
 * there, or `trimmed`, for that. Otherwise it says what came between, and newer gateways may have others than these:
 * `deleted`, `expired`, `replaced` (by a rename or a copy) and `recreated`: what follows is another stream; `restored`:
 * an older state of this one; `ahead`: the stream ends before `requested`; `failover`: a server of the backend has failed
 * before another one had them.
 */
export type Gap = Schema<"Gap">;

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

/** Entries after the cursor were removed before they were read, or their stream is another one by now. */
export class GapError extends WeirError {
  constructor(
    readonly stream: string,
    readonly gap: Gap,
  ) {
    super(describeGap(stream, gap));
  }
}

/** What happened to a stream, by the reason of a gap. */
const FATES: Partial<Record<string, string>> = {
  deleted: "was deleted",
  expired: "has expired",
  replaced: "was replaced by another one",
  recreated: "was deleted and made again",
  restored: "was restored from an older state",
};
const REMOVED = "removed before they were read";
const LOSSES: Partial<Record<string, string>> = { trimmed: REMOVED, failover: "lost in a fail-over" };

/** A gap in one sentence; its reason may be one that is not known here. */
export function describeGap(stream: string, { requested, lost, reason }: Gap): string {
  const fate = FATES[reason ?? ""];
  if (fate !== undefined) return `the stream ${stream} ${fate} after ${requested} was read`;
  if (reason === "ahead") return `the stream ${stream} ends before ${requested}, so entries were lost or it is another one`;
  const loss = reason === undefined ? REMOVED : (LOSSES[reason] ?? `lost (${reason})`);
  return `${lost ?? "some"} entries of ${stream} after ${requested} were ${loss}`;
}

/** Another connection consumes under the same name, and the gateway has ended this one. */
export class ConsumerReplacedError extends WeirError {
  constructor() {
    super("another connection consumes under the same name");
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

/** The token does not allow this (403). */
export class ForbiddenError extends ApiError {}

/** The stream that a worker consumed was deleted, and its groups with it. */
export class StreamDeletedError extends ApiError {
  constructor(stream: string) {
    super(404, { status: 404, code: "no_stream", detail: `the stream ${stream} was deleted` });
  }
}

/** The group that a worker consumed with was deleted; its stream is still there. */
export class GroupDeletedError extends ApiError {
  constructor(stream: string, group: string) {
    super(404, { status: 404, code: "no_group", detail: `the group ${group} of the stream ${stream} was deleted` });
  }
}

/** The error for a problem document, or for what a proxy says instead of one. */
export function apiError(status: number, problem: Problem, retryAfterMs?: number): ApiError {
  return new (status === 403 ? ForbiddenError : ApiError)(status, problem, retryAfterMs);
}
