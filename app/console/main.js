/*
 * The page put together: one connection, one clock, one place at a time.
 *
 * Knows: what belongs where, how often is asked, which key does what. Must never know: frames, shapes of answers.
 */

import * as api from "./api.js";
import { h, write } from "./dom.js";
import { VIEWS, here } from "./place.js";
import { Connection } from "./socket.js";
import { StreamPage } from "./stream.js";
import { Streams } from "./streams.js";
import { Tail } from "./tail.js";
import { Top } from "./top.js";

const POLL_MS = 2_000;
const TICK_MS = 1_000;
const CLOCK_MS = 20_000;

/** @param {string} id */
const element = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

const connection = new Connection(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/v1/ws`);
const top = new Top(element("top"), connection);
const streams = new Streams(element("streams"));
const page = new StreamPage(new Tail(connection));
const welcome = h("div.welcome", {}, h("h1", {}, "Streams"), h("p.muted", {}, "Choose one on the left, and see it live."));
element("main").append(welcome, page.element);

function show() {
  const place = here();
  const isNone = place.stream === "";
  welcome.hidden = !isNone;
  streams.select(place.stream, place.view);
  if (isNone) page.close();
  else page.open(place);
}

// One round at a time: a slow gateway is asked no oftener than it answers.
let polling = false;
async function poll() {
  if (polling || document.hidden) return;
  polling = true;
  await Promise.allSettled([streams.refresh(), page.name === "" ? null : page.refresh()]);
  polling = false;
}

async function setClock() {
  for (let i = 0; i < 5; i += 1) {
    const sentMs = performance.timeOrigin + performance.now();
    const gatewayMs = await api.time();
    page.measures.clock(gatewayMs, sentMs, performance.timeOrigin + performance.now());
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
page.addEventListener("changed", poll);
top.addEventListener("theme", () => page.charts.restyle());
connection.addEventListener("change", () => {
  if (connection.state.phase === "open") poll();
});
document.addEventListener("visibilitychange", poll);

connection.open();
show();
poll();
setInterval(poll, POLL_MS);
setInterval(() => page.tick(), TICK_MS);
setClock().catch(() => undefined);
setInterval(() => setClock().catch(() => undefined), CLOCK_MS);
api.version().then(({ version }) => write(top.version, version)).catch(() => undefined);
