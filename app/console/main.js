/*
 * The entry point: puts the page together around one connection, one timer and one address.
 *
 * Knows: which part goes where, how often to poll, which key does what. Must never know: frames, the form of responses.
 */

import { OVERVIEWS, VIEWS, parseAddress } from "./shared/address.js";
import * as api from "./shared/api.js";
import { Catalogue } from "./shared/catalogue.js";
import { Connection } from "./shared/connection.js";
import { setText } from "./shared/dom.js";
import { makeSeparator } from "./shared/separator.js";
import { loadSetting, saveSetting } from "./shared/storage.js";
import { Tail } from "./live/tail.js";
import { Overview } from "./overview/overview.js";
import { describeOutage } from "./overview/status.js";
import { Header } from "./shell/header.js";
import { Login } from "./shell/login.js";
import { StreamList } from "./shell/stream_list.js";
import { StreamPage } from "./stream/stream_page.js";

const POLL_MS = 2_000;
const TICK_MS = 1_000;
const CLOCK_MS = 20_000;
const CLOCK_READINGS = 5;
const CONNECTION_TICK_MS = 500;
const LIST_PX_MIN = 220;
// The width that the list leaves to the stream.
const STREAM_PX_MIN = 420;

/** @param {string} id */
const findElement = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

const connection = new Connection(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/v1/ws`);
const header = new Header(findElement("header"), connection);
const login = new Login(findElement("header"));
const catalogue = new Catalogue();
const listElement = findElement("streams");
const streamList = new StreamList(listElement, catalogue);
const page = new StreamPage(new Tail(connection), (name) => catalogue.lengthOf(name));
const overview = new Overview(catalogue);
findElement("main").append(overview.element, page.element);
listElement.append(makeSeparator({
  label: "Width of the list of streams",
  minPx: LIST_PX_MIN,
  maxPx: () => Math.max(LIST_PX_MIN, document.documentElement.clientWidth - STREAM_PX_MIN),
  width: () => listElement.offsetWidth,
  resize: (px) => {
    const text = px === null ? "" : String(px);
    setListWidth(text);
    saveSetting("list", text);
  },
}));

/** @param {string} px "" for the default of the style sheet */
function setListWidth(px) {
  listElement.parentElement?.style.setProperty("--list", /^\d+$/.test(px) ? `${px}px` : "");
}

/** Show or hide the list of streams in a narrow window; a wide one always shows it. @param {boolean} isOpen */
function setListOpen(isOpen) {
  listElement.classList.toggle("open", isOpen);
  header.list.setAttribute("aria-expanded", String(isOpen));
}

/** Ask again while the gateway cannot say who the caller is. */
function begin() {
  login.begin().catch(() => window.setTimeout(begin, POLL_MS));
}

function show() {
  if (!login.isEntered) return;
  const address = parseAddress(location.hash);
  const isOverview = address.stream === "";
  overview.element.hidden = !isOverview;
  streamList.select(address.stream, address.view);
  const { activeElement } = document;
  setListOpen(isOverview);
  // What was found is shown: keys go there, not into the search, and not into a list that is hidden.
  const isLeft = activeElement === streamList.search || listElement.offsetParent === null;
  if (!isOverview && listElement.contains(activeElement) && isLeft) findElement("main").focus();
  if (isOverview) {
    page.close();
    overview.open(OVERVIEWS.includes(address.view) ? address.view : "live");
    overview.refresh().catch(() => undefined);
  } else page.open(address);
}

// One round at a time, so that a slow gateway gets no more requests than it can handle.
let isPolling = false;
async function poll() {
  if (isPolling || document.hidden || !login.isEntered) return;
  isPolling = true;
  await Promise.allSettled([catalogue.refresh(), page.name === "" ? overview.refresh() : page.refresh()]);
  isPolling = false;
}

// Beside the round of requests: these wait while the backend hangs.
let isCheckingHealth = false;
async function checkHealth() {
  if (isCheckingHealth || document.hidden || !login.isEntered || connection.state.phase !== "open") return;
  isCheckingHealth = true;
  try {
    connection.setOutage(describeOutage(await api.getHealth()));
  } catch {
    // The connection says whether the gateway can be reached.
  } finally {
    isCheckingHealth = false;
  }
}

async function readClock() {
  for (let i = 0; i < CLOCK_READINGS; i += 1) {
    const sentMs = Date.now();
    const gatewayMs = await api.getTime();
    page.measures.setClock(gatewayMs, sentMs, Date.now());
  }
}

/** @type {Record<string, () => void>} */
const SHORTCUTS = {
  "/": () => page.live.filter.focus(),
  " ": () => page.live.togglePause(),
  g: () => page.live.jump.focus(),
  l: () => page.live.goLive(),
  s: () => {
    setListOpen(true);
    streamList.search.focus();
  },
  e: () => page.live.grid.element.focus(),
  t: () => header.nextTheme(),
  "?": () => header.showShortcuts(),
};
const LIVE_SHORTCUTS = new Set(["/", " ", "g", "l", "e"]);

document.addEventListener("keydown", (event) => {
  const target = /** @type {HTMLElement} */ (event.target);
  const isDialogOpen = document.querySelector("dialog[open]") !== null;
  if (event.key === "Escape" && !isDialogOpen) page.inspector.close();
  if (!header.hasShortcuts || event.ctrlKey || event.metaKey || event.altKey || isDialogOpen) return;
  if (target.closest("input, textarea, select, [contenteditable]")) return;
  // Space presses a focused button, and does nothing to a link: a stream that was just clicked.
  if (event.key === " " && target.closest("button, summary")) return;
  const key = event.key.toLowerCase();
  const view = VIEWS[Number(event.key) - 1];
  const action = view !== undefined && page.name !== "" ? () => page.openView(view) : SHORTCUTS[key];
  const isLive = page.name !== "" && page.view === "live";
  if (action === undefined || (LIVE_SHORTCUTS.has(key) && !isLive)) return;
  event.preventDefault();
  action();
});

findElement("skip").addEventListener("click", () => findElement("main").focus());
window.addEventListener("hashchange", show);
page.addEventListener("change", () => catalogue.refresh(true).catch(() => undefined));
header.addEventListener("list", () => setListOpen(!listElement.classList.contains("open")));
header.addEventListener("theme", () => {
  page.restyle();
  overview.restyle();
});
connection.addEventListener("change", () => {
  if (connection.state.phase === "open") poll();
});
login.addEventListener("enter", () => {
  connection.token = api.getToken();
  connection.open();
  show();
  poll();
  readClock().catch(() => undefined);
});
window.addEventListener("online", () => connection.retry());
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) connection.retry();
  poll();
});

setListWidth(loadSetting("list") ?? "");
begin();
setInterval(poll, POLL_MS);
setInterval(checkHealth, POLL_MS);
setInterval(() => connection.tick(), CONNECTION_TICK_MS);
setInterval(() => {
  page.tick();
  overview.tick();
}, TICK_MS);
setInterval(() => login.isEntered && readClock().catch(() => undefined), CLOCK_MS);
api.getVersion().then(({ version }) => setText(header.version, version)).catch(() => undefined);
