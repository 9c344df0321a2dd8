/**
 * Answers of a model that survive a reload: a store for assistant-ui's resumable streams, and what the package
 * `resumable-stream` offers. An answer is a stream of the gateway, which any process produces, resumes or ends.
 *
 * Its first entry, `begin`, elects the producer: it is only published into an empty stream. Each further one is only
 * published directly behind the producer's last one, so that a producer whose answer was begun anew cannot write into
 * that. The stream is closed with the entry `end`.
 */

import { Client, newKey } from "./client.js";
import { bytes, encodeEntry, type StreamInfo } from "./entries.js";
import { ApiError } from "./errors.js";
import { segment, type ClientOptions } from "./http.js";

const TTL_MS_DEFAULT = 24 * 60 * 60 * 1000;
const WAIT_MS = 20_000;
const PAGE_COUNT = 500;
/** The lifetime counts from the last piece, give or take this part of it. */
const REFRESH_PART = 0.1;
const EMPTY = "0-0";
const STREAM_ID = /^[A-Za-z0-9_.:-]{1,256}$/;
/** Reasons of gaps after which what exists is still of the stream that was read. */
const STILL_THE_STREAM = new Set([undefined, "trimmed", "failover"]);

export interface ResumableOptions extends ClientOptions {
  /** What the names of the streams begin with, before the ID. */
  prefix?: string;
  /** How long an answer is kept after its last piece; a day if not given. */
  ttlMs?: number;
}

export type Role = "producer" | "consumer";
export type Status = "streaming" | "done" | "error" | "missing";
export interface Lease {
  readonly token: string;
}
export type Acquisition = { readonly role: "producer"; readonly lease: Lease } | { readonly role: "consumer" };

/** As assistant-ui has it. */
export class ResumableStreamError extends Error {
  override readonly name = "ResumableStreamError";

  constructor(
    readonly code: "missing" | "finalized" | "invalid-id",
    message: string,
  ) {
    super(message);
  }
}

/** What a producer knows of its answer. */
interface Answer {
  readonly stream: string;
  /** The first entry: which answer it is. */
  readonly begun: string;
  readonly ttlMs: number;
  lastId: string;
  refreshedMs: number;
}

/** A `ResumableStreamStore` of `assistant-stream/resumable`. */
export class WeirResumableStreamStore {
  readonly #client: Client;
  readonly #prefix: string;
  readonly #ttlMs: number;
  /** By their leases. */
  readonly #answers = new Map<string, Answer>();
  /** The lease of those that go without one. */
  readonly #acquired = new Map<string, string>();

  constructor(options: ResumableOptions = {}) {
    const { prefix = "answers:", ttlMs = TTL_MS_DEFAULT, ...client } = options;
    this.#client = new Client(client);
    this.#prefix = prefix;
    this.#ttlMs = ttlMs;
  }

  async acquire(streamId: string, options: { ttlMs?: number } = {}): Promise<Role> {
    return (await this.acquireLease(streamId, options)).role;
  }

  /** Elect the producer of an answer: one of all that ask, until it is deleted or has expired. */
  async acquireLease(streamId: string, options: { ttlMs?: number } = {}): Promise<Acquisition> {
    const stream = this.#name(streamId);
    const ttlMs = options.ttlMs ?? this.#ttlMs;
    // Before the election, so that no answer stays for ever.
    await this.#client.http.json({ method: "PUT", path: path(stream), body: { expires_in_ms: ttlMs }, repeatable: true });
    try {
      const { last_id: lastId } = await this.#client.publish(stream, { begin: ttlMs }, { ifLastId: EMPTY });
      this.#answers.set(lastId, { stream, begun: lastId, ttlMs, lastId, refreshedMs: Date.now() });
      this.#acquired.set(streamId, lastId);
      return { role: "producer", lease: { token: lastId } };
    } catch (error) {
      if (isConflict(error)) return { role: "consumer" };
      throw error;
    }
  }

  /** Add a piece. A ResumableStreamError if the answer has ended, or was begun anew by another producer. */
  async append(streamId: string, chunk: Uint8Array, lease?: Lease): Promise<void> {
    const answer = await this.#own(streamId, lease);
    const { stream } = answer;
    const copy = new Uint8Array(chunk);
    await this.#behindTheLast(streamId, answer, async (ifLastId) => {
      const published = await this.#client.publish(stream, { chunk: copy }, { ifLastId, nomkstream: true });
      answer.lastId = published.last_id;
    });
    if (Date.now() - answer.refreshedMs > answer.ttlMs * REFRESH_PART) {
      await this.#keep(answer);
      answer.refreshedMs = Date.now();
    }
  }

  /** End the answer. False, and nothing changes, if it has ended, or was begun anew by another producer. */
  async finalize(streamId: string, status: "done" | "error", error?: string, lease?: Lease): Promise<boolean> {
    try {
      const answer = await this.#own(streamId, lease);
      await this.#keep(answer);
      const fields = status === "done" ? { end: status } : { end: status, error: error ?? "Stream errored" };
      const key = newKey();
      await this.#behindTheLast(streamId, answer, async (lastId) => {
        await this.#client.http.json({
          method: "POST",
          path: `${path(answer.stream)}/close`,
          body: { entry: encodeEntry(fields) },
          headers: { "if-match": `"${lastId}"`, "idempotency-key": key },
          repeatable: true,
        });
      });
      this.#forget(streamId, answer.begun);
      return true;
    } catch (refused) {
      if (!(refused instanceof ResumableStreamError) || refused.code === "invalid-id") throw refused;
      if (lease) this.#forget(streamId, lease.token);
      return false;
    }
  }

  /** The pieces after a cursor (empty: all), as they come, to the end; at once after `signal`. */
  async *read(
    streamId: string,
    cursor: string,
    signal: AbortSignal,
  ): AsyncGenerator<{ readonly cursor: string; readonly chunk: Uint8Array }> {
    const stream = this.#name(streamId);
    await this.#describe(streamId);
    for (let after = cursor || EMPTY; !signal.aborted; ) {
      let page;
      try {
        page = await this.#client.readAfter(stream, after, { count: PAGE_COUNT, waitMs: WAIT_MS, signal });
      } catch (error) {
        if (signal.aborted) return;
        throw error;
      }
      for (const entry of page.entries) {
        if (signal.aborted) return;
        if (entry.fields.end === "error") throw new Error(entry.fields.error ?? "Stream errored");
        if (entry.fields.chunk !== undefined) yield { cursor: entry.id, chunk: bytes(entry).chunk as Uint8Array };
      }
      const isGone = page.gap !== undefined && !STILL_THE_STREAM.has(page.gap.reason);
      if (page.closed || isGone) return;
      if (page.entries.length === 0 && !(await this.#client.getStream(stream))) return;
      after = page.next ?? after;
    }
  }

  async status(streamId: string): Promise<Status> {
    const found = await this.#client.getStream(this.#name(streamId));
    if (!found?.length) return "missing";
    if (!found.closed) return "streaming";
    return found.last_entry?.fields?.end === "error" ? "error" : "done";
  }

  /** Remove the answer; those that read it end. */
  async delete(streamId: string): Promise<void> {
    try {
      await this.#client.deleteStream(this.#name(streamId));
    } catch (error) {
      if (!isMissing(error)) throw error;
    }
  }

  #name(streamId: string): string {
    if (STREAM_ID.test(streamId)) return this.#prefix + streamId;
    throw new ResumableStreamError("invalid-id", `Invalid streamId: ${streamId} (must match ${STREAM_ID})`);
  }

  async #describe(streamId: string): Promise<StreamInfo> {
    const found = await this.#client.getStream(this.#name(streamId));
    if (!found?.length) throw new Error(`Stream not found: ${streamId}`);
    return found;
  }

  /** The answer of a lease; another process may go on with one that it did not begin. */
  async #own(streamId: string, lease?: Lease): Promise<Answer> {
    const stream = this.#name(streamId);
    const token = lease?.token ?? this.#acquired.get(streamId);
    const known = token === undefined ? undefined : this.#answers.get(token);
    if (known) return known;
    const found = await this.#describe(streamId);
    const ttlMs = Number(found.first_entry?.fields?.begin ?? this.#ttlMs);
    const begun = token ?? found.first_entry?.id ?? EMPTY;
    const answer = { stream, begun, ttlMs, lastId: found.last_id, refreshedMs: 0 };
    check(streamId, answer, found);
    return answer;
  }

  /** Publish behind the last entry, wherever that is by now, as long as it is the same answer and has not ended. */
  async #behindTheLast(streamId: string, answer: Answer, publish: (lastId: string) => Promise<void>): Promise<void> {
    for (;;) {
      try {
        return await publish(answer.lastId);
      } catch (error) {
        if (!isConflict(error) && !isMissing(error)) throw error;
        const found = await this.#describe(streamId);
        check(streamId, answer, found);
        answer.lastId = found.last_id;
      }
    }
  }

  #forget(streamId: string, token: string): void {
    this.#answers.delete(token);
    if (this.#acquired.get(streamId) === token) this.#acquired.delete(streamId);
  }

  /** Let the stream go after its lifetime; where it has gone, the next call says so. */
  async #keep({ stream, ttlMs }: Answer): Promise<void> {
    const call = { method: "PATCH", path: path(stream), body: { expires_in_ms: ttlMs }, repeatable: true };
    await this.#client.http.json(call).catch((error: unknown) => {
      if (!isMissing(error)) throw error;
    });
  }
}

function check(streamId: string, answer: Answer, found: StreamInfo): void {
  if (found.first_entry?.id !== answer.begun) {
    throw new ResumableStreamError("missing", `Stream superseded by a new acquisition: ${streamId}`);
  }
  if (found.closed) throw new ResumableStreamError("finalized", `Stream already finalized: ${streamId}`);
}

function path(stream: string): string {
  return `/v1/streams/${segment(stream)}`;
}

/** Another entry is the last one, or the stream is closed. */
function isConflict(error: unknown): boolean {
  return error instanceof ApiError && (error.status === 409 || error.status === 412);
}

function isMissing(error: unknown): boolean {
  return error instanceof ApiError && error.status === 404;
}

/** What `createResumableStreamContext` of the package `resumable-stream` returns. */
export interface ResumableStreamContext {
  /** Produce the answer, or resume it where it is produced already; null if it has ended. */
  resumableStream(id: string, makeStream: () => ReadableStream<string>, skipCharacters?: number): Promise<ReadableStream<string> | null>;
  /** Produce the answer anew; what there was of that ID is deleted. */
  createNewResumableStream(id: string, makeStream: () => ReadableStream<string>, skipCharacters?: number): Promise<ReadableStream<string> | null>;
  /** Resume an answer; null if it has ended, undefined if there is none. */
  resumeExistingStream(id: string, skipCharacters?: number): Promise<ReadableStream<string> | null | undefined>;
  hasExistingStream(id: string): Promise<null | true | "DONE">;
}

/**
 * In the place of `createResumableStreamContext` of `resumable-stream`, without its publishers and subscribers: pieces are
 * in the gateway, so that an answer can be resumed where its producer has gone. `waitUntil` keeps a serverless function
 * alive until the answer has ended, as `after` of Next.js does; null where nothing would end it.
 */
export function createResumableStreamContext(
  options: ResumableOptions & { waitUntil: ((promise: Promise<unknown>) => void) | null },
): ResumableStreamContext {
  const { waitUntil, ...rest } = options;
  const store = new WeirResumableStreamStore(rest);

  async function produce(id: string, makeStream: () => ReadableStream<string>, lease: Lease): Promise<void> {
    let reader: ReadableStreamDefaultReader<string> | undefined;
    try {
      const encoder = new TextEncoder();
      reader = makeStream().getReader();
      for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
        await store.append(id, encoder.encode(piece.value), lease);
      }
      await store.finalize(id, "done", undefined, lease);
    } catch (error) {
      await store.finalize(id, "error", error instanceof Error ? error.message : String(error), lease);
      // Where the answer was stopped, the model is, too.
      await reader?.cancel(error).catch(() => undefined);
    }
  }

  async function begin(id: string, makeStream: () => ReadableStream<string>): Promise<boolean> {
    const acquisition = await store.acquireLease(id);
    if (acquisition.role === "consumer") return false;
    const producing = produce(id, makeStream, acquisition.lease).catch((error: unknown) => {
      console.error("an answer could not be ended:", error);
    });
    waitUntil?.(producing);
    return true;
  }

  async function resume(id: string, skipCharacters = 0): Promise<ReadableStream<string> | null | undefined> {
    const status = await store.status(id);
    if (status === "missing") return undefined;
    return status === "streaming" ? follow(store, id, skipCharacters) : null;
  }

  return {
    async resumableStream(id, makeStream, skipCharacters) {
      if (await begin(id, makeStream)) return follow(store, id, 0);
      return (await resume(id, skipCharacters)) ?? null;
    },
    async createNewResumableStream(id, makeStream) {
      while (!(await begin(id, makeStream))) await store.delete(id);
      return follow(store, id, 0);
    },
    resumeExistingStream: resume,
    async hasExistingStream(id) {
      const status = await store.status(id);
      if (status === "missing") return null;
      return status === "streaming" ? true : "DONE";
    },
  };
}

/** The text of an answer behind its first characters. */
function follow(store: WeirResumableStreamStore, id: string, skipCharacters: number): ReadableStream<string> {
  const stopping = new AbortController();
  const pieces = store.read(id, "", stopping.signal);
  const decoder = new TextDecoder();
  let left = skipCharacters;
  return new ReadableStream<string>({
    async pull(controller) {
      const { done, value } = await pieces.next();
      if (done) return controller.close();
      const text = decoder.decode(value.chunk, { stream: true });
      controller.enqueue(text.slice(left));
      left = Math.max(0, left - text.length);
    },
    cancel() {
      stopping.abort();
    },
  });
}
