/*
 * Settings that the browser remembers. Every one has a default: private windows may refuse to store anything.
 *
 * Knows: local storage. Must never know: what a setting means.
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
