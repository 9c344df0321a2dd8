/*
 * Where the reader is: a stream, one of its views, perhaps a group; kept in the address, so that it can be shared.
 *
 * Knows: the part of the address after `#`. Must never know: what is shown there.
 */

/** @typedef {{stream: string, view: string, group: string}} Place */

export const VIEWS = ["live", "groups", "publish"];

/** @param {string} stream @param {string} view @param {string} [group] */
export const href = (stream, view, group) =>
  `#/${encodeURIComponent(stream)}/${view}${group === undefined ? "" : `/${encodeURIComponent(group)}`}`;

/** @param {string} hash the address from `#` on @returns {Place} */
export function here(hash) {
  try {
    const [, stream = "", view = "live", group = ""] = hash.slice(1).split("/").map(decodeURIComponent);
    return { stream, view: VIEWS.includes(view) ? view : "live", group };
  } catch {
    return { stream: "", view: "live", group: "" };
  }
}
