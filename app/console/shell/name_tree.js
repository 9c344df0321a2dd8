/*
 * Names as a tree: names with a common prefix are folded into a folder.
 *
 * Knows: names and their separators. Must never know: elements, what the names belong to.
 */

// `:`, `.` and `/` separate parts of a name. `-` and `_` also occur inside words, so more names must share the prefix.
const SHARED_MIN = 2;
const SHARED_MIN_WEAK = 6;

/** @template T @typedef {{kind: "item", label: string, depth: number, item: T}} ItemRow */
/** @template T @typedef {{kind: "folder", prefix: string, label: string, depth: number, isOpen: boolean, items: T[]}} FolderRow */

/**
 * The rows to show, each folder before its items.
 * @template {{name: string}} T
 * @param {T[]} items ordered by name
 * @param {(prefix: string) => boolean} isOpen
 * @returns {(ItemRow<T> | FolderRow<T>)[]}
 */
export function fold(items, isOpen, start = 0, depth = 0) {
  /** @type {(ItemRow<T> | FolderRow<T>)[]} */
  const rows = [];
  for (let index = 0; index < items.length; ) {
    const item = /** @type {T} */ (items[index]);
    const folder = items.slice(index, index + countShared(items, index, start));
    if (folder.length < SHARED_MIN) {
      rows.push({ kind: "item", label: item.name.slice(start), depth, item });
      index += 1;
      continue;
    }
    const prefix = commonPrefix(folder);
    const open = isOpen(prefix);
    rows.push({ kind: "folder", prefix, label: prefix.slice(start), depth, isOpen: open, items: folder });
    if (open) rows.push(...fold(folder, isOpen, prefix.length, depth + 1));
    index += folder.length;
  }
  return rows;
}

/**
 * How many items from `index` on share the shortest prefix that makes a folder; 0 for none.
 * @param {{name: string}[]} items @param {number} index @param {number} start
 */
function countShared(items, index, start) {
  const { name } = /** @type {{name: string}} */ (items[index]);
  for (const { index: length, 0: separator } of name.slice(start).matchAll(/[:./_-]/g)) {
    const prefix = name.slice(0, start + length + 1);
    let end = index + 1;
    while (end < items.length && items[end]?.name.startsWith(prefix)) end += 1;
    if (end - index >= (separator === "-" || separator === "_" ? SHARED_MIN_WEAK : SHARED_MIN)) return end - index;
  }
  return 0;
}

/** The longest common prefix that ends with a separator. @param {{name: string}[]} items ordered by name */
function commonPrefix(items) {
  const [first = "", last = ""] = [items[0]?.name, items.at(-1)?.name];
  let length = 0;
  while (length < first.length && first[length] === last[length]) length += 1;
  return first.slice(0, length).replace(/[^:./_-]*$/, "");
}

/** Whether a name contains every word of a search, ignoring case. @param {string} name @param {string} search */
export function matches(name, search) {
  const lowerName = name.toLowerCase();
  return search.toLowerCase().split(/\s+/).every((word) => lowerName.includes(word));
}
