// Where the time of a token goes: a bar for plain decoding and one for each drafter at its optimum.

import { h } from "../lib/dom.js";
import { number, percent } from "../lib/format.js";

// parts that every model may have, in the order of a forward; others come after them
const ORDER = ["projections", "attention", "state", "feed_forward", "experts", "shared_experts", "router", "indexer",
  "communication", "head", "sampling", "overhead", "draft"];
const COLOURS = ["--series-1", "--series-5", "--series-3", "--series-2", "--series-4", "--series-6"];

export class Stack {
  constructor(parent, { title, note, tools }) {
    this.legend = h("ul", { class: "legend" });
    this.bars = h("div", { class: "bars" });
    parent.append(h("figure", { class: "chart" },
      h("figcaption", {}, h("h3", {}, title), h("p", { class: "hint" }, note)), tools, this.legend, this.bars));
  }

  /** `rows`: [{ label, components {name: ms}, tokens }]; a row's bar shows ms per committed token. */
  draw(rows) {
    const names = [...new Set(rows.flatMap((row) => Object.keys(row.components)))]
      .filter((name) => rows.some((row) => share(row, name) > 0.002))
      .sort((a, b) => rank(a) - rank(b));
    const per = (row, name) => (row.components[name] ?? 0) / row.tokens;
    const totals = rows.map((row) => Object.keys(row.components).reduce((sum, name) => sum + per(row, name), 0));
    const widest = Math.max(...totals);
    this.legend.replaceChildren(...names.map((name) => h("li", {}, h("span", { class: "block", style: fill(name, names) }), words(name))));
    this.bars.replaceChildren(...rows.map((row, index) => h("div", { class: "stack-bar" },
      h("span", { class: "bar-label" }, row.label),
      h("div", { class: "bar-track" },
        names.map((name) => h("span", {
          class: "bar-part", title: `${words(name)}: ${number(per(row, name))} ms a token, ${percent(share(row, name))}`,
          style: { ...fill(name, names), width: `${(100 * per(row, name)) / widest}%` },
        }))),
      h("span", { class: "bar-total" }, `${number(totals[index])} ms`))));
  }

  clear() {
    this.legend.replaceChildren();
    this.bars.replaceChildren();
  }
}

const words = (name) => name.replaceAll("_", " ");
const rank = (name) => (ORDER.includes(name) ? ORDER.indexOf(name) : ORDER.length - 2.5);

function share(row, name) {
  const total = Object.values(row.components).reduce((sum, value) => sum + value, 0);
  return total ? (row.components[name] ?? 0) / total : 0;
}

/** The draft is hatched, so that it stands apart without a colour of its own. */
function fill(name, names) {
  if (name === "draft") return { background: "repeating-linear-gradient(45deg, var(--ink) 0 2px, transparent 2px 6px)" };
  if (name === "overhead") return { background: "var(--line-strong)" };
  return { background: `var(${COLOURS[names.indexOf(name) % COLOURS.length]})` };
}
