// The list of kept conversations: open, delete, and save one as a file.

import {
  asMarkdown, dropConversation, keepConversation, keptConversations, MOST, titleOf, unreadableIds,
} from "./conversations.js";
import { download, h } from "./dom.js";

/** @import { Conversation } from "./conversations.js" */

export class History {
  element;
  /** @type {Conversation | null} the one that is shown */
  #current = null;
  #summary = h("summary");
  #list = h("ul", { class: "kept" });
  #trouble = h("p", { class: "error", role: "alert", hidden: true });
  #unreadable = h("p", { class: "unreadable", role: "status", hidden: true });
  #save = h("p", { class: "save" });
  #open;
  #dropped;

  /**
   * @param {(conversation: Conversation) => void} open
   * @param {() => void} dropped called when the shown conversation was deleted
   */
  constructor(open, dropped) {
    this.#open = open;
    this.#dropped = dropped;
    this.#save.append(
      h("span", { class: "hint" }, "Save this one as"),
      this.#button("JSON", () => this.#saveFile("json")),
      this.#button("Markdown", () => this.#saveFile("md")));
    this.element = h("details", { class: "card history" }, this.#summary, this.#save, this.#list,
      this.#unreadable, this.#trouble,
      h("p", { class: "hint" }, `This browser keeps the latest ${MOST}, with their texts and `
        + "numbers. The server keeps none."));
    window.addEventListener("storage", () => this.#show()); // another window has written
    this.show(null);
  }

  /** Keep the shown conversation as it is now. @param {Conversation} conversation */
  keep(conversation) {
    const isKept = keepConversation(conversation);
    this.#trouble.textContent = isKept ? "" : "This browser cannot keep this conversation: its "
      + "storage is off or full. Save it as a file.";
    this.#trouble.hidden = isKept;
    this.show(conversation);
  }

  /** @param {Conversation | null} conversation the one that is shown; null: a new one */
  show(conversation) {
    this.#current = conversation;
    this.#show();
  }

  // -- inside -------------------------------------------------------------------------------------

  #show() {
    const kept = keptConversations();
    this.#summary.textContent = `Conversations (${kept.length})`;
    this.#save.hidden = this.#current === null;
    this.#list.replaceChildren(...kept.map((conversation) => this.#row(conversation)));
    this.#showUnreadable();
  }

  #showUnreadable() {
    const ids = unreadableIds();
    this.#unreadable.hidden = ids.length === 0;
    this.#unreadable.replaceChildren(
      `Cannot be read: ${ids.length} of the conversations kept here (damaged, or of another `
        + "version of this page). ",
      this.#button("Delete", () => { ids.forEach(dropConversation); this.#show(); }));
  }

  /** @param {Conversation} conversation */
  #row(conversation) {
    const { id, updated } = conversation;
    const title = titleOf(conversation);
    const open = this.#button(title, () => this.#open(conversation));
    open.title = new Date(updated).toLocaleString();
    if (id === this.#current?.id) open.setAttribute("aria-current", "true");
    const drop = this.#button("✕", () => {
      dropConversation(id);
      if (id === this.#current?.id) this.#dropped();
      this.#show();
    });
    drop.setAttribute("aria-label", `Delete “${title}”`);
    return h("li", {}, open, drop);
  }

  /** @param {string} text @param {() => void} click */
  #button(text, click) {
    return h("button", { type: "button", class: "quiet", on: { click } }, text);
  }

  /** @param {"json" | "md"} kind */
  #saveFile(kind) {
    if (this.#current === null) return;
    const name = `conversation-${this.#current.updated.slice(0, 10)}.${kind}`;
    if (kind === "md") download(name, asMarkdown(this.#current), "text/markdown");
    else download(name, `${JSON.stringify(this.#current, null, 2)}\n`, "application/json");
  }
}
