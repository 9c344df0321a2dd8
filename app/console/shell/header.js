/*
 * The head of the page: how the connection is, the theme, the keys.
 *
 * Knows: states in words, what the browser remembers. Must never know: streams, entries.
 */

import { say } from "../shared/announce.js";
import { show } from "../shared/dialogs.js";
import { button, h, write } from "../shared/dom.js";
import { clock } from "../shared/format.js";
import { loadSetting, saveSetting } from "../shared/storage.js";

/** @typedef {import("../shared/connection.js").State} State */

const THEMES = ["system", "light", "dark"];
/** @type {[string, string][]} */
const KEYS = [
  ["/", "filter entries"],
  ["Space", "pause, resume"],
  ["G", "jump to a time or an ID"],
  ["L", "go to now"],
  ["S", "find a stream"],
  ["E", "to the entries: then arrows, Page Up and Down, Home, End; Enter opens one"],
  ["1, 2, 3", "live, groups, publish"],
  ["T", "theme"],
  ["Esc", "close what is open"],
  ["?", "this list"],
];

export class Top extends EventTarget {
  /** @param {Element} element @param {import("../shared/connection.js").Connection} connection */
  constructor(element, connection) {
    super();
    this.connection = connection;
    this.keysOn = loadSetting("keys") !== "off";
    this.dot = h("span.dot", { "aria-hidden": "true" });
    this.words = h("span");
    this.retry = button("Try now", () => connection.retry(), { hidden: true });
    this.version = h("span.muted");
    this.theme = button("", () => this.nextTheme(), { title: "T" });
    element.append(
      h("a.brand", { href: "#/", "aria-label": "Weir console, start" }, h("span.mark", { "aria-hidden": "true" }), "Weir"),
      this.version,
      h("div.connection", { role: "group", "aria-label": "Connection" }, this.dot, this.words, this.retry),
      h("span.grow"),
      this.theme,
      button("Keys", () => this.showKeys(), { title: "?" }),
    );
    this.setTheme(loadSetting("theme") ?? "system");
    this.was = "";
    connection.addEventListener("change", () => this.tell());
    setInterval(() => this.tell(), 500);
    this.tell();
  }

  tell() {
    const { state } = this.connection;
    const sentence = words(state);
    this.dot.className = `dot ${state.phase}`;
    write(this.words, sentence);
    this.retry.hidden = state.phase === "open" || state.phase === "connecting";
    if (state.phase !== this.was && state.phase !== "connecting") {
      if (this.was !== "") say(state.phase === "open" ? "Connected" : `Not connected: ${state.reason}`);
      this.was = state.phase;
    }
  }

  nextTheme() {
    const now = document.documentElement.dataset.theme ?? "system";
    this.setTheme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length] ?? "system");
  }

  /** @param {string} theme */
  setTheme(theme) {
    document.documentElement.dataset.theme = theme;
    write(this.theme, `Theme: ${theme}`);
    saveSetting("theme", theme);
    this.dispatchEvent(new Event("theme"));
  }

  showKeys() {
    const toggle = h("input", {
      type: "checkbox",
      onchange: () => {
        this.keysOn = toggle.checked;
        saveSetting("keys", toggle.checked ? "on" : "off");
      },
    });
    toggle.checked = this.keysOn;
    const lines = KEYS.flatMap(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)]);
    show("Keys", h("dl.keys", {}, ...lines), h("label.choice", {}, toggle, "Single keys do these things"));
  }
}

/** @param {State} state honest, and short */
function words(state) {
  const nowMs = Date.now();
  if (state.phase === "open") return `Connected since ${clock(state.sinceMs).slice(0, 8)}`;
  if (state.phase === "refused") return `Refused: ${state.reason}`;
  if (state.lostAtMs === 0) return "Connecting";
  const away = `Not connected since ${clock(state.lostAtMs).slice(0, 8)}: ${state.reason}`;
  if (state.phase === "connecting") return `${away}; trying`;
  const waitS = Math.ceil(Math.max(0, state.retryAtMs - nowMs) / 1000);
  return `${away}; next try in ${waitS} s`;
}

