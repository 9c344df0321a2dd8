/** Entries and the answers that hold them. Members that the gateway names keep their names. */

import type { Answer, Schema } from "./documents/types.js";
import { InvalidValueError, NotAGatewayError, type Gap } from "./errors.js";
import { checkUnicode, isObject } from "./http.js";

export type Value = string | number | boolean | Uint8Array;
/** What can be published: an object, or pairs where a name occurs twice. */
export type Fields = Readonly<Record<string, Value>> | readonly (readonly [string, Value])[];

/** An entry as the gateway sends it; with its stream on a tail of several. */
export type WireEntry = Schema<"DeliveredEntry"> & { readonly stream?: string };

export interface Entry extends Omit<WireEntry, "fields" | "pairs"> {
  readonly stream: string;
  /** The last value of each name. Of a deleted entry only the ID is left, and this is empty. */
  readonly fields: Readonly<Record<string, string>>;
  /** All fields in order; a name may occur twice. */
  readonly pairs: readonly (readonly [string, string])[];
  /** Deleted from the stream while it was pending. */
  readonly deleted: boolean;
}

export type StreamInfo = Schema<"Stream">;
export type Retention = Schema<"Retention">;
export type GroupInfo = Schema<"Group">;
export type PendingEntry = Schema<"PendingRow">;
export interface Page {
  readonly entries: readonly Entry[];
  /** Read on after this ID. */
  readonly next: string | null;
  /** There is more right now. */
  readonly more: boolean;
  readonly gap?: Gap;
  /** The stream is closed, and has nothing behind. */
  readonly closed?: boolean;
  /** Of a group: nor is anything pending in it. */
  readonly drained?: boolean;
  /** Of a group: it delivers nothing until it is resumed. */
  readonly paused?: boolean;
}

/** What was stored. `duplicate`: the same idempotency key had stored it before; nothing was stored now. */
export type Published = Required<Pick<Schema<"Added">, "first_id" | "last_id" | "count" | "ids" | "duplicate">>;

export function parseEntry(wire: WireEntry, stream: string): Entry {
  if (!isObject(wire) || typeof wire.id !== "string") throw new NotAGatewayError("an entry is not a gateway's");
  const { fields, pairs, ...rest } = wire;
  return {
    stream,
    ...rest,
    fields: fields ?? {},
    pairs: (pairs as Entry["pairs"] | undefined) ?? Object.entries(fields ?? {}),
    deleted: fields === null,
  };
}

export function parsePage(wire: Answer<"readEntries"> | Answer<"readGroup">, stream: string): Page {
  return {
    entries: list(wire.entries).map((entry) => parseEntry(entry, stream)),
    next: wire.next ?? null,
    more: wire.more,
    ...(wire.gap && { gap: wire.gap }),
    ...(wire.closed && { closed: true }),
    ...("drained" in wire && wire.drained && { drained: true }),
    ...("paused" in wire && wire.paused && { paused: true }),
  };
}

/** The items of an answer. */
export function list<T>(items: readonly T[]): readonly T[] {
  if (Array.isArray(items)) return items;
  throw new NotAGatewayError("the answer has no list where a gateway's has one");
}

export function parsePublished(wire: Answer<"addEntries">): Published {
  const { id, duplicate } = wire;
  if (id !== undefined) return { first_id: id, last_id: id, count: 1, ids: [id], duplicate };
  const { first_id = "", last_id = "", count = 0, ids = [] } = wire;
  return { first_id, last_id, count, ids, duplicate };
}

/** The values of an entry as bytes, exactly as they were published. */
export function bytes(entry: Entry): Record<string, Uint8Array> {
  const decode = (value: string): Uint8Array =>
    entry.encoding === "base64"
      ? Uint8Array.from(atob(value), (character) => character.charCodeAt(0))
      : new TextEncoder().encode(value);
  return Object.fromEntries(entry.pairs.map(([name, value]) => [name, decode(value)]));
}

/** An entry as a publisher sends it. Throws an InvalidValueError for one without fields, or with other values. */
export function encodeEntry(fields: Fields, id?: string): Omit<Schema<"EntryInput">, "fields"> & { fields: object } {
  const pairs = isPairs(fields) ? fields : Object.entries(fields);
  if (pairs.length === 0) throw new InvalidValueError("an entry has at least one field");
  for (const [name, value] of pairs) checkValue(name, value);
  const head = id === undefined ? {} : { id };
  if (pairs.some(([, value]) => value instanceof Uint8Array)) {
    return { ...head, encoding: "base64", fields: pairs.map(([name, value]) => [name, toBase64(value)]) };
  }
  return { ...head, fields: isPairs(fields) ? pairs : fields };
}

/** JSON would leave out what is undefined, and have null for what is no number. */
function checkValue(name: string, value: unknown): void {
  if (typeof value === "string" || typeof value === "boolean" || value instanceof Uint8Array) return;
  if (typeof value === "number" && Number.isFinite(value)) return;
  throw new InvalidValueError(`the value of ${JSON.stringify(name)} is no string, number, boolean or Uint8Array`);
}

function isPairs(fields: Fields): fields is readonly (readonly [string, Value])[] {
  return Array.isArray(fields);
}

function toBase64(value: Value): string {
  const raw = value instanceof Uint8Array ? value : new TextEncoder().encode(checkUnicode(String(value)));
  let binary = "";
  for (const byte of raw) binary += String.fromCharCode(byte);
  return btoa(binary);
}
