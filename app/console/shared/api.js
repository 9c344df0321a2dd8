/*
 * The gateway's REST API as functions.
 *
 * Knows: paths, bodies, problems. Must never know: elements, the WebSocket, when to send a request.
 */

/** @typedef {{id: string, fields: Record<string, string> | null, pairs?: [string, string][], encoding?: string,
 *   delivery_count?: number}} Entry */
/** @typedef {{requested?: string, first_available: string, lost: number | null, reason?: string, next?: string}} Gap */
/** @typedef {{entries: Entry[], next: string | null, more: boolean, gap?: Gap}} Page */
/** @typedef {{max_len: number | null, max_age_ms: number | null, max_bytes: number | null,
 *   keep_unacknowledged: boolean, keep_unarchived: boolean}} Retention */
/** @typedef {{name: string, length: number, first_id: string, last_id: string, entries_added: number, groups: number,
 *   generation: string, memory_bytes: number, max_deleted_id: string, retention: Retention, schedules: number, closed?: boolean, state?: string,
 *   closed_at?: string, close_reason?: string, media_type?: string, forked_from?: string, held_by?: "no group" | {group: string, id: string}}} Stream */
/** @typedef {{name: string, consumers: number, pending: number, last_delivered_id: string,
 *   entries_read: number | null, lag: number | null, paused: boolean, state?: string, ordered_by?: string | null,
 *   in_flight_per_key?: number, passed_over?: number} & Policy} Group */
/** @typedef {{dead_letter: {stream: string, max_deliveries: number | null} | null, ack_timeout_ms: number | null,
 *   consumer_timeout_ms: number | null, max_age_ms: number | null, ordered_by?: string | null, in_flight_per_key?: number}} Policy */
/** @typedef {{name: string, pending: number, idle_ms: number, inactive_ms: number | null}} Consumer */
/** @typedef {{id: string, consumer: string | null, idle_ms: number, delivery_count: number,
 *   deferred_until?: string}} Pending */

/** @typedef {{name: string, next_at: string | null, entry: {fields: Record<string, string>}, cron?: string, tz?: string,
 *   every_ms?: number, left?: number, paused?: boolean, paused_until?: string, stream?: string}} Schedule */

/** @typedef {{name: string, grants: {actions: string[], streams: string, groups?: string | null}[], expires_at: string | null}} Caller */

/** @typedef {{name: string, stream: string, scheme: string, stored: number, duplicates: number, refused: number,
 *   rejected: number, last_at?: string}} Hook */

/** A request that failed, with the gateway's own message. */
export class ApiError extends Error {
  /** @param {number} status @param {any} problem */
  constructor(status, problem) {
    super(String(problem?.by_door?.console ?? withoutPointer(problem?.detail) ?? problem?.title ?? `the gateway responded with ${status}`));
    this.status = status;
    this.code = String(problem?.code ?? "");
    this.body = problem;
  }
}

/** The detail of a problem without its JSON pointer: the console has no body that it points into. @param {string | undefined} detail */
const withoutPointer = (detail) => detail?.replace(/(^|[^\w/}])\/([a-z_]+)(?:\/[0-9]+)?(?=: )/, "$1$2");

const JSON_TYPE = "application/json";

// Sent with each request; "" where the gateway wants none.
let token = "";

export const getToken = () => token;

/** @param {string} text */
export function setToken(text) {
  token = text;
}

/**
 * @param {string} method @param {string} path @param {unknown} [body] @param {string} [type]
 * @returns {Promise<any>}
 */
async function call(method, path, body, type = JSON_TYPE) {
  /** @type {RequestInit} */
  const request = { method, cache: "no-store", credentials: "same-origin" };
  /** @type {Record<string, string>} */
  const headers = token === "" ? {} : { Authorization: `Bearer ${token}` };
  if (body !== undefined) {
    request.body = type === JSON_TYPE ? JSON.stringify(body) : String(body);
    headers["Content-Type"] = type;
  }
  request.headers = headers;
  let response;
  try {
    response = await fetch(path, request);
  } catch {
    throw new ApiError(0, { code: "unreachable", detail: "the gateway cannot be reached" });
  }
  const text = await response.text();
  let result = null;
  if (text !== "") {
    try {
      result = JSON.parse(text);
    } catch {
      throw new ApiError(response.status, { detail: `the gateway responded with ${response.status} and not with JSON` });
    }
  }
  if (!response.ok) throw new ApiError(response.status, result);
  return result;
}

/** @param {...string} names each becomes one segment of the path */
const path = (...names) => `/v1/streams/${names.map(encodeURIComponent).join("/")}`;

/** @param {Record<string, string | number | boolean | undefined | null>} parameters */
function query(parameters) {
  const present = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = new URLSearchParams(present.map(([name, value]) => [name, String(value)])).toString();
  return text === "" ? "" : `?${text}`;
}

/** Who the caller is, and what it may do. @returns {Promise<Caller>} */
export const getCaller = () => call("GET", "/v1/whoami");

/** @returns {Promise<{name: string, version: string}>} */
export const getVersion = () => call("GET", "/v1");

// This version of the gateway has no such path, or this reader may not read it.
const UNAVAILABLE = new Set([401, 403, 404]);

/**
 * The status of the gateway; null where it is not available.
 * @returns {Promise<any>}
 */
export const getStatus = () => getIfAvailable("/v1/status");

/**
 * The hooks of the gateway; null where they are not available.
 * @returns {Promise<{hooks: Hook[]} | null>}
 */
export const getHooks = () => getIfAvailable("/v1/hooks");

/** @param {string} address @returns {Promise<any>} */
async function getIfAvailable(address) {
  try {
    return await call("GET", address);
  } catch (error) {
    if (error instanceof ApiError && UNAVAILABLE.has(error.status)) return null;
    throw error;
  }
}

/** Whether the gateway can serve, and what needs an operator. @returns {Promise<{status: string, failing?: string[]}>} */
export async function getHealth() {
  try {
    return await call("GET", "/healthz/ready");
  } catch (error) {
    if (error instanceof ApiError && typeof error.body?.status === "string") return error.body;
    throw error;
  }
}

/** What needs an operator at a gateway that is ready. @returns {Promise<string[]>} */
export async function getFailing() {
  try {
    const { status, failing } = await getHealth();
    // Not ready: the status says why.
    return status === "ready" ? (failing ?? []) : [];
  } catch (error) {
    if (error instanceof ApiError) return [];
    throw error;
  }
}

/** The gateway's clock, in milliseconds. @returns {Promise<number>} */
export async function getTime() {
  const { result } = await call("POST", "/v1/commands", ["TIME"]);
  return Number(result[0]) * 1000 + Number(result[1]) / 1000;
}

/** @param {{prefix?: string, after?: string, limit?: number}} selection
 * @returns {Promise<{streams: Stream[], next: string | null}>} */
export const listStreams = (selection) => call("GET", `/v1/streams${query(selection)}`);

/** @param {string} stream @returns {Promise<Stream>} */
export const getStream = (stream) => call("GET", path(stream));

/** @param {string} stream @param {Partial<Retention>} retention */
export const createStream = (stream, retention) => call("PUT", path(stream), { retention });

/** @param {string} stream @param {Partial<Retention>} retention */
export const changeRetention = (stream, retention) => call("PATCH", path(stream), { retention });

/** @param {boolean} drops */
const dropping = (drops) => query({ schedules: drops ? "drop" : undefined });

/** @param {string} stream @param {boolean} dropsSchedules */
export const deleteStream = (stream, dropsSchedules) => call("DELETE", `${path(stream)}${dropping(dropsSchedules)}`);

/** @param {string} stream @param {string} reason @param {boolean} dropsSchedules
 * @returns {Promise<{last_id: string, duplicate: boolean}>} */
export const closeStream = (stream, reason, dropsSchedules) =>
  call("POST", `${path(stream)}/close${dropping(dropsSchedules)}`, reason === "" ? {} : { reason });

/** @param {string} stream @param {Record<string, unknown>} limit
 * @returns {Promise<{deleted: number, first_id: string, pending_affected: number}>} */
export const trim = (stream, limit) => call("POST", `${path(stream)}/trim`, limit);

/** @param {string} stream @param {Record<string, string | number | boolean | undefined>} range
 * @returns {Promise<Page>} */
export const listEntries = (stream, range) => call("GET", `${path(stream)}/entries${query(range)}`);

/** @param {string} stream @param {string} id @returns {Promise<Entry>} */
export const getEntry = (stream, id) => call("GET", `${path(stream)}/entries/${encodeURIComponent(id)}`);

/** @param {string} stream @param {string[]} ids @returns {Promise<{deleted: number}>} */
export const deleteEntries = (stream, ids) => call("POST", `${path(stream)}/entries/delete`, { ids });

/** @param {string} stream @param {{fields: [string, string][], id?: string, encoding?: string}} entry
 * @returns {Promise<{id: string}>} */
export const publish = (stream, entry) => call("POST", `${path(stream)}/entries`, entry);

/** @param {string} stream @param {string} lines
 * @returns {Promise<{count: number, first_id: string, last_id: string}>} */
export const publishLines = (stream, lines) => call("POST", `${path(stream)}/entries`, lines, "application/x-ndjson");

/** @param {string} stream @param {number} limit
 * @returns {Promise<{schedules: Schedule[], next: string | null}>} */
export const listSchedules = (stream, limit) => call("GET", `${path(stream, "schedules")}${query({ limit })}`);

/** Of all streams. @param {number} limit @returns {Promise<{schedules: (Schedule & {stream: string})[], next: string | null}>} */
export const listAllSchedules = (limit) => call("GET", `/v1/schedules${query({ limit })}`);

/** @param {string} stream @param {string} name @param {Record<string, unknown>} definition @returns {Promise<Schedule>} */
export const putSchedule = (stream, name, definition) => call("PUT", path(stream, "schedules", name), definition);

/** @param {string} stream @param {string} name @param {{paused?: boolean, paused_until?: string}} changes @returns {Promise<Schedule>} */
export const changeSchedule = (stream, name, changes) => call("PATCH", path(stream, "schedules", name), changes);

/** @param {string} stream @param {string} name @returns {Promise<{id: string}>} */
export const fireSchedule = (stream, name) => call("POST", path(stream, "schedules", name, "fire"));

/** @param {string} stream @param {string} name */
export const cancelSchedule = (stream, name) => call("DELETE", path(stream, "schedules", name));

/** @param {string} stream @returns {Promise<{groups: Group[], next: string | null}>} */
export const listGroups = (stream) => call("GET", `${path(stream)}/groups`);

/** @param {string} stream @param {{name: string, start: string} & Policy} group */
export const createGroup = (stream, group) => call("POST", `${path(stream)}/groups`, group);

/** @param {string} stream @param {string} group @param {string} id */
export const moveGroup = (stream, group, id) => call("PATCH", path(stream, "groups", group), { last_delivered_id: id });

/** Why it delivers nothing. @param {string} stream @param {string} group
 * @returns {Promise<{reasons: {code: string, detail: string, remedies: {console: string}}[]}>} */
export const explainGroup = (stream, group) => call("GET", path(stream, "groups", group, "why"));

/** @param {string} stream @param {string} group @param {boolean} paused */
export const pauseGroup = (stream, group, paused) => call("PATCH", path(stream, "groups", group), { paused });

/** @param {string} stream @param {string} group @param {Policy} policy */
export const changePolicy = (stream, group, policy) => call("PATCH", path(stream, "groups", group), policy);

/** @param {string} stream @param {string} group @param {boolean} drop also if entries are pending */
export const deleteGroup = (stream, group, drop) =>
  call("DELETE", `${path(stream, "groups", group)}${query({ pending: drop ? "drop" : undefined })}`);

/** @param {string} stream @param {string} group @returns {Promise<{consumers: Consumer[], next: string | null}>} */
export const listConsumers = (stream, group) => call("GET", path(stream, "groups", group, "consumers"));

/** @param {string} stream @param {string} group @param {string} consumer @param {string} pending */
export const deleteConsumer = (stream, group, consumer, pending) =>
  call("DELETE", `${path(stream, "groups", group, "consumers", consumer)}${query({ pending })}`);

/** @param {string} stream @param {string} group
 * @param {{start?: string, count?: number, consumer?: string, min_idle_ms?: number}} selection
 * @returns {Promise<{pending: Pending[], next: string | null, more: boolean}>} */
export const listPending = (stream, group, selection) => call("GET", `${path(stream, "groups", group, "pending")}${query(selection)}`);

/** @param {string} stream @param {string} group @param {string[]} ids @returns {Promise<{acknowledged: number}>} */
export const acknowledge = (stream, group, ids) => call("POST", `${path(stream, "groups", group, "ack")}`, { ids });

/** @param {string} stream @param {string} group @param {string[]} ids @param {string} [consumer] who holds them, as far as is known
 * @returns {Promise<{released: number, results: Record<string, string>}>} */
export const release = (stream, group, ids, consumer) =>
  call("POST", path(stream, "groups", group, "nack"), { ids, mode: "fail", consumer });

/** @param {string} stream @param {string} group @param {string[]} ids @param {string} [consumer] who holds them, as far as is known
 * @param {string} [reason] @returns {Promise<{stream: string, ids: string[], not_held?: string[]}>} */
export const deadLetter = (stream, group, ids, consumer, reason) =>
  call("POST", path(stream, "groups", group, "dead-letter"), { ids, consumer, reason });

/** @param {string} stream @param {string} group @param {string[]} ids @param {string} consumer @param {number} idleMs
 * @returns {Promise<{entries: Entry[]}>} */
export const claim = (stream, group, ids, consumer, idleMs) =>
  call("POST", path(stream, "groups", group, "claim"), { ids, consumer, min_idle_ms: idleMs });

/** @typedef {{stream: string, redriven: number, entries: {dead_letter_id: string, id: string | null}[], next: string | null}} Redriven */
/** @typedef {{ids?: string[], filter?: {start?: string, end?: string, reason?: string}, count?: number, dry_run?: boolean}} Redrive */

/** @param {string} stream @param {string} group @param {Redrive} selection @returns {Promise<Redriven>} */
export const redrive = (stream, group, selection) => call("POST", path(stream, "groups", group, "dead-letters", "redrive"), selection);
