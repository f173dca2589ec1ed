// The frame: tabs by the URL's hash, light and dark, the API key.
//
// A tab is a style sheet tabs/NAME.css and a module tabs/NAME.js that exports
// mount(element, context), called once when the tab is first opened and its style applies, and may
// export show(params) and hide(). types/page.d.ts has their types.

import { byId, find, h, loadStyle } from "./lib/dom.js";
import { errorBox } from "./lib/errors.js";
import { HttpError, getJson, setApiKey, apiKey, KEY_NEEDED } from "./lib/http.js";

/** @import { PageState, Tab } from "./types/answers" */
/** @import { TabContext, TabModule } from "./types/page" */

/**
 * A tab that has been opened. `query` is that of its hash.
 *
 * @typedef {{ panel: HTMLElement, module: TabModule | null, query: string, failed: boolean }} Entry
 */

async function start() {
  themeSwitch();
  keyDialog();
  try {
    const frame = new Frame(await getJson("ui/state"));
    frame.build();
  } catch (error) {
    byId("main", HTMLElement).replaceChildren(errorBox(error, () => location.reload()));
  }
}

// -- tabs -----------------------------------------------------------------------------------------

class Frame {
  #state;
  /** @type {Map<string, Entry>} by the name of the tab */
  #opened = new Map();
  /** @type {string | null} */
  #current = null;
  #tabs = byId("tabs", HTMLElement);
  #main = byId("main", HTMLElement);

  /** @param {PageState} state */
  constructor(state) {
    this.#state = state;
  }

  build() {
    byId("key", HTMLElement).hidden = !this.#state.key_needed;
    byId("foot", HTMLElement).textContent = `Paceline ${this.#state.version}`;
    this.#tabs.replaceChildren(...this.#state.tabs.map((tab) => this.#tabButton(tab)));
    this.#tabs.addEventListener("keydown", (event) => this.#onKey(event));
    window.addEventListener("hashchange", () => this.#route());
    this.#route();
  }

  /** @param {Tab} tab */
  #tabButton({ name, title, available }) {
    return h("button", {
      type: "button",
      role: "tab",
      id: `tab-${name}`,
      class: available ? "" : "unavailable",
      "aria-controls": `panel-${name}`,
      on: { click: () => this.#open(name) },
    }, title);
  }

  /** @param {KeyboardEvent} event */
  #onKey(event) {
    const names = this.#state.tabs.map(({ name }) => name);
    const from = names.indexOf(this.#current ?? names[0]);
    /** @type {{ [key: string]: number }} */
    const targets = { ArrowRight: from + 1, ArrowLeft: from - 1, Home: 0, End: -1 };
    const target = targets[event.key];
    if (target === undefined) return;
    event.preventDefault();
    const name = names[(target + names.length) % names.length];
    this.#open(name);
    byId(`tab-${name}`, HTMLElement).focus();
  }

  /** @param {string} name @param {URLSearchParams | null} params null: as it was last */
  #open(name, params = null) {
    const query = params === null ? this.#opened.get(name)?.query : String(params);
    location.hash = hashOf(name, query ?? "");
  }

  #fromHash() {
    const [name, query = ""] = location.hash.slice(1).split(/\?(.*)/s);
    const tab = this.#state.tabs.find((candidate) => candidate.name === name);
    if (tab) return { tab, query };
    const first = this.#state.tabs.find((candidate) => candidate.name === this.#state.opens_on);
    return { tab: first ?? this.#state.tabs[0], query: "" };
  }

  async #route() {
    const { tab, query } = this.#fromHash();
    if (this.#current !== null && this.#current !== tab.name) this.#leave(this.#current);
    this.#current = tab.name;
    for (const { name } of this.#state.tabs) {
      select(byId(`tab-${name}`, HTMLElement), name === tab.name);
    }
    document.title = `${tab.title} · Paceline`;
    let entry = this.#opened.get(tab.name);
    if (entry?.failed) {
      entry.panel.remove(); // this visit tries again
      entry = undefined;
    }
    entry ??= await this.#mount(tab, query);
    if (this.#current !== tab.name) return; // the reader has moved on while the tab loaded
    entry.query = query;
    entry.panel.hidden = false;
    entry.module?.show?.(new URLSearchParams(query));
  }

  /** @param {string} name */
  #leave(name) {
    const entry = this.#opened.get(name);
    if (!entry) return;
    entry.panel.hidden = true;
    entry.module?.hide?.();
  }

  /** @param {Tab} tab @param {string} query */
  async #mount(tab, query) {
    const panel = h("section", {
      id: `panel-${tab.name}`,
      class: `panel ${tab.name}`,
      role: "tabpanel",
      "aria-labelledby": `tab-${tab.name}`,
    });
    /** @type {Entry} */
    const entry = { panel, module: null, query, failed: false };
    this.#opened.set(tab.name, entry);
    this.#main.append(panel);
    if (!tab.available) {
      panel.append(needsServer(tab));
      return entry;
    }
    try {
      /** @type {[TabModule, void]} */
      const [module] = await Promise.all([
        import(`./tabs/${tab.name}.js`), loadStyle(`tabs/${tab.name}.css`),
      ]);
      await module.mount(panel, this.#context(tab.name, entry));
      entry.module = module;
    } catch (error) {
      entry.failed = true;
      panel.replaceChildren(errorBox(error, () => this.#route()));
      if (!(error instanceof HttpError)) console.error(error);
    }
    return entry;
  }

  /** @param {string} name @param {Entry} entry @returns {TabContext} */
  #context(name, entry) {
    return {
      state: this.#state,
      params: () => new URLSearchParams(entry.query),
      remember: (params) => {
        entry.query = String(params);
        // of the hash, not the tab shown: that follows the hash a moment later
        if (this.#fromHash().tab.name !== name) return;
        history.replaceState(null, "", `#${hashOf(name, entry.query)}`);
      },
      open: (other, params) => this.#open(other, params),
    };
  }
}

/** @param {string} name @param {string} query */
const hashOf = (name, query) => (query ? `${name}?${query}` : name);

/** @param {HTMLElement} button @param {boolean} chosen */
function select(button, chosen) {
  button.setAttribute("aria-selected", String(chosen));
  button.tabIndex = chosen ? 0 : -1;
}

/** @param {Tab} tab */
function needsServer({ title, reason, command }) {
  return h(
    "div",
    { class: "notice" },
    h("h1", {}, title),
    h("p", {}, reason),
    h("pre", {}, h("code", {}, command)),
  );
}

// -- light and dark -------------------------------------------------------------------------------

const THEMES = [
  { name: "auto", sign: "◐ Auto" },
  { name: "light", sign: "☀ Light" },
  { name: "dark", sign: "☾ Dark" },
];

function themeSwitch() {
  const root = document.documentElement;
  const button = byId("theme", HTMLElement);
  let index = Math.max(0, THEMES.findIndex(({ name }) => name === root.dataset.theme));
  const paint = () => {
    const { name, sign } = THEMES[index];
    button.textContent = sign;
    button.setAttribute("aria-label", `Colours: ${name}. Change`);
  };
  button.addEventListener("click", () => {
    index = (index + 1) % THEMES.length;
    const { name } = THEMES[index];
    if (name === "auto") delete root.dataset.theme;
    else root.dataset.theme = name;
    try {
      localStorage.setItem("paceline-theme", name);
    } catch {
      // storage is off: the choice lasts as long as the page
    }
    paint();
  });
  paint();
}

// -- the key --------------------------------------------------------------------------------------

function keyDialog() {
  const dialog = byId("key-dialog", HTMLDialogElement);
  const field = byId("key-field", HTMLInputElement);
  const error = byId("key-error", HTMLElement);
  const show = (message = "") => {
    error.textContent = message;
    error.hidden = !message;
    field.value = apiKey();
    if (!dialog.open) dialog.showModal();
  };
  byId("key", HTMLElement).addEventListener("click", () => show());
  byId("key-cancel", HTMLElement).addEventListener("click", () => dialog.close());
  find(dialog, "form")?.addEventListener("submit", () => {
    setApiKey(field.value.trim());
    location.reload(); // every tab asks again, with the key
  });
  window.addEventListener(KEY_NEEDED, (event) => {
    const refusal = event instanceof CustomEvent ? event.detail : null;
    show(apiKey() && refusal instanceof HttpError ? refusal.message : "");
  });
}

start();
