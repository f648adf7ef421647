// The frame of the page: views by address, signing in, and refreshing.

import * as api from "./api.js";
import { announce, dialog, field, fill, h, select, sentence, toast } from "./dom.js";
import { accessView } from "./access.js";
import { groupView, groupsView } from "./groups.js";
import { nodesView } from "./nodes.js";
import { overviewView } from "./overview.js";
import { topicView } from "./topic.js";
import { topicsView } from "./topics.js";

const REFRESH_MS = 5000;
const THEME = "tidelog.theme";
const SECTIONS = [
  ["", "Overview"],
  ["topics", "Topics"],
  ["groups", "Groups"],
  ["nodes", "Nodes"],
  ["access", "Access"],
];
const VIEWS = { "": overviewView, topics: topicsView, topic: topicView, groups: groupsView, group: groupView, nodes: nodesView, access: accessView };

const main = document.getElementById("main");
let view = null;
let opened = 0;
let me = null; // the answer of /v1/me about the caller; null before the first answer
let refreshing = false;
let mayTryAgain = false; // the view could not be shown because the gateway or nodes did not answer
let isAsking = false;

/** Returns the parts of the page's address, #/SECTION/NAME?KEY=VALUE. */
function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [section, ...rest] = path.split("/");
  return { section, name: rest.map(decoded).join("/"), query: new URLSearchParams(query || "") };
}

/** Decodes a part of an address; a part with an invalid % escape is returned unchanged. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

async function open() {
  const number = (opened += 1);
  if (view && view.dispose) view.dispose();
  view = null;
  const { section, name, query } = place();
  drawNavigation(section);
  const make = Object.hasOwn(VIEWS, section) ? VIEWS[section] : null;
  mayTryAgain = false;
  main.setAttribute("aria-busy", "true");
  if (!make) {
    main.setAttribute("aria-busy", "false");
    document.title = "Unknown address · Tidelog";
    fill(main, h("h1", {}, "Unknown address"), h("p", {}, "The address names no part of this page. ", h("a", { href: "#/" }, "Go to the overview"), "."));
    return;
  }
  try {
    if (!me) await learn();
    if (isSignedOut()) {
      fill(main, signInCard());
      document.title = "Sign in · Tidelog";
      askWho();
      return;
    }
    const made = await make({ name, query, me, setQuery });
    if (number !== opened) {
      if (made.dispose) made.dispose();
      return;
    }
    view = made;
    fill(main, made.element);
    document.title = `${made.title} · Tidelog`;
    announce(made.title);
  } catch (error) {
    if (number === opened) {
      fill(main, error.status === 401 ? signInCard() : failure(error));
      document.title = `${error.status === 401 ? "Sign in" : "Not shown"} · Tidelog`;
      mayTryAgain = error.status === 0 || error.status >= 500;
    }
  } finally {
    if (number === opened) main.setAttribute("aria-busy", "false");
  }
}

/** Requests the caller's principal and the gateway's settings. A 401 means that the gateway authenticates its callers. */
async function learn() {
  try {
    me = await api.get("/v1/me");
  } catch (error) {
    if (error.status !== 401) throw error;
    me = { auth: "callers", principal: null, ui: "on", version: "" };
  }
  drawTools();
  drawFooter();
}

function isSignedOut() {
  return me.auth !== "none" && !me.principal;
}

function signInCard() {
  return h("div", { class: "card" }, h("h1", {}, "Sign in"), h("p", {}, "This gateway authenticates its callers."), h("button", { class: "primary", onclick: askWho }, "Sign in"));
}

function failure(error) {
  const box = h("div", { class: "card fault-card", role: "alert" }, h("h1", {}, error.status === 403 ? "Not allowed" : "This cannot be shown"), h("p", {}, sentence(error.message)));
  if (error.requestId) box.append(h("p", { class: "muted" }, `Request ${error.requestId}`));
  box.append(h("div", { class: "buttons" }, h("button", { onclick: open }, "Try again"), h("a", { class: "button", href: "#/" }, "Overview")));
  return box;
}

/** Changes the query of the page's address to what the view shows, without opening the view again. */
function setQuery(changes) {
  const { section, name, query } = place();
  for (const [key, value] of Object.entries(changes)) {
    if (value === null || value === "" || value === undefined) query.delete(key);
    else query.set(key, value);
  }
  const path = [section, ...(name ? [encodeURIComponent(name)] : [])].join("/");
  history.replaceState(null, "", `#/${path}${[...query].length ? `?${query}` : ""}`);
}

async function refresh() {
  if (refreshing || document.hidden || document.querySelector("dialog[open]")) return;
  if (!view && !mayTryAgain) return;
  refreshing = true;
  try {
    if (!view) await open();
    else if (view.refresh) await view.refresh();
    stale("");
  } catch (error) {
    if (error.name !== "AbortError") stale(sentence(error.message));
  } finally {
    refreshing = false;
  }
}

/** Shows that the figures are not up to date, with the reason; "" removes the note. Screen readers announce the note once. */
function stale(why) {
  if (why && !document.body.classList.contains("stale")) announce(`Not up to date. ${why}`);
  document.body.classList.toggle("stale", Boolean(why));
  const note = document.querySelector(".stale-note");
  if (note) fill(note, why ? `Not up to date. ${why}` : "");
}

/** Opens the view of the address at the top of the page. If the former view had the focus, the new view gets it. */
async function navigate() {
  const hadFocus = main.contains(document.activeElement);
  window.scrollTo(0, 0);
  stale("");
  await open();
  if (hadFocus && document.activeElement === document.body) main.focus({ preventScroll: true });
}

function drawNavigation(section) {
  const current = { topic: "topics", group: "groups" }[section] || section;
  fill(
    document.getElementById("nav"),
    SECTIONS.map(([path, text]) => h("a", { href: `#/${path}`, "aria-current": path === current ? "page" : null }, text)),
  );
}

function drawTools() {
  const theme = localStorage.getItem(THEME) || "auto";
  const choose = select([["auto", "◐ Auto"], ["light", "◐ Light"], ["dark", "◐ Dark"]], theme, {
    "aria-label": "Theme",
    title: "Theme: that of the system, light or dark",
    onchange: (event) => {
      localStorage.setItem(THEME, event.target.value);
      applyTheme();
    },
  });
  const who = !me || me.auth === "none" ? null : h("button", { onclick: () => (me.principal ? signOut() : askWho()) }, me.principal ? `${me.principal} · sign out` : "Sign in");
  const mode = me && me.ui === "read_only" && h("span", { class: "pill" }, "read-only");
  fill(document.getElementById("tools"), mode, choose, who);
}

function drawFooter() {
  const links = [["../docs", "HTTP API"], ["../openapi.json", "OpenAPI"]];
  fill(
    document.getElementById("footer"),
    h("span", {}, me.version ? `Tidelog ${me.version}` : "Tidelog"),
    links.map(([href, text]) => h("a", { href }, text)),
    h("button", { class: "link", onclick: showKeys }, "Keys"),
  );
}

function applyTheme() {
  const theme = localStorage.getItem(THEME) || "auto";
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

async function askWho() {
  if (isAsking) return;
  isAsking = true;
  const token = h("input", { type: "password", autocomplete: "off", spellcheck: "false" });
  const user = h("input", { autocomplete: "username" });
  const password = h("input", { type: "password", autocomplete: "current-password" });
  const lasting = h("input", { type: "checkbox" });
  const body = h(
    "div",
    {},
    h("p", {}, "This gateway authenticates its callers. Enter an API key or a token, or a user's name and password."),
    field("API key or token", token),
    h("p", { class: "or" }, "or"),
    field("User", user),
    field("Password", password),
    h("label", { class: "check" }, lasting, " Keep the credentials in this browser (otherwise until the tab is closed)"),
  );
  const done = await dialog("Sign in", body, {
    action: "Sign in",
    submit: async () => {
      const shown = token.value.trim() ? { token: token.value.trim() } : { user: user.value, password: password.value };
      const before = api.signedIn();
      api.signIn(shown, lasting.checked);
      try {
        me = await api.get("/v1/me");
      } catch (error) {
        api.signIn(before);
        throw error;
      }
      return true;
    },
  });
  isAsking = false;
  drawTools();
  drawFooter();
  if (done) {
    toast(`Signed in as ${me.principal}`);
    open();
    return;
  }
  // Without credentials no view can be shown. The former view is removed, because each of its requests would open this
  // dialog again.
  if (view && view.dispose) view.dispose();
  view = null;
  opened += 1;
  fill(main, signInCard());
  main.setAttribute("aria-busy", "false");
}

async function signOut() {
  api.signIn(null);
  me = { ...me, principal: null };
  drawTools();
  await open();
}

function keys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "/") {
    const search = main.querySelector("input[type=search]");
    if (search) {
      event.preventDefault();
      search.focus();
    }
  } else if (event.key === "?") {
    showKeys();
  } else if (/^[1-5]$/.test(event.key)) {
    location.hash = `#/${SECTIONS[Number(event.key) - 1][0]}`;
  } else if (event.key === "r") {
    refresh();
  }
}

function showKeys() {
  const rows = [["1 to 5", "a section"], ["/", "the filter of the table"], ["r", "ask for new figures"], ["?", "these keys"], ["Esc", "close"]];
  dialog("Keys", h("dl", { class: "keys" }, rows.map(([key, text]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)])));
}

async function start() {
  applyTheme();
  api.onUnauthenticated(askWho);
  window.addEventListener("hashchange", navigate);
  document.addEventListener("keydown", keys);
  document.addEventListener("visibilitychange", refresh);
  drawTools();
  await open();
  setInterval(refresh, REFRESH_MS);
}

start();
