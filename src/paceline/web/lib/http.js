// Asking the server: JSON in and out, the API key, errors that name their field.

const KEY = "paceline-key";
export const KEY_NEEDED = "paceline:key-needed"; // on window, when the server refused the key
let key = stored();

function stored() {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

export const apiKey = () => key;

export function setApiKey(value) {
  key = value;
  try {
    sessionStorage.setItem(KEY, value);
  } catch {
    // storage is off: the key lives as long as the page
  }
}

/** An answer other than 2xx. `field` is what it is about (as the server names it) or null. */
export class HttpError extends Error {
  constructor(status, message, field = null, code = null) {
    super(message);
    this.name = "HttpError";
    Object.assign(this, { status, field, code });
  }
}

/**
 * fetch() with the key. `path` is relative to the page ("ui/state", "v1/models").
 * Raises HttpError; a stopped request raises the AbortError of fetch().
 */
export async function request(path, options = {}) {
  const headers = new Headers(options.headers);
  if (key) headers.set("Authorization", `Bearer ${key}`);
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new HttpError(0, "the server does not answer; is it still running?");
  }
  if (response.ok) return response;
  const error = await refusal(response);
  if (error.status === 401) window.dispatchEvent(new CustomEvent(KEY_NEEDED, { detail: error }));
  throw error;
}

export async function getJson(path, options = {}) {
  return (await request(path, options)).json();
}

export async function postJson(path, body, options = {}) {
  const headers = { "Content-Type": "application/json" };
  const sent = { ...options, method: "POST", headers, body: JSON.stringify(body) };
  return (await request(path, sent)).json();
}

async function refusal(response) {
  const text = await response.text();
  try {
    const { message, param, code } = JSON.parse(text).error;
    return new HttpError(response.status, message, param, code);
  } catch {
    return new HttpError(response.status, text || `the server answered ${response.status}`);
  }
}

/**
 * Calls `ask(input)` with the newest input only: at once where none is in flight, else when that has
 * been answered and its frame drawn. What was asked in between is dropped. `done(result, input)` and `failed(error, input)` are told.
 */
export function newest(ask, done, failed) {
  let waiting = null;
  let busy = false;
  const next = async () => {
    if (busy || waiting === null) return;
    const { input } = waiting;
    waiting = null;
    busy = true;
    try {
      const result = await ask(input);
      if (waiting === null) done(result, input);
    } catch (error) {
      if (waiting === null) failed(error, input);
    } finally {
      busy = false;
      if (waiting !== null) requestAnimationFrame(next);
    }
  };
  return (input) => {
    waiting = { input };
    next();
  };
}
