/*
 * The page put together: one connection, one clock, one place at a time.
 *
 * Knows: what belongs where, how often is asked, which key does what. Must never know: frames, shapes of answers.
 */

import * as api from "./shared/api.js";
import { Catalogue } from "./shared/catalogue.js";
import { write } from "./shared/dom.js";
import { Overview } from "./overview/overview.js";
import { VIEWS, here } from "./shared/address.js";
import { separator } from "./shared/separator.js";
import { Connection } from "./shared/connection.js";
import { StreamPage } from "./stream/stream_page.js";
import { Streams } from "./shell/stream_list.js";
import { Tail } from "./live/tail.js";
import { Top } from "./shell/header.js";
import { loadSetting, saveSetting } from "./shared/storage.js";

const POLL_MS = 2_000;
const TICK_MS = 1_000;
const CLOCK_MS = 20_000;
const WATCH_MS = 500;
const LIST_PX_MIN = 220;
// What the stream keeps beside the list.
const STREAM_PX_MIN = 420;

/** @param {string} id */
const element = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

const connection = new Connection(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/v1/ws`);
const top = new Top(element("top"), connection);
const catalogue = new Catalogue();
const streams = new Streams(element("streams"), catalogue);
const page = new StreamPage(new Tail(connection));
const overview = new Overview(catalogue);
element("main").append(overview.element, page.element);
element("streams").append(separator({
  label: "Width of the list of streams",
  minPx: LIST_PX_MIN,
  maxPx: () => Math.max(LIST_PX_MIN, document.documentElement.clientWidth - STREAM_PX_MIN),
  width: () => element("streams").offsetWidth,
  resize: (px) => {
    setListWidth(px === null ? "" : String(px));
    saveSetting("list", px === null ? "" : String(px));
  },
}));

/** @param {string} px "" for the sheet's own */
function setListWidth(px) {
  element("streams").parentElement?.style.setProperty("--list", /^\d+$/.test(px) ? `${px}px` : "");
}

function show() {
  const place = here(location.hash);
  const isNone = place.stream === "";
  overview.element.hidden = !isNone;
  streams.select(place.stream, place.view);
  if (isNone) {
    page.close();
    overview.refresh().catch(() => undefined);
  } else page.open(place);
}

// One round at a time: a slow gateway is asked no oftener than it answers.
let polling = false;
async function poll() {
  if (polling || document.hidden) return;
  polling = true;
  await Promise.allSettled([catalogue.refresh(), page.name === "" ? overview.refresh() : page.refresh()]);
  polling = false;
}

async function setClock() {
  for (let i = 0; i < 5; i += 1) {
    const sentMs = Date.now();
    const gatewayMs = await api.time();
    page.measures.clock(gatewayMs, sentMs, Date.now());
  }
}

/** @type {Record<string, () => void>} */
const KEYS = {
  "/": () => page.live.filter.focus(),
  " ": () => page.live.toggle(),
  g: () => page.live.jump.focus(),
  l: () => page.live.toNow(),
  s: () => streams.search.focus(),
  e: () => page.live.grid.element.focus(),
  t: () => top.nextTheme(),
  "?": () => top.showKeys(),
};
const LIVE_KEYS = new Set(["/", " ", "g", "l", "e"]);

document.addEventListener("keydown", (event) => {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) page.inspector.close();
  if (!top.keysOn || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (target.closest("input, textarea, select, [contenteditable]")) return;
  // Space presses what has the focus.
  if (event.key === " " && target.closest("button, a, summary")) return;
  const isLive = page.name !== "" && page.view === "live";
  const view = VIEWS[Number(event.key) - 1];
  const does = view !== undefined && page.name !== "" ? () => page.go(view) : KEYS[event.key.toLowerCase()];
  if (does === undefined || (LIVE_KEYS.has(event.key.toLowerCase()) && !isLive)) return;
  event.preventDefault();
  does();
});

element("skip").addEventListener("click", () => element("main").focus());
window.addEventListener("hashchange", show);
page.addEventListener("changed", () => catalogue.refresh(true).catch(() => undefined));
top.addEventListener("theme", () => {
  page.restyle();
  overview.restyle();
});
connection.addEventListener("change", () => {
  if (connection.state.phase === "open") poll();
});
window.addEventListener("online", () => connection.retry());
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) connection.retry();
  poll();
});

setListWidth(loadSetting("list") ?? "");
connection.open();
show();
poll();
setInterval(poll, POLL_MS);
setInterval(() => connection.watch(), WATCH_MS);
setInterval(() => {
  page.tick();
  overview.tick();
}, TICK_MS);
setClock().catch(() => undefined);
setInterval(() => setClock().catch(() => undefined), CLOCK_MS);
api.version().then(({ version }) => write(top.version, version)).catch(() => undefined);
