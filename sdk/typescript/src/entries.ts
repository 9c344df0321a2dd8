/** Entries and the answers that hold them. Members that the gateway names keep their names. */

import type { Gap } from "./errors.js";

export type Value = string | number | boolean | Uint8Array;
/** What can be published: an object, or pairs where a name occurs twice. */
export type Fields = Readonly<Record<string, Value>> | readonly (readonly [string, Value])[];

export interface Entry {
  readonly id: string;
  readonly stream: string;
  /** The last value of each name. Of a deleted entry only the ID is left, and this is empty. */
  readonly fields: Readonly<Record<string, string>>;
  /** All fields in order; a name may occur twice. */
  readonly pairs: readonly (readonly [string, string])[];
  /** Deleted from the stream while it was pending. */
  readonly deleted: boolean;
  /** `base64`: the values are bytes that are not text; `bytes(entry)` decodes them. */
  readonly encoding?: "base64";
  /** How often a group has delivered it, this time included. */
  readonly delivery_count?: number;
  readonly idle_ms?: number;
}

export interface Page {
  readonly entries: readonly Entry[];
  /** Read on after this ID. */
  readonly next: string | null;
  /** There is more right now. */
  readonly more: boolean;
  readonly gap?: Gap;
}

export interface Published {
  readonly first_id: string;
  readonly last_id: string;
  readonly count: number;
  readonly ids: readonly string[];
  /** The same idempotency key had stored it before; nothing was stored now. */
  readonly duplicate: boolean;
}

export interface StreamInfo {
  readonly name: string;
  readonly length: number;
  readonly first_id: string | null;
  readonly last_id: string;
  readonly entries_added: number;
  readonly groups: number;
  readonly generation: string;
  readonly retention: Retention;
  readonly memory_bytes: number;
  readonly [member: string]: unknown;
}

export interface Retention {
  readonly max_len?: number | null;
  readonly max_age_ms?: number | null;
  readonly max_bytes?: number | null;
}

export interface GroupInfo {
  readonly name: string;
  readonly consumers: number;
  readonly pending: number;
  readonly last_delivered_id: string;
  readonly entries_read: number | null;
  /** Entries that the group has not read; null where that is unknown. */
  readonly lag: number | null;
  readonly [member: string]: unknown;
}

export interface PendingEntry {
  readonly id: string;
  /** Null where it was given back. */
  readonly consumer: string | null;
  readonly idle_ms: number;
  readonly delivery_count: number;
}

/** An entry as the gateway sends it. */
export interface WireEntry {
  id: string;
  stream?: string;
  fields?: Record<string, string> | null;
  pairs?: [string, string][];
  encoding?: "base64";
  delivery_count?: number;
  idle_ms?: number;
}

export interface WirePage {
  entries: WireEntry[];
  next?: string | null;
  more?: boolean;
  gap?: Gap;
}

export function parseEntry(wire: WireEntry, stream: string): Entry {
  const { fields, pairs, ...rest } = wire;
  return {
    stream,
    ...rest,
    fields: fields ?? {},
    pairs: pairs ?? Object.entries(fields ?? {}),
    deleted: fields === null,
  };
}

export function parsePage(wire: WirePage, stream: string): Page {
  return {
    entries: wire.entries.map((entry) => parseEntry(entry, stream)),
    next: wire.next ?? null,
    more: wire.more ?? false,
    ...(wire.gap && { gap: wire.gap }),
  };
}

export function parsePublished(wire: Partial<Published> & { id?: string }): Published {
  const { id, duplicate = false } = wire;
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

/** An entry as a publisher sends it. */
export function encodeEntry(fields: Fields, id?: string): object {
  const pairs = isPairs(fields) ? fields : Object.entries(fields);
  const head = id === undefined ? {} : { id };
  if (pairs.some(([, value]) => value instanceof Uint8Array)) {
    return { ...head, encoding: "base64", fields: pairs.map(([name, value]) => [name, toBase64(value)]) };
  }
  return { ...head, fields: isPairs(fields) ? pairs : fields };
}

function isPairs(fields: Fields): fields is readonly (readonly [string, Value])[] {
  return Array.isArray(fields);
}

function toBase64(value: Value): string {
  const raw = value instanceof Uint8Array ? value : new TextEncoder().encode(String(value));
  let binary = "";
  for (const byte of raw) binary += String.fromCharCode(byte);
  return btoa(binary);
}
