/*
 * Settings that the browser remembers. Every one has a default: private windows may refuse to store anything.
 *
 * Knows: the browser's storage. Must never know: what a setting means.
 */

/** @param {string} name @returns {string | null} */
export function loadSetting(name) {
  try {
    return localStorage.getItem(`weir.${name}`);
  } catch {
    return null;
  }
}

/** @param {string} name @param {string} value */
export function saveSetting(name, value) {
  try {
    localStorage.setItem(`weir.${name}`, value);
  } catch {
    // The page works without.
  }
}

const KEPT = "weir.token";

/** What the tab has until it is closed, "" for nothing. */
export function keptInTab() {
  try {
    return sessionStorage.getItem(KEPT) ?? "";
  } catch {
    return "";
  }
}

/** @param {string} text "" for nothing */
export function keepInTab(text) {
  try {
    if (text === "") sessionStorage.removeItem(KEPT);
    else sessionStorage.setItem(KEPT, text);
  } catch {
    // The page works without.
  }
}
