// Building elements without a framework.

/**
 * An element. `properties`: `class`, `style` (an object), `dataset`, `on` (handlers by event),
 * attributes (aria-*, for, role …), and else DOM properties. Children: elements, text, or null.
 */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) set(element, name, value);
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

function set(element, name, value) {
  if (value === null || value === undefined) return;
  if (name === "class") element.className = value;
  else if (name === "style") Object.assign(element.style, value);
  else if (name === "dataset") Object.assign(element.dataset, value);
  else if (name === "on") {
    for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
  } else if (name in element && !name.startsWith("aria")) element[name] = value;
  else element.setAttribute(name, value);
}

const styles = new Map();

/** Loads a style sheet of the page (`tabs/calculator.css`) once; resolves when it applies. */
export function loadStyle(path) {
  if (!styles.has(path)) {
    styles.set(path, new Promise((resolve, reject) => {
      const link = h("link", { rel: "stylesheet", href: new URL(`web/${path}`, document.baseURI).href });
      link.addEventListener("load", () => resolve());
      link.addEventListener("error", () => reject(new Error(`could not load ${path}`)));
      document.head.append(link);
    }));
  }
  return styles.get(path);
}

/** Puts text on the clipboard and says so on the button for a moment. */
export async function copyText(text, button) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Select and copy by hand"; // no clipboard without https or permission
  }
  setTimeout(() => { button.textContent = label; }, 1600);
}

/** Offers text as a file. */
export function download(name, text, type = "text/plain") {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
