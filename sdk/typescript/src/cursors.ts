/**
 * Cursors that name their stream's generation, so that a reader learns when another stream has the name by now. Older
 * gateways do not know them: they refuse the parameter that asks for them, and are asked no more.
 */

import { ApiError } from "./errors.js";

/** What asks a gateway for cursors with a generation. */
export const LONG_CURSORS = { cursor: "generation" } as const;

/** Whether a gateway does not know the parameter that asks for them. */
export function isUnknownCursor(error: unknown): boolean {
  return error instanceof ApiError && error.code === "unknown_parameter";
}

/** A cursor of one stream (`<id>.<generation>`) or of several (`<mark>.<cursor>~<cursor>`), without generations. */
export function bareCursor(cursor: string, streams = 1): string {
  const bare = (one: string): string => one.replace(/\..*$/, "");
  if (streams === 1) return bare(cursor);
  const dot = cursor.indexOf(".") + 1;
  return cursor.slice(0, dot) + cursor.slice(dot).split("~").map(bare).join("~");
}
