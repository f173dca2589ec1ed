// Colours for canvases, read from the style sheet so that light and dark live in one place.

const probe = document.createElement("span");
probe.hidden = true;

/**
 * Return a CSS variable such as "--series-1" as a canvas takes it: rgb(…).
 *
 * @param {string} name
 */
export function colour(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

/** Return the CSS variable of a series, by its index. @param {number} index */
export const seriesColour = (index) => `--series-${(index % 6) + 1}`;

/**
 * Return the red, green and blue of an rgb(…), each from 0 to 255.
 *
 * @param {string} rgb
 * @returns {[number, number, number]}
 */
export function channels(rgb) {
  const [red = 0, green = 0, blue = 0] = (rgb.match(/[\d.]+/g) ?? []).map(Number);
  return [red, green, blue];
}

/**
 * Return a colour with an opacity from 0 to 1.
 *
 * @param {string} rgb
 * @param {number} opacity
 */
export const faded = (rgb, opacity) => `rgba(${channels(rgb).join(", ")}, ${opacity})`;

/**
 * Call `listener` whenever the page changes between light and dark.
 *
 * @param {() => void} listener
 */
export function onThemeChange(listener) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", listener);
  new MutationObserver(listener).observe(document.documentElement, {
    attributes: true,
    attributeFilter: ["data-theme"],
  });
}
