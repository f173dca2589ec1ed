// Elements without a framework: make, find and fill them.

/** @import { Child, Properties, Tag } from "../types/page" */

/**
 * Make an element. `properties` are `class`, `style` (an object), `dataset`, `on` (handlers by
 * event), attributes (aria-*, for, role …), and else DOM properties. Children are elements, text,
 * null, or lists of these.
 *
 * @template {Tag} Name
 * @param {Name} tag
 * @param {Properties<Name>} [properties]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[Name]}
 */
export function h(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) set(element, name, value);
  append(element, children);
  return element;
}

/** @param {HTMLElement} element @param {string} name @param {unknown} value */
function set(element, name, value) {
  if (value === null || value === undefined) return;
  if (name === "class") element.className = String(value);
  else if (name === "style") Object.assign(element.style, value);
  else if (name === "dataset") Object.assign(element.dataset, value);
  else if (name === "on") {
    for (const [event, handler] of Object.entries(value)) element.addEventListener(event, handler);
  } else if (name in element && !name.startsWith("aria")) Reflect.set(element, name, value);
  else element.setAttribute(name, String(value));
}

/** @param {HTMLElement} element @param {Child} child */
function append(element, child) {
  if (child === null || child === undefined) return;
  if (typeof child === "string" || child instanceof Node) element.append(child);
  else for (const inner of child) append(element, inner);
}

/**
 * Return the element of the page that has this id.
 *
 * @template {HTMLElement} Kind
 * @param {string} id
 * @param {new () => Kind} kind its class
 */
export function byId(id, kind) {
  const element = document.getElementById(id);
  if (element instanceof kind) return element;
  throw new Error(`the page has no ${kind.name} with the id ${id}`);
}

/**
 * Return the first element under `root` that a CSS selector matches, or null.
 *
 * @param {ParentNode} root
 * @param {string} selector
 * @returns {HTMLElement | null}
 */
export const find = (root, selector) => root.querySelector(selector);

/**
 * Return every element under `root` that a CSS selector matches.
 *
 * @param {ParentNode} root
 * @param {string} selector
 * @returns {HTMLElement[]}
 */
export const findAll = (root, selector) => [...root.querySelectorAll(selector)].filter(isHtml);

/**
 * Return the element that an event happened in and that a CSS selector matches, or null.
 *
 * @param {Event} event
 * @param {string} selector
 * @returns {HTMLElement | null}
 */
export function closest(event, selector) {
  return event.target instanceof Element ? event.target.closest(selector) : null;
}

/** @param {Element} element @returns {element is HTMLElement} */
const isHtml = (element) => element instanceof HTMLElement;

/** @type {Map<string, Promise<void>>} */
const styles = new Map();

/**
 * Load a style sheet of the page (`tabs/calculator.css`) once. Resolves when it applies.
 *
 * @param {string} path
 */
export function loadStyle(path) {
  const loading = styles.get(path) ?? load(path);
  styles.set(path, loading);
  loading.catch(() => styles.delete(path)); // the next visit tries again
  return loading;
}

/** @param {string} path @returns {Promise<void>} */
function load(path) {
  return new Promise((resolve, reject) => {
    const href = new URL(`web/${path}`, document.baseURI).href;
    const link = h("link", { rel: "stylesheet", href });
    link.addEventListener("load", () => resolve());
    link.addEventListener("error", () => {
      link.remove();
      reject(new Error(`could not load ${path}`));
    });
    document.head.append(link);
  });
}

/**
 * Put text on the clipboard, and say so on the button for a moment.
 *
 * @param {string} text
 * @param {HTMLButtonElement} button
 */
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

/**
 * Offer text, or other content, as a file.
 *
 * @param {string} name
 * @param {BlobPart} content
 * @param {string} type
 */
export function download(name, content, type = "text/plain") {
  const url = URL.createObjectURL(new Blob([content], { type }));
  const link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
