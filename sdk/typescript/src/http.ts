/** One call of the API: how it is sent, what its answer means, whether to send it again. */

import { bareCursor, isUnknownCursor, LONG_CURSORS } from "./cursors.js";
import { refusesConsumer, type Feature } from "./features.js";
import { apiError, ApiError, InvalidValueError, NoAnswerError, NotAGatewayError, type Problem } from "./errors.js";

const RETRY_PAUSE_MS_MIN = 100;
const RETRY_PAUSE_MS_MAX = 5_000;
/** Too many requests at the moment; starting, stopping or restarting. */
const BUSY = [429, 503];
/** What a proxy says when the gateway behind it does not answer: the outcome is unknown. */
const BROKEN = [502, 504];
/** What JSON.stringify makes of half a surrogate pair, and not of a backslash that the text itself holds. */
const ESCAPED_HALF = /(?<!\\)(?:\\\\)*\\ud[89a-f][0-9a-f]{2}/;

export interface ClientOptions {
  /** The gateway; in a browser its own origin if not given, elsewhere http://127.0.0.1:8080. */
  url?: string;
  /** A bearer token, or a function that returns one. */
  token?: string | (() => string | Promise<string>);
  /** How long to wait for an answer, beyond what the call asks the gateway to wait. */
  timeoutMs?: number;
  /** For how long a call is repeated while that is safe; 0: never, Infinity: for ever. */
  retryMs?: number;
  fetch?: typeof fetch;
}

export interface Call {
  method?: string;
  path: string;
  query?: Record<string, string | number | boolean | readonly string[] | undefined>;
  body?: unknown;
  headers?: Record<string, string>;
  waitMs?: number;
  /** Doing it twice is the same as doing it once. */
  repeatable?: boolean;
  /** Of how many streams a cursor is in `after` or `last-event-id`; the answer has cursors with generations then. */
  cursorOf?: number;
  signal?: AbortSignal;
}

function parseUrl(text: string): URL {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  if (url === undefined || !["http:", "https:"].includes(url.protocol)) {
    throw new InvalidValueError("a gateway's URL is like http://127.0.0.1:8080");
  }
  if (/\/v1\/?$/.test(url.pathname)) throw new InvalidValueError("a gateway's URL ends before /v1");
  return url;
}

export class Http {
  readonly url: URL;
  readonly retryMs: number;
  readonly #token: ClientOptions["token"];
  readonly #timeoutMs: number;
  readonly #fetch: typeof fetch;
  /** Until a gateway refuses that. */
  #asksLongCursors = true;
  /** What the gateway says that it knows; undefined is to be asked. */
  #features: Promise<readonly string[]> | undefined;

  constructor(options: ClientOptions) {
    const origin = (globalThis as { location?: { origin?: string } }).location?.origin;
    this.url = parseUrl(options.url ?? origin ?? "http://127.0.0.1:8080");
    if (this.url.username || this.url.password || this.url.search || this.url.hash) {
      throw new InvalidValueError("a gateway's URL has no user, query or fragment: pass the token as `token`");
    }
    this.#token = options.token;
    this.#timeoutMs = options.timeoutMs ?? 60_000;
    this.retryMs = options.retryMs ?? 60_000;
    this.#fetch = options.fetch ?? globalThis.fetch.bind(globalThis);
  }

  endpoint(path: string, query: Call["query"] = {}): URL {
    const url = new URL(this.url);
    url.pathname = this.url.pathname.replace(/\/$/, "") + path;
    for (const [name, value] of Object.entries(query)) {
      for (const one of Array.isArray(value) ? value : [value]) {
        if (one !== undefined) url.searchParams.append(name, checkUnicode(String(one)));
      }
    }
    return url;
  }

  async token(): Promise<string | undefined> {
    return typeof this.#token === "function" ? this.#token() : this.#token;
  }

  /** The answer's JSON, null for 204. A NotAGatewayError if it has not these members. */
  async json<T>(call: Call, ...members: (keyof T & string)[]): Promise<T> {
    return this.#retried(call, async () => {
      const response = await this.#send(call, this.#timeoutMs + (call.waitMs ?? 0));
      if (!response.ok) throw await refusal(response, call);
      if (response.status === 204) return null as T;
      let answer: unknown;
      try {
        answer = await response.json();
      } catch (error) {
        if (!(error instanceof SyntaxError)) throw unanswered(error, call, this.url);
      }
      if (isObject(answer) && members.every((name) => name in answer)) return answer as T;
      throw new NotAGatewayError(`${call.path} did not answer with the JSON of a gateway`);
    });
  }

  /** An answer with events, whose body does not end. */
  async stream(call: Call): Promise<Response> {
    return this.#retried(call, async () => {
      const response = await this.#send(call);
      if (!response.ok) throw await refusal(response, call);
      // Nothing comes any more to who comes back with 204.
      if (response.status === 204 || response.headers.get("content-type")?.startsWith("text/event-stream")) return response;
      await response.body?.cancel();
      throw new NotAGatewayError(`${call.path} did not answer with events`);
    });
  }

  /** Send a call that names a consumer; without it, to a gateway that does not know that. */
  async naming<T>(feature: Feature, consumer: string | undefined, send: (named?: string) => Promise<T>): Promise<T> {
    const named = consumer !== undefined && (await this.#knows(feature)) ? consumer : undefined;
    try {
      return await send(named);
    } catch (error) {
      if (named === undefined || !refusesConsumer(error)) throw error;
      this.#features = Promise.resolve([]);
      return send();
    }
  }

  /** Whether the gateway says that it knows this. It is asked once, and again once a connection was lost. */
  async #knows(feature: Feature): Promise<boolean> {
    this.#features ??= this.json<{ features?: readonly string[] }>({ path: "/v1" }).then(({ features = [] }) => features);
    try {
      return (await this.#features).includes(feature);
    } catch (error) {
      this.#features = undefined;
      // Not every proxy lets that through. What the gateway does not know it refuses.
      if (error instanceof ApiError || error instanceof NotAGatewayError) return true;
      throw error;
    }
  }

  async #retried<T>(call: Call, attempt: () => Promise<T>): Promise<T> {
    const deadline = performance.now() + this.retryMs;
    for (let pauseMs = RETRY_PAUSE_MS_MIN; ; pauseMs = Math.min(2 * pauseMs, RETRY_PAUSE_MS_MAX)) {
      const asked = this.#asksLongCursors;
      try {
        return await attempt();
      } catch (error) {
        if (call.cursorOf && asked && isUnknownCursor(error)) {
          this.#asksLongCursors = false;
          continue;
        }
        const leastMs = error instanceof ApiError ? (error.retryAfterMs ?? 0) : 0;
        const waitMs = Math.max(leastMs, pauseMs * (0.5 + Math.random()));
        if (!mayRepeat(error, call) || performance.now() + waitMs > deadline) throw error;
        await sleep(waitMs, call.signal);
      }
    }
  }

  /** The call as this gateway understands its cursors. */
  #withCursors(call: Call): Call {
    const { cursorOf, query = {}, headers = {} } = call;
    if (!cursorOf) return call;
    if (this.#asksLongCursors) return { ...call, query: { ...query, ...LONG_CURSORS } };
    const { after, ...others } = query;
    const { "last-event-id": last, ...rest } = headers;
    return {
      ...call,
      query: { ...others, ...(typeof after === "string" && { after: bareCursor(after, cursorOf) }) },
      headers: { ...rest, ...(last !== undefined && { "last-event-id": bareCursor(last, cursorOf) }) },
    };
  }

  async #send(asked: Call, timeoutMs?: number): Promise<Response> {
    const call = this.#withCursors(asked);
    const headers: Record<string, string> = { accept: "application/json, application/problem+json", ...call.headers };
    const token = await this.token();
    if (token !== undefined) headers.authorization = `Bearer ${token}`;
    checkHeaders(headers);
    const signals = [call.signal, timeoutMs === undefined ? undefined : AbortSignal.timeout(timeoutMs)];
    const init: RequestInit = {
      method: call.method ?? "GET",
      headers,
      signal: AbortSignal.any(signals.filter((signal) => signal !== undefined)),
    };
    if (call.body !== undefined) {
      headers["content-type"] ??= "application/json";
      init.body = toJson(call.body);
    }
    const url = this.endpoint(call.path, call.query);
    try {
      return await this.#fetch(url, init);
    } catch (error) {
      if (call.signal?.aborted) throw error;
      // Another version may be there next time.
      this.#features = undefined;
      throw unanswered(error, call, this.url);
    }
  }
}

async function refusal(response: Response, call: Call): Promise<ApiError | NoAnswerError> {
  let problem: Problem = {};
  try {
    const parsed: unknown = await response.json();
    // Of a Redis command only Redis's own sentence is there.
    if (isObject(parsed)) problem = "error" in parsed ? { detail: String(parsed.error), ...parsed } : parsed;
  } catch {
    // A proxy in between may answer with anything.
  }
  if (BROKEN.includes(response.status) && problem.code === undefined && !isRepeatable(call)) {
    return new NoAnswerError(`the gateway answered ${response.status}`, true);
  }
  const after = response.headers.get("retry-after");
  return apiError(response.status, problem, after && /^\d+$/.test(after) ? Number(after) * 1000 : undefined);
}

/** `fetch` does not say whether the request was sent, so a failure leaves it open unless repeating is safe. */
function unanswered(error: unknown, call: Call, url: URL): NoAnswerError {
  // Node says "fetch failed", and why in its cause, whose message may be empty.
  const { message, cause } = error instanceof Error ? error : new Error(String(error));
  const { message: detail, code } = (cause ?? {}) as { message?: string; code?: string };
  return new NoAnswerError(`the gateway at ${url.href} does not answer: ${detail || code || message}`, !isRepeatable(call), { cause: error });
}

/** Whether the same may succeed later: no answer, or one that a gateway or a proxy gives for a time. */
export function isTemporary(error: unknown): boolean {
  if (error instanceof NoAnswerError) return true;
  return error instanceof ApiError && (error.retryable || BUSY.includes(error.status) || isOfProxy(error));
}

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null;
}

function isRepeatable(call: Call): boolean {
  return call.repeatable ?? ["GET", "PUT", "PATCH"].includes(call.method ?? "GET");
}

function mayRepeat(error: unknown, call: Call): boolean {
  if (call.signal?.aborted) return false;
  if (error instanceof NoAnswerError) return !error.outcomeUnknown;
  if (!(error instanceof ApiError)) return false;
  if (isRepeatable(call)) return BUSY.includes(error.status) || isOfProxy(error);
  // The change may have been made.
  return BUSY.includes(error.status) && error.problem.outcome !== "unknown";
}

/** What a gateway itself says of its backend (502) has a code: it would say the same again. */
function isOfProxy(error: ApiError): boolean {
  return BROKEN.includes(error.status) && error.code === "";
}

/** A name as one segment of a path. */
export function segment(name: string): string {
  if (name.split("/").some((part) => ["", ".", ".."].includes(part))) {
    throw new InvalidValueError(`${JSON.stringify(name)} is not a name: it must not be '', '.' or '..', nor hold such a part between slashes`);
  }
  if (!isUnicode(name)) throw new InvalidValueError(`${JSON.stringify(name)} is not a name: it is not valid Unicode`);
  return encodeURIComponent(name);
}

/** The text, unless it holds half of a surrogate pair: URLs and bytes would hold another character in its place. */
export function checkUnicode(text: string): string {
  if (isUnicode(text)) return text;
  throw new InvalidValueError(`${JSON.stringify(text)} cannot be sent: it is not valid Unicode`);
}

function toJson(body: unknown): string {
  const text = JSON.stringify(body);
  if (ESCAPED_HALF.test(text)) throw new InvalidValueError("text that is not valid Unicode cannot be sent");
  return text;
}

function isUnicode(text: string): boolean {
  return !/\p{Surrogate}/u.test(text);
}

/** What is refused is not shown: it may be a token. */
function checkHeaders(headers: Record<string, string>): void {
  for (const [name, value] of Object.entries(headers)) {
    if (!/^[ -~]+$/.test(value)) {
      throw new InvalidValueError(`${name} cannot be sent: it is empty, or not printable ASCII`);
    }
  }
}

export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const abort = (): void => {
      clearTimeout(timer);
      reject(signal?.reason as Error);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", abort);
      resolve();
    }, ms);
    if (signal?.aborted) abort();
    else signal?.addEventListener("abort", abort, { once: true });
  });
}
