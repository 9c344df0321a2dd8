/*
 * Who uses the page: asks for a token where the gateway wants one, and hides what it does not allow.
 *
 * Knows: the caller's grants. Must never know: streams; where the token is sent. The token stays in memory, and a reload
 * forgets it; where the caller wants so, it stays in the tab's own storage, which ends with the tab.
 */

import * as api from "../shared/api.js";
import { ask } from "../shared/dialogs.js";
import { button, setText } from "../shared/dom.js";
import { showHidden } from "../shared/format.js";
import { keepInTab, keptInTab } from "../shared/storage.js";

/** @typedef {import("../shared/api.js").Caller} Caller */

const ACTIONS = ["read", "write", "consume", "close", "manage", "admin"];
const UNAUTHENTICATED = 401;

/** Fires `enter` when the caller is known. */
export class Login extends EventTarget {
  /** @param {Element} header gets a button that logs in or out */
  constructor(header) {
    super();
    this.isEntered = false;
    this.button = button("Log in", () => (this.isEntered ? this.leave() : this.ask()), { hidden: true });
    header.append(this.button);
  }

  /** Find out who the caller is, and ask for a token where one is needed. */
  async begin() {
    const kept = keptInTab();
    if (kept !== "") api.setToken(kept);
    try {
      this.enter(await api.getCaller());
    } catch (error) {
      if (error instanceof api.ApiError && error.status === UNAUTHENTICATED) {
        api.setToken("");
        keepInTab("");
      }
      if (!(error instanceof api.ApiError) || error.status !== UNAUTHENTICATED) throw error;
      this.button.hidden = false;
      await this.ask();
    }
  }

  leave() {
    keepInTab("");
    location.reload();
  }

  /** Ask for a token until one is right, or the dialog is cancelled. */
  async ask() {
    await ask({
      title: "Log in",
      text: "This gateway wants a token.",
      fields: [
        { name: "token", label: "Token", type: "password", required: true },
        { name: "keep", label: "Keep it", options: [["", "until the page is loaded again"], ["tab", "in this tab, until it is closed"]] },
      ],
      submit: "Log in",
      work: async ({ token, keep }) => {
        api.setToken((token ?? "").trim());
        try {
          const caller = await api.getCaller();
          keepInTab(keep === "tab" ? api.getToken() : "");
          this.enter(caller);
          return `Logged in as ${caller.name}`;
        } catch (error) {
          api.setToken("");
          throw error;
        }
      },
    });
  }

  /** @param {Caller} caller */
  enter(caller) {
    const allowed = new Set(caller.grants.flatMap(allowedBy));
    document.documentElement.dataset.denied = ACTIONS.filter((action) => !allowed.has(action)).join(" ");
    this.isEntered = true;
    this.button.hidden = api.getToken() === "";
    setText(this.button, "Log out");
    this.button.title = showHidden(describe(caller));
    this.dispatchEvent(new Event("enter"));
  }
}

/** Who manages a stream may close it. @param {Caller["grants"][number]} grant */
const allowedBy = ({ actions, groups }) => (actions.includes("manage") && !groups ? [...actions, "close"] : actions);

/** What the caller may do, a line for each grant. @param {Caller} caller */
function describe({ name, grants, expires_at }) {
  const lines = grants.map(({ actions, streams }) => `${actions.join(", ")}: ${streams}`);
  return [name, ...lines, expires_at === null ? "" : `until ${expires_at}`].filter((line) => line !== "").join("\n");
}
