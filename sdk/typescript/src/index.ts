/** The client of Weir, a stream gateway, for browsers and Node. */

export { Client, Group } from "./client.js";
export type { AddOptions, DeadLettered, NackMode, PublishedTimed, Range, RedriveOptions, Redriven, References, Schedule, ScheduledEntry, ScheduleRule, TailOptions, TimedEntry } from "./client.js";
export { bytes } from "./entries.js";
export type { Entry, Fields, Gap, GroupInfo, Page, PendingEntry, Published, Retention, StreamInfo, Value } from "./entries.js";
export {
  ApiError,
  ConnectionClosedError,
  ConsumerReplacedError,
  ForbiddenError,
  GapError,
  GroupDeletedError,
  InvalidValueError,
  NoAnswerError,
  NotAGatewayError,
  StreamDeletedError,
  WeirError,
} from "./errors.js";
export type { Problem } from "./errors.js";
export type { ClientOptions } from "./http.js";
export { Worker } from "./worker.js";
export type { Backoff, Delivery, Handler, WorkerOptions } from "./worker.js";
