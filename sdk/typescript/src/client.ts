/** The client: every operation of the API that programs use. */

import type { Answer, Body, Query, Schema, Sent } from "./documents/types.js";
import {
  encodeEntry,
  list,
  parseEntry,
  parsePage,
  parsePublished,
  type Entry,
  type Fields,
  type GroupInfo,
  type Page,
  type PendingEntry,
  type Published,
  type Retention,
  type StreamInfo,
  type WireEntry,
} from "./entries.js";
import { apiError, ApiError, GapError, InvalidValueError, NotAGatewayError, type Gap, type Problem } from "./errors.js";
import { Http, isObject, segment, sleep, type Call, type ClientOptions } from "./http.js";
import { EventParser } from "./sse.js";

/** A tail without news sends a comment every 15 seconds; after twice that the connection is dead. */
const SILENCE_MS_MAX = 30_000;
const RETRY_MS_DEFAULT = 1_000;

/** Reasons of gaps after which what exists is still of the stream that was read. */
const STILL_THE_STREAM = new Set([undefined, "trimmed", "failover", "ahead"]);

export type References = NonNullable<Schema<"Deletion">["refs"]>;
export type NackMode = Schema<"Negation">["mode"];

/** Of an entry for later: when it is appended. */
export type ScheduledEntry = Schema<"Scheduled">;
export type ScheduleRule = Omit<Body<"putSchedule">, "entry">;
export type Schedule = Answer<"getSchedule">;
export type StreamSchedule = Schedule & { stream: string };

/** An entry of a batch: at once if it has no time. `schedule` is the name that it has until then. */
export interface TimedEntry {
  fields: Fields;
  delayMs?: number;
  /** RFC 3339. */
  deliverAt?: string;
  schedule?: string;
}

/** The IDs of what was published at once, in order; and the others, each with its place in the batch. */
export interface PublishedTimed {
  ids: readonly string[];
  scheduled: readonly (ScheduledEntry & { index: number })[];
}

export interface AddOptions extends Omit<Query<"addEntries">, "deliver_at" | "delay_ms" | "schedule"> {
  /** Idempotency key; random if not given. */
  key?: string;
  /** Publish only directly after this entry. */
  ifLastId?: string;
  /** Answer when the entry is on disk. */
  durability?: "fsync";
}

export type Range = Pick<Query<"readEntries">, "start" | "end" | "since" | "until" | "reverse" | "count">;

export type DeadLettered = Answer<"deadLetterEntries">;
export type Redriven = Answer<"redriveDeadLetters">;

export interface RedriveOptions extends Body<"redriveDeadLetters"> {
  /** Idempotency key; random if not given, none for a dry run. */
  key?: string;
}

export interface TailOptions {
  /** Begin after this ID; `0`: with the oldest entry, `$` (default): with the next. */
  after?: string;
  /** Begin this number of entries back instead. */
  last?: number;
  /**
   * Hears of entries that were removed before they were read, and of what happened to the stream: the `reason` of a gap.
   * Without it that throws a GapError.
   */
  onGap?: (gap: Gap, stream: string) => void;
  signal?: AbortSignal;
}

export class Client {
  readonly http: Http;

  /** The gateway's URL alone, or with other options. */
  constructor(options: ClientOptions | string = {}) {
    this.http = new Http(typeof options === "string" ? { url: options } : options);
  }

  /** Add one entry, once, however often it has to be sent. */
  async publish(stream: string, fields: Fields, options: AddOptions & { id?: string } = {}): Promise<Published> {
    const { id, ...rest } = options;
    return this.#add(stream, encodeEntry(fields, id), rest);
  }

  /** Add entries, all or none, with consecutive IDs. */
  async publishBatch(stream: string, entries: readonly Fields[], options: AddOptions = {}): Promise<Published> {
    return this.#add(stream, { entries: entries.map((fields) => encodeEntry(fields)) }, options);
  }

  /** Add entries to several streams, all or none. */
  async publishMany(
    streams: Readonly<Record<string, readonly Fields[]>>,
    key: string = newKey(),
  ): Promise<Record<string, Published>> {
    const encoded = Object.entries(streams).map(([name, all]) => [name, all.map((one) => encodeEntry(one))]);
    const answer = await this.http.json<Answer<"publish">>({
      method: "POST",
      path: "/v1/publish",
      body: { streams: Object.fromEntries(encoded) as unknown },
      headers: { "idempotency-key": key },
      repeatable: true,
    }, "streams", "duplicate");
    const parse = (one: Schema<"PublishedRun">): Published => parsePublished({ ...one, duplicate: answer.duplicate });
    return Object.fromEntries(Object.entries(answer.streams).map(([name, one]) => [name, parse(one)]));
  }

  /** A page of entries between two IDs, or two times (RFC 3339). A missing stream is empty. */
  async read(stream: string, range: Range = {}): Promise<Page> {
    return this.#page(stream, { ...range });
  }

  /**
   * A page of entries after an ID or a `next`, waiting for the first one if asked to. Continue with `next`: it knows its
   * stream, so that `gap` says if another one has the name by now.
   */
  async readAfter(
    stream: string,
    after: string,
    options: { count?: number; waitMs?: number; signal?: AbortSignal } = {},
  ): Promise<Page> {
    const { count, waitMs, signal } = options;
    const more = { cursorOf: 1, ...(waitMs && { waitMs }), ...(signal && { signal }) };
    return this.#page(stream, { after, count, wait: waitMs }, more);
  }

  /**
   * Deliver new entries of several streams to a consumer of their groups of this name: `count` of all together, those of
   * the first stream first. If the answer is lost they are delivered all the same: see `history` of each group.
   */
  async readGroup(
    streams: readonly string[],
    options: { group: string; consumer: string; count?: number; waitMs?: number; claimMinIdleMs?: number; signal?: AbortSignal },
  ): Promise<Map<string, Page>> {
    const { group, consumer, count = 100, waitMs: wait, claimMinIdleMs: claim_min_idle_ms, signal } = options;
    const cursors = Object.fromEntries(streams.map((stream) => [stream, ">"]));
    const body = { streams: cursors, group, consumer, count, count_total: count, wait, claim_min_idle_ms };
    const call: Call = { method: "POST", path: "/v1/read", body, ...(wait && { waitMs: wait }), ...(signal && { signal }) };
    const answer = await this.http.json<Answer<"readStreams">>(call, "streams");
    return new Map(Object.entries(answer.streams).map(([stream, page]) => [stream, parsePage(page, stream)]));
  }

  /**
   * All entries after an ID that exist now (up to `end`), page by page. A GapError if the stream is another one by the
   * time of a later page.
   */
  async *entries(stream: string, options: { after?: string; end?: string; pageCount?: number } = {}): AsyncGenerator<Entry> {
    let after = options.after ?? "0";
    for (;;) {
      const query = { after, end: options.end, count: options.pageCount ?? 1_000 };
      const page = await this.#page(stream, query, { cursorOf: 1 });
      if (page.gap && !STILL_THE_STREAM.has(page.gap.reason)) throw new GapError(stream, page.gap);
      yield* page.entries;
      if (page.next === null || !page.more) return;
      after = page.next;
    }
  }

  /**
   * Entries as they are published, across lost connections and restarts of the gateway. It ends when all streams are
   * closed, behind the last entry.
   */
  async *tail(streams: string | readonly string[], options: TailOptions = {}): AsyncGenerator<Entry> {
    const names = typeof streams === "string" ? [streams] : streams;
    const first = names[0];
    if (first === undefined) throw new InvalidValueError("name at least one stream");
    const start = options.last === undefined ? { after: options.after ?? "$" } : { last: options.last };
    let cursor: string | undefined;
    const open = new Set(names);
    for (let retryMs = RETRY_MS_DEFAULT; ; await sleep(retryMs * (0.5 + Math.random()), options.signal)) {
      const call: Call = {
        path: names.length === 1 ? `${streamPath(first)}/tail` : "/v1/tail",
        query: names.length === 1 ? start : { stream: names, ...start },
        cursorOf: names.length,
        headers: {
          accept: "text/event-stream, application/problem+json",
          ...(cursor !== undefined && { "last-event-id": cursor }),
        },
        ...(options.signal && { signal: options.signal }),
      };
      const parser = new EventParser();
      const response = await this.http.stream(call);
      // What it is answered that comes back to the end.
      if (response.status === 204) return;
      for await (const text of texts(response, options.signal)) {
        for (const event of parser.feed(text)) {
          retryMs = event.retryMs ?? retryMs;
          if (event.name === "error") throw problemError(parse(event.data));
          if (event.name === "gap") reportGap(parse<Gap & { stream?: string }>(event.data), first, options);
          if (event.name === "entry") {
            const entry = parseEntry(parse<WireEntry>(event.data), first);
            cursor = event.id ?? cursor;
            yield entry;
          } else cursor = event.id ?? cursor;
          if (event.name === "closed") open.delete(parse<{ stream?: string }>(event.data).stream ?? first);
        }
        if (open.size === 0) return;
      }
    }
  }

  /** One entry; undefined if it is not there. */
  async getEntry(stream: string, id: string): Promise<Entry | undefined> {
    const path = `${streamPath(stream)}/entries/${segment(id)}`;
    const wire = await ifFound(this.http.json<Answer<"getEntry">>({ path }));
    return wire && parseEntry(wire, stream);
  }

  /** Delete entries; for each ID `deleted`, `absent` or `kept`. */
  async deleteEntries(
    stream: string,
    ids: readonly string[],
    refs: References = "keep",
  ): Promise<NonNullable<Answer<"deleteEntries">["results"]>> {
    const path = `${streamPath(stream)}/entries/delete`;
    const answer = await this.http.json<Answer<"deleteEntries">>({
      method: "POST",
      path,
      body: { ids, refs },
      repeatable: true,
    }, "results");
    return answer.results ?? {};
  }

  /** Remove old entries; how many. `guard` refuses to remove what a group has not finished. */
  async trim(stream: string, bounds: Body<"trimStream">): Promise<number> {
    const path = `${streamPath(stream)}/trim`;
    const answer = await this.http.json<Answer<"trimStream">>({ method: "POST", path, body: bounds, repeatable: true }, "deleted");
    return answer.deleted;
  }

  /** All streams by name. */
  async *listStreams(prefix?: string): AsyncGenerator<StreamInfo> {
    for (let after: string | null | undefined; after !== null; ) {
      const query: Sent<Query<"listStreams">> = { prefix, limit: 1_000, after };
      const page = await this.http.json<Answer<"listStreams">>({ path: "/v1/streams", query }, "streams", "next");
      yield* list(page.streams);
      after = page.next;
    }
  }

  /** One stream; undefined if it does not exist. */
  async getStream(stream: string): Promise<StreamInfo | undefined> {
    return ifFound(this.http.json<Answer<"getStream">>({ path: streamPath(stream) }, "name"));
  }

  /** Create a stream if it is missing. */
  async ensureStream(stream: string, retention?: Retention): Promise<StreamInfo> {
    const body: Body<"putStream"> = retention ? { retention } : {};
    return this.http.json<Answer<"putStream">>({ method: "PUT", path: streamPath(stream), body }, "name");
  }

  /**
   * End a stream for good, behind a last entry if there is one: both are stored, or neither. Its readers end.
   * A stream with schedules is refused, unless they are to be dropped.
   */
  async closeStream(
    stream: string,
    options: { entry?: Fields; reason?: string; idempotencyKey?: string; dropSchedules?: boolean } = {},
  ): Promise<Answer<"closeStream">> {
    const { entry, reason, idempotencyKey = newKey(), dropSchedules = false } = options;
    return this.http.json<Answer<"closeStream">>({
      method: "POST",
      path: `${streamPath(stream)}/close`,
      ...(dropSchedules && { query: { schedules: "drop" } }),
      body: { ...(reason !== undefined && { reason }), ...(entry && { entry: encodeEntry(entry) }) },
      headers: { "idempotency-key": idempotencyKey },
      repeatable: true,
    }, "last_id");
  }

  /**
   * Add one entry after `delayMs`, or at a time (RFC 3339). With a `name` it replaces the one of that name, and is sent
   * again where the answer is lost.
   */
  async publishLater(
    stream: string,
    fields: Fields,
    when: { delayMs?: number; deliverAt?: string; name?: string },
  ): Promise<ScheduledEntry> {
    const { delayMs: delay_ms, deliverAt: deliver_at, name: schedule } = when;
    const query: Sent<Query<"addEntries">> = { delay_ms, deliver_at, schedule };
    const repeatable = schedule !== undefined;
    const call: Call = { method: "POST", path: `${streamPath(stream)}/entries`, query, body: encodeEntry(fields), repeatable };
    const answer = await this.http.json<ScheduledEntry>(call, "schedule", "deliver_at");
    return { schedule: answer.schedule, deliver_at: answer.deliver_at };
  }

  /**
   * Add entries, all or none: those with `delayMs` or `deliverAt` later, the others at once. It is sent again where the
   * answer is lost if each has a `schedule`, its name.
   */
  async publishTimed(stream: string, entries: readonly TimedEntry[]): Promise<PublishedTimed> {
    const rows = entries.map(({ fields, delayMs: delay_ms, deliverAt: deliver_at, schedule }) =>
      ({ ...encodeEntry(fields), delay_ms, deliver_at, schedule }));
    const repeatable = entries.every(({ schedule }) => schedule !== undefined);
    const call: Call = { method: "POST", path: `${streamPath(stream)}/entries`, body: { entries: rows }, repeatable };
    const { ids = [], scheduled = [] } = await this.http.json<Answer<"addEntries">>(call, "duplicate");
    return { ids, scheduled: scheduled as PublishedTimed["scheduled"] };
  }

  /**
   * Add an entry at a time, or again and again. Call it whenever the program starts: the same definition keeps its next
   * time, another one replaces it.
   */
  async schedule(stream: string, name: string, fields: Fields, rule: Partial<ScheduleRule>): Promise<Schedule> {
    const call: Call = { method: "PUT", path: schedulePath(stream, name), body: { entry: encodeEntry(fields), ...rule } };
    return this.http.json<Schedule>(call, "name");
  }

  /** One schedule; undefined if it has run or was cancelled. */
  async getSchedule(stream: string, name: string): Promise<Schedule | undefined> {
    return ifFound(this.http.json<Schedule>({ path: schedulePath(stream, name) }, "name"));
  }

  /** What is scheduled for a stream, the next one first. */
  async *listSchedules(stream: string, by: "time" | "name" = "time"): AsyncGenerator<Schedule> {
    for (let after: string | null | undefined; after !== null; ) {
      const query: Sent<Query<"listSchedules">> = { by, after, limit: 1_000 };
      const path = `${streamPath(stream)}/schedules`;
      const page = await this.http.json<Answer<"listSchedules">>({ path, query }, "schedules", "next");
      yield* list(page.schedules);
      after = page.next;
    }
  }

  /** What is scheduled for all streams that one may read: what is late first, then what comes next. */
  async *listAllSchedules(): AsyncGenerator<StreamSchedule> {
    for (let after: string | null | undefined; after !== null; ) {
      const query: Sent<Query<"listAllSchedules">> = { after, limit: 1_000 };
      const page = await this.http.json<Answer<"listAllSchedules">>({ path: "/v1/schedules", query }, "schedules", "next");
      yield* list(page.schedules) as Iterable<StreamSchedule>;
      after = page.next;
    }
  }

  /** Cancel a schedule; false if it has run already, or never was. */
  async cancelSchedule(stream: string, name: string): Promise<boolean> {
    const call: Call = { method: "DELETE", path: schedulePath(stream, name) };
    return (await ifFound(this.http.json(call).then(() => true))) ?? false;
  }

  /**
   * Let a schedule wait until a time (RFC 3339), or until it is resumed. What recurs makes up for no run; a single entry
   * comes when the pause ends.
   */
  async pauseSchedule(stream: string, name: string, until?: string): Promise<Schedule> {
    return this.changeSchedule(stream, name, until === undefined ? { paused: true } : { paused_until: until });
  }

  /** Go on with a schedule that is paused. */
  async resumeSchedule(stream: string, name: string): Promise<Schedule> {
    return this.changeSchedule(stream, name, { paused: false });
  }

  private async changeSchedule(stream: string, name: string, body: Body<"updateSchedule">): Promise<Schedule> {
    return this.http.json<Schedule>({ method: "PATCH", path: schedulePath(stream, name), body }, "name");
  }

  /** Add the entry of a schedule now; its ID. What recurs keeps its next time. */
  async fireSchedule(stream: string, name: string): Promise<string> {
    const call: Call = { method: "POST", path: `${schedulePath(stream, name)}/fire` };
    const published = parsePublished(await this.http.json<Answer<"fireSchedule">>(call, "duplicate"));
    return published.ids[0] as string;
  }

  /** Delete a stream with its entries and groups. One with schedules is refused, unless they are to be dropped. */
  async deleteStream(stream: string, options: { dropSchedules?: boolean } = {}): Promise<void> {
    const { dropSchedules = false } = options;
    await this.http.json({
      method: "DELETE",
      path: streamPath(stream),
      ...(dropSchedules && { query: { schedules: "drop" } }),
    });
  }

  /** A group of a stream. Nothing is sent. */
  group(stream: string, name: string): Group {
    return new Group(this.http, stream, name);
  }

  /** Run a Redis stream command: `await client.command("XLEN", "orders")`. */
  async command(...words: (string | number)[]): Promise<unknown> {
    const call: Call = { method: "POST", path: "/v1/commands", body: words };
    return (await this.http.json<Answer<"runCommand">>(call, "result")).result;
  }

  async #page(stream: string, query: Sent<Query<"readEntries">>, more: Partial<Call> = {}): Promise<Page> {
    const path = `${streamPath(stream)}/entries`;
    return parsePage(await this.http.json<Answer<"readEntries">>({ path, query, ...more }, "entries"), stream);
  }

  async #add(stream: string, body: object, options: AddOptions): Promise<Published> {
    const { key = newKey(), ifLastId, durability, ...query } = options;
    const headers: Record<string, string> = { "idempotency-key": key };
    if (ifLastId !== undefined) headers["if-match"] = `"${ifLastId}"`;
    if (durability !== undefined) headers.prefer = `durability=${durability}`;
    const path = `${streamPath(stream)}/entries`;
    const call: Call = { method: "POST", path, query, body, headers, repeatable: true };
    return parsePublished(await this.http.json<Answer<"addEntries">>(call, "duplicate"));
  }
}

export class Group {
  readonly #http: Http;
  readonly #path: string;
  readonly #signal: AbortSignal | undefined;

  constructor(
    http: Http,
    readonly stream: string,
    readonly name: string,
    /** Ends all calls of this object once it is aborted. */
    signal?: AbortSignal,
  ) {
    this.#http = http;
    this.#signal = signal;
    this.#path = `${streamPath(stream)}/groups/${segment(name)}`;
  }

  /** Create the group and its stream where they are missing; an existing group keeps its position. */
  async ensure(start = "$", policy: Omit<Body<"ensureGroup">, "start"> = {}): Promise<GroupInfo> {
    const body: Body<"ensureGroup"> = { start, ...policy };
    return this.#json<Answer<"ensureGroup">>({ method: "PUT", path: this.#path, body }, "name");
  }

  /**
   * Deliver nothing from now on, neither new entries nor those given back, until `resume`. What consumers hold stays
   * theirs. An ApiError with status 404 if the group does not exist.
   */
  async pause(): Promise<GroupInfo> {
    return this.#update({ paused: true });
  }

  /** Deliver again, from where the group was paused. */
  async resume(): Promise<GroupInfo> {
    return this.#update({ paused: false });
  }

  /** Why the group delivers nothing, or nothing to this consumer, and what to do. Also of a group that does not exist. */
  async why(consumer?: string): Promise<Answer<"explainGroup">["reasons"]> {
    const query: Sent<Query<"explainGroup">> = { consumer };
    return (await this.#json<Answer<"explainGroup">>({ path: `${this.#path}/why`, query }, "reasons")).reasons;
  }

  async #update(body: Body<"updateGroup">): Promise<GroupInfo> {
    return this.#json<Answer<"updateGroup">>({ method: "PATCH", path: this.#path, body, repeatable: true }, "name");
  }

  /** The group as it is now; an ApiError with status 404 if it does not exist. */
  async info(): Promise<GroupInfo> {
    return this.#json<Answer<"getGroup">>({ path: this.#path }, "name");
  }

  /** Deliver new entries to a consumer. If the answer is lost they are delivered all the same: see `history`. */
  async read(
    consumer: string,
    options: { count?: number; waitMs?: number; claimMinIdleMs?: number; signal?: AbortSignal } = {},
  ): Promise<Page> {
    const { count = 100, waitMs, claimMinIdleMs, signal } = options;
    const body = { count, wait: waitMs, claim_min_idle_ms: claimMinIdleMs };
    return this.#read(consumer, body, { ...(waitMs && { waitMs }), ...(signal && { signal }) });
  }

  /** What was delivered to a consumer and is not acknowledged. */
  async history(consumer: string, options: { after?: string; count?: number } = {}): Promise<Page> {
    const { after = "0", count = 100 } = options;
    return this.#read(consumer, { after, count }, { repeatable: true });
  }

  /**
   * Acknowledge entries, and with `remove` delete them from the stream; how many were pending. Say which `consumer` has
   * done them: what another one holds by now stays with that one. Gateways that do not know that acknowledge whatever is
   * pending.
   */
  async ack(ids: readonly string[], remove?: References, consumer?: string): Promise<number> {
    const body = { ids, delete: remove };
    const answer = await this.#http.naming("ack_consumer", consumer, (named) =>
      this.#post<"ackEntries">("/ack", { ...body, consumer: named }, true, "acknowledged"),
    );
    return answer.acknowledged;
  }

  /**
   * Give entries back: after a failure, as if never delivered (`silent`), or for good (`fatal`). With `delayMs` no reader
   * gets them before that time is over. Say which `consumer` gives them back: what it does not hold any more stays with
   * the one who has it. These IDs are returned. Gateways that do not know that give back whatever is pending.
   */
  async nack(ids: readonly string[], mode: NackMode = "fail", delayMs = 0, consumer?: string): Promise<string[]> {
    const body = { ids, mode, ...(delayMs > 0 && { delay_ms: delayMs }) };
    const { results } = await this.#http.naming("nack_consumer", consumer, (named) =>
      this.#post<"nackEntries">("/nack", { ...body, consumer: named }, false, "results"),
    );
    return withResult(results, "not_held");
  }

  /**
   * Move pending entries to the group's dead-letter stream, as many as the gateway moves at once: call again for those
   * that are still pending. As with `ack`, an entry that was moved in an attempt whose answer was lost is not among the
   * `ids` of the answer. `consumer` as of `nack`: what it does not hold is `not_held`.
   */
  async deadLetter(ids: readonly string[], reason?: string, consumer?: string): Promise<DeadLettered> {
    return this.#http.naming("dead_letter_consumer", consumer, (named) =>
      this.#post<"deadLetterEntries">("/dead-letter", { ids, reason, consumer: named }, true, "ids", "stream"),
    );
  }

  /**
   * Send dead letters of the group back to its stream, as new entries that every group reads, once, however often the
   * call has to be sent: these `ids` of the dead-letter stream, or the first `count` (100) that `filter` selects. With
   * `dry_run` it only shows which. One call takes at most 100: while `next` is set, continue with `filter.start`
   * `(<next>`.
   */
  async redrive(options: RedriveOptions = {}): Promise<Redriven> {
    const { key = options.dry_run ? undefined : newKey(), ...body } = options;
    const headers: Record<string, string> = key === undefined ? {} : { "idempotency-key": key };
    const path = `${this.#path}/dead-letters/redrive`;
    const call: Call = { method: "POST", path, body, headers, repeatable: true };
    return this.#json<Answer<"redriveDeadLetters">>(call, "stream", "redriven", "entries");
  }

  /** Take over entries that were idle for so long; those that were taken. */
  async claim(consumer: string, ids: readonly string[], minIdleMs = 0): Promise<Entry[]> {
    const body = { consumer, ids, min_idle_ms: minIdleMs };
    const answer = await this.#post<"claimEntries">("/claim", body, false, "entries");
    return list(answer.entries ?? []).map((entry) => parseEntry(entry, this.stream));
  }

  /**
   * Start the idle time of a consumer's own entries anew; the IDs that it holds. What has timed out and was given to no
   * one since is its own again; what was given to another consumer stays there.
   */
  async extend(consumer: string, ids: readonly string[]): Promise<string[]> {
    const { results } = await this.#post<"extendEntries">("/extend", { consumer, ids }, true, "results");
    return withResult(results, "extended");
  }

  /** What was delivered and not acknowledged, by ID. */
  async *pending(options: { consumer?: string; minIdleMs?: number } = {}): AsyncGenerator<PendingEntry> {
    for (let start = "-"; ; ) {
      const { consumer, minIdleMs: min_idle_ms } = options;
      const query: Sent<Query<"listPending">> = { start, count: 1_000, consumer, min_idle_ms };
      const page = await this.#json<Answer<"listPending">>({ path: `${this.#path}/pending`, query }, "pending");
      yield* list(page.pending ?? []);
      if (!page.more || page.next === undefined) return;
      start = `(${page.next}`;
    }
  }

  /** Delete the group; refused while entries are pending, unless they are dropped. */
  async delete(dropPending = false): Promise<void> {
    const query: Query<"deleteGroup"> = dropPending ? { pending: "drop" } : {};
    await this.#json({ method: "DELETE", path: this.#path, query });
  }

  async #read(consumer: string, body: Sent<Body<"readGroup">>, more: Partial<Call>): Promise<Page> {
    const path = `${this.#path}/consumers/${segment(consumer)}/read`;
    return parsePage(await this.#json<Answer<"readGroup">>({ method: "POST", path, body, ...more }, "entries"), this.stream);
  }

  async #post<Id extends "ackEntries" | "nackEntries" | "claimEntries" | "deadLetterEntries" | "extendEntries">(
    action: string,
    body: Sent<Body<Id>>,
    repeatable: boolean,
    ...members: (keyof Answer<Id> & string)[]
  ): Promise<Answer<Id>> {
    return this.#json<Answer<Id>>({ method: "POST", path: this.#path + action, body, repeatable }, ...members);
  }

  async #json<T>(call: Call, ...members: (keyof T & string)[]): Promise<T> {
    const signals = [call.signal, this.#signal].filter((signal) => signal !== undefined);
    return this.#http.json<T>(signals.length > 0 ? { ...call, signal: AbortSignal.any(signals) } : call, ...members);
  }
}

function withResult(results: Readonly<Record<string, string>>, word: string): string[] {
  return Object.entries(results).flatMap(([id, result]) => (result === word ? [id] : []));
}

function streamPath(stream: string): string {
  return `/v1/streams/${segment(stream)}`;
}

function schedulePath(stream: string, name: string): string {
  return `${streamPath(stream)}/schedules/${segment(name)}`;
}

export function newKey(): string {
  // Not randomUUID: browsers have it over https only.
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

async function ifFound<T>(answer: Promise<T>): Promise<T | undefined> {
  try {
    return await answer;
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return undefined;
    throw error;
  }
}

/** The text of a body as it comes, until it ends, breaks off, or is silent for too long. */
async function* texts(response: Response, signal?: AbortSignal): AsyncGenerator<string> {
  const reader = response.body?.getReader();
  const decoder = new TextDecoder();
  try {
    for (;;) {
      let timer: ReturnType<typeof setTimeout> | undefined;
      const silence = new Promise<undefined>((resolve) => (timer = setTimeout(resolve, SILENCE_MS_MAX)));
      const piece = await Promise.race([reader?.read(), silence]).finally(() => clearTimeout(timer));
      if (piece === undefined || piece.done) return;
      yield decoder.decode(piece.value as Uint8Array, { stream: true });
    }
  } catch (error) {
    if (signal?.aborted || error instanceof GapError || error instanceof ApiError) throw error;
    // The connection broke: the tail reads on from its cursor.
  } finally {
    await reader?.cancel().catch(() => undefined);
  }
}

/** The JSON of an event, which is an object. */
function parse<T extends object>(data: string): T {
  let parsed: unknown;
  try {
    parsed = JSON.parse(data);
  } catch {
    // Refused below.
  }
  if (isObject(parsed)) return parsed as T;
  throw new NotAGatewayError("the tail has an event that is not a gateway's");
}

function reportGap(event: Gap & { stream?: string }, stream: string, options: TailOptions): void {
  const { stream: named = stream, ...gap } = event;
  if (!options.onGap) throw new GapError(named, gap);
  options.onGap(gap, named);
}

export function problemError(problem: Problem): ApiError {
  return apiError(problem.status ?? 500, problem);
}
