// The frame: tabs by the URL's hash, light and dark, the API key.
//
// A tab is a module tabs/NAME.js that exports mount(element, context), called once when it is first
// opened, and, where it wants them, show(params), hide() and unmount(). `context`:
//   state             what GET ui/state said
//   params()          URLSearchParams of the hash (#NAME?a=b)
//   remember(params)  puts them into the hash, without a new entry in the history
//   open(name, params) goes to another tab

import { h } from "./lib/dom.js";
import { errorBox } from "./lib/errors.js";
import { HttpError, getJson, setApiKey, apiKey, KEY_NEEDED } from "./lib/http.js";

const $ = (id) => document.getElementById(id);
const opened = new Map(); // tab's name -> { panel, module }
let state = null;
let current = null;

async function start() {
  themeSwitch();
  keyDialog();
  try {
    state = await getJson("ui/state");
  } catch (error) {
    $("main").replaceChildren(errorBox(error, () => location.reload()));
    return;
  }
  $("key").hidden = !state.key_needed;
  $("foot").textContent = `Paceline ${state.version}`;
  $("tabs").replaceChildren(...state.tabs.map(tabButton));
  $("tabs").addEventListener("keydown", byKeys);
  window.addEventListener("hashchange", () => route());
  route();
}

// -- tabs ------------------------------------------------------------------------------------------

function tabButton(tab) {
  return h("button", {
    type: "button",
    role: "tab",
    id: `tab-${tab.name}`,
    class: tab.available ? "" : "unavailable",
    "aria-controls": `panel-${tab.name}`,
    on: { click: () => open(tab.name) },
  }, tab.title);
}

function byKeys(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
  if (step === undefined) return;
  event.preventDefault();
  const names = state.tabs.map((tab) => tab.name);
  const last = names.length - 1;
  const from = names.indexOf(current);
  const to = Number.isFinite(step) ? (from + step + names.length) % names.length : step < 0 ? 0 : last;
  open(names[to]);
  $(`tab-${names[to]}`).focus();
}

function open(name, params = null) {
  const query = params === null ? lastQuery(name) : String(params);
  location.hash = query ? `${name}?${query}` : name;
}

const lastQuery = (name) => opened.get(name)?.query ?? "";

function fromHash() {
  const [name, query = ""] = location.hash.slice(1).split(/\?(.*)/s);
  const known = state.tabs.some((tab) => tab.name === name);
  return { name: known ? name : state.tabs[0].name, query: known ? query : "" };
}

async function route() {
  const { name, query } = fromHash();
  const before = current;
  current = name;
  if (before !== null && before !== name) leave(before);
  const tab = state.tabs.find((one) => one.name === name);
  for (const one of state.tabs) select($(`tab-${one.name}`), one.name === name);
  document.title = `${tab.title} · Paceline`;
  const known = opened.get(name);
  if (known?.failed) known.panel.remove(); // this visit tries again
  const entry = known && !known.failed ? known : await mount(tab, query);
  if (current !== name) return; // somebody has moved on while it loaded
  entry.query = query;
  entry.panel.hidden = false;
  entry.module?.show?.(new URLSearchParams(query));
}

function select(button, chosen) {
  button.setAttribute("aria-selected", String(chosen));
  button.tabIndex = chosen ? 0 : -1;
}

function leave(name) {
  const entry = opened.get(name);
  if (!entry) return;
  entry.panel.hidden = true;
  entry.module?.hide?.();
}

async function mount(tab, query) {
  const panel = h("section", {
    id: `panel-${tab.name}`,
    class: `panel ${tab.name}`,
    role: "tabpanel",
    "aria-labelledby": `tab-${tab.name}`,
  });
  const entry = { panel, module: null, query, failed: false };
  opened.set(tab.name, entry);
  $("main").append(panel);
  if (!tab.available) {
    panel.append(needsServer(tab));
    return entry;
  }
  try {
    const module = await import(`./tabs/${tab.name}.js`);
    await module.mount(panel, context(tab.name));
    entry.module = module;
  } catch (error) {
    entry.failed = true;
    panel.replaceChildren(errorBox(error, route));
    if (!(error instanceof HttpError)) console.error(error);
  }
  return entry;
}

function needsServer(tab) {
  return h(
    "div",
    { class: "notice" },
    h("h1", {}, tab.title),
    h("p", {}, tab.reason),
    h("pre", {}, h("code", {}, tab.command)),
  );
}

function context(name) {
  return {
    state,
    params: () => new URLSearchParams(opened.get(name).query),
    remember(params) {
      const query = String(params);
      opened.get(name).query = query;
      if (current === name) history.replaceState(null, "", query ? `#${name}?${query}` : `#${name}`);
    },
    open,
  };
}

// -- light and dark --------------------------------------------------------------------------------

const THEMES = ["auto", "light", "dark"];
const SIGNS = { auto: "◐ Auto", light: "☀ Light", dark: "☾ Dark" };

function themeSwitch() {
  const root = document.documentElement;
  const paint = () => {
    const now = root.dataset.theme ?? "auto";
    $("theme").textContent = SIGNS[now];
    $("theme").setAttribute("aria-label", `Colours: ${now}. Change`);
  };
  $("theme").addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(root.dataset.theme ?? "auto") + 1) % THEMES.length];
    if (next === "auto") delete root.dataset.theme;
    else root.dataset.theme = next;
    try {
      localStorage.setItem("paceline-theme", next);
    } catch {
      // storage is off: the choice lasts as long as the page
    }
    paint();
  });
  paint();
}

// -- the key ---------------------------------------------------------------------------------------

function keyDialog() {
  const dialog = $("key-dialog");
  const show = (message) => {
    $("key-error").textContent = message ?? "";
    $("key-error").hidden = !message;
    $("key-field").value = apiKey();
    if (!dialog.open) dialog.showModal();
  };
  $("key").addEventListener("click", () => show());
  $("key-cancel").addEventListener("click", () => dialog.close());
  dialog.querySelector("form").addEventListener("submit", () => {
    setApiKey($("key-field").value.trim());
    location.reload(); // every tab asks again, with the key
  });
  window.addEventListener(KEY_NEEDED, (event) => show(apiKey() ? event.detail.message : null));
}

start();
