// Colours for canvases, read from the style sheet so that light and dark live in one place.

const probe = document.createElement("span");
probe.hidden = true;

/** The value of a CSS variable such as "--series-1" as the canvas understands it: rgb(…). */
export function colour(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

export const series = (index) => colour(`--series-${(index % 6) + 1}`);

/** The same colour with an opacity from 0 to 1. */
export function faded(rgb, opacity) {
  const [red, green, blue] = rgb.match(/[\d.]+/g);
  return `rgba(${red}, ${green}, ${blue}, ${opacity})`;
}

const listeners = new Set();

/** Calls `listener` whenever light and dark change places; gives a function that stops it. */
export function onThemeChange(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

const tell = () => { for (const listener of listeners) listener(); };
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", tell);
new MutationObserver(tell).observe(document.documentElement, {
  attributes: true,
  attributeFilter: ["data-theme"],
});
