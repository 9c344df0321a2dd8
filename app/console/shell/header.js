/*
 * The head of the page: the state of the connection, the theme, the keyboard shortcuts.
 *
 * Knows: states in words, settings of the browser. Must never know: streams, entries.
 */

import { say } from "../shared/announce.js";
import { show } from "../shared/dialogs.js";
import { button, h, setText } from "../shared/dom.js";
import { formatTime } from "../shared/format.js";
import { loadSetting, saveSetting } from "../shared/storage.js";

/** @typedef {import("../shared/connection.js").State} State */

const THEMES = ["system", "light", "dark"];
const UPDATE_MS = 500;
/** @type {[string, string][]} */
const SHORTCUTS = [
  ["/", "filter entries"],
  ["Space", "pause or resume"],
  ["G", "jump to a time or an ID"],
  ["L", "go to the newest entries"],
  ["S", "find a stream"],
  ["E", "focus the entries; then arrows, Page Up, Page Down, Home, End; Enter opens an entry"],
  ["1, 2, 3, 4", "live, groups, publish, scheduled"],
  ["T", "change the theme"],
  ["Esc", "close a dialog or an entry"],
  ["?", "show this list"],
];

/** Fires `theme` when the theme changes, `list` when the list of streams is to be shown or hidden. */
export class Header extends EventTarget {
  /** @param {Element} element @param {import("../shared/connection.js").Connection} connection */
  constructor(element, connection) {
    super();
    this.connection = connection;
    this.hasShortcuts = loadSetting("keys") !== "off";
    this.dot = h("span.dot", { "aria-hidden": "true" });
    this.description = h("span");
    this.retry = button("Retry now", () => connection.retry(), { hidden: true });
    this.version = h("span.muted");
    this.list = button("Streams", () => this.dispatchEvent(new Event("list")), { "aria-controls": "streams" }, "button.button.list-toggle");
    this.theme = button("", () => this.nextTheme(), { title: "T" });
    element.append(
      h("a.brand", { href: "#/", "aria-label": "Weir console, overview" }, h("span.mark", { "aria-hidden": "true" }), "Weir"),
      this.version,
      h("div.connection", { role: "group", "aria-label": "Connection" }, this.dot, this.description, this.retry),
      h("span.grow"),
      this.list,
      this.theme,
      button("Keys", () => this.showShortcuts(), { title: "?" }),
    );
    this.setTheme(loadSetting("theme") ?? "system");
    this.announcedKind = "";
    connection.addEventListener("change", () => this.update());
    setInterval(() => this.update(), UPDATE_MS);
    this.update();
  }

  update() {
    const { state } = this.connection;
    const isOut = state.phase === "open" && state.outage !== "";
    this.dot.className = `dot ${isOut ? "waiting" : state.phase}`;
    setText(this.description, describe(state));
    this.retry.hidden = state.phase === "open" || state.phase === "connecting";
    const kind = isOut ? "out" : state.phase;
    if (kind !== this.announcedKind && kind !== "connecting") {
      if (this.announcedKind !== "") say(kind === "open" ? "Connected" : isOut ? describe(state) : `Not connected: ${state.reason}`);
      this.announcedKind = kind;
    }
  }

  nextTheme() {
    const theme = document.documentElement.dataset.theme ?? "system";
    this.setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length] ?? "system");
  }

  /** @param {string} theme */
  setTheme(theme) {
    document.documentElement.dataset.theme = theme;
    setText(this.theme, `Theme: ${theme}`);
    saveSetting("theme", theme);
    this.dispatchEvent(new Event("theme"));
  }

  showShortcuts() {
    const toggle = h("input", {
      type: "checkbox",
      onchange: () => {
        this.hasShortcuts = toggle.checked;
        saveSetting("keys", toggle.checked ? "on" : "off");
      },
    });
    toggle.checked = this.hasShortcuts;
    const lines = SHORTCUTS.flatMap(([key, action]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, action)]);
    show("Keyboard shortcuts", h("dl.keys", {}, ...lines), h("label.choice", {}, toggle, "Use single-key shortcuts"));
  }
}

/** @param {State} state */
function describe(state) {
  const timeOfDay = (/** @type {number} */ ms) => formatTime(ms).slice(0, 8);
  if (state.phase === "open" && state.outage !== "") return `Connected, but ${state.outage}`;
  if (state.phase === "open") return `Connected since ${timeOfDay(state.sinceMs)}`;
  if (state.phase === "refused") return `Refused: ${state.reason}`;
  if (state.lostAtMs === 0) return "Connecting";
  const loss = `Not connected since ${timeOfDay(state.lostAtMs)}: ${state.reason}`;
  if (state.phase === "connecting") return `${loss}; reconnecting`;
  const waitS = Math.ceil(Math.max(0, state.retryAtMs - Date.now()) / 1000);
  return `${loss}; next attempt in ${waitS} s`;
}
