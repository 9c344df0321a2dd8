/*
 * The address of what is shown: a stream, one of its views, perhaps a group. It can be bookmarked and shared.
 *
 * Knows: the part of the URL after `#`. Must never know: what is shown there.
 */

/** @typedef {{stream: string, view: string, group: string}} Address `stream` is "" on the overview */

export const VIEWS = ["live", "groups", "publish", "scheduled"];
// Those of the overview.
export const OVERVIEWS = ["live", "scheduled"];

/** @param {string} stream @param {string} view @param {string} [group] */
export const formatAddress = (stream, view, group) =>
  `#/${encodeURIComponent(stream)}/${view}${group === undefined ? "" : `/${encodeURIComponent(group)}`}`;

/** @param {string} hash from `#` on @returns {Address} */
export function parseAddress(hash) {
  try {
    const [, stream = "", view = "live", group = ""] = hash.slice(1).split("/").map(decodeURIComponent);
    return { stream, view: VIEWS.includes(view) ? view : "live", group };
  } catch {
    return { stream: "", view: "live", group: "" };
  }
}
