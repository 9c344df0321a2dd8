/*
 * Names as a tree: what begins alike is folded under its prefix.
 *
 * Knows: names and where they can be divided. Must never know: elements, what the names are of.
 */

// `:`, `.` and `/` are put into names to divide them; `-` and `_` also stand inside words, so that more must agree.
const SHARED_MIN = 2;
const SHARED_MIN_WEAK = 6;

/** @template T @typedef {{kind: "item", label: string, depth: number, item: T}} ItemRow */
/** @template T @typedef {{kind: "folder", prefix: string, label: string, depth: number, isOpen: boolean, items: T[]}} FolderRow */

/**
 * The rows to show, folders before what is in them.
 * @template {{name: string}} T
 * @param {T[]} items in the order of their names
 * @param {(prefix: string) => boolean} isOpen
 * @returns {(ItemRow<T> | FolderRow<T>)[]}
 */
export function fold(items, isOpen, from = 0, depth = 0) {
  /** @type {(ItemRow<T> | FolderRow<T>)[]} */
  const rows = [];
  for (let at = 0; at < items.length; ) {
    const item = /** @type {T} */ (items[at]);
    const inside = items.slice(at, at + shared(items, at, from));
    if (inside.length < SHARED_MIN) {
      rows.push({ kind: "item", label: item.name.slice(from), depth, item });
      at += 1;
      continue;
    }
    const prefix = commonPrefix(inside);
    const open = isOpen(prefix);
    rows.push({ kind: "folder", prefix, label: prefix.slice(from), depth, isOpen: open, items: inside });
    if (open) rows.push(...fold(inside, isOpen, prefix.length, depth + 1));
    at += inside.length;
  }
  return rows;
}

/**
 * How many items from `at` on share the shortest prefix that is worth a folder; 0 where there is none.
 * @param {{name: string}[]} items @param {number} at @param {number} from
 */
function shared(items, at, from) {
  const { name } = /** @type {{name: string}} */ (items[at]);
  for (const { index, 0: divider } of name.slice(from).matchAll(/[:./_-]/g)) {
    const head = name.slice(0, from + index + 1);
    let end = at + 1;
    while (end < items.length && items[end]?.name.startsWith(head)) end += 1;
    if (end - at >= (divider === "-" || divider === "_" ? SHARED_MIN_WEAK : SHARED_MIN)) return end - at;
  }
  return 0;
}

/** The longest prefix of all that ends with a divider. @param {{name: string}[]} items in order */
function commonPrefix(items) {
  const [first = "", last = ""] = [items[0]?.name, items.at(-1)?.name];
  let length = 0;
  while (length < first.length && first[length] === last[length]) length += 1;
  return first.slice(0, length).replace(/[^:./_-]*$/, "");
}

/** Whether a name holds every word of the search, anywhere and in any case. @param {string} name @param {string} search */
export function matches(name, search) {
  const low = name.toLowerCase();
  return search.toLowerCase().split(/\s+/).every((word) => low.includes(word));
}
