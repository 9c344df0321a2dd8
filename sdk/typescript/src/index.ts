/** The client of Weir, a stream gateway, for browsers and Node. */

export { Client, Group } from "./client.js";
export type { AddOptions, DeadLettered, NackMode, PublishedTimed, Range, RedriveOptions, Redriven, References, Schedule, ScheduledEntry, ScheduleRule, StreamSchedule, TailOptions, TimedEntry } from "./client.js";
export { bytes } from "./entries.js";
export type { Entry, Fields, GroupInfo, Page, PendingEntry, Published, Retention, StreamInfo, Value } from "./entries.js";
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
export type { Gap, Problem } from "./errors.js";
export type { ClientOptions } from "./http.js";
export type { Backoff, Delivery, WorkerOptions } from "./holdings.js";
export { Worker } from "./worker.js";
export type { Handler } from "./worker.js";
