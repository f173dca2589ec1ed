// Requests to the server: JSON in and out, the API key, errors that name their field.

import { asError } from "./errors.js";

/** @import { ErrorResponse } from "../types/api" */

const KEY = "paceline-key";
export const KEY_NEEDED = "paceline:key-needed"; // event of the window: the server refused the key
let key = storedKey();

function storedKey() {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

export const apiKey = () => key;

/** @param {string} value */
export function setApiKey(value) {
  key = value;
  try {
    sessionStorage.setItem(KEY, value);
  } catch {
    // storage is off: the key lives as long as the page
  }
}

/** An answer other than 2xx, or none (status 0). `field` is the one that the server names. */
export class HttpError extends Error {
  /**
   * @param {number} status
   * @param {string} message
   * @param {string | null} field
   * @param {string | null} code
   */
  constructor(status, message, field = null, code = null) {
    super(message);
    this.name = "HttpError";
    this.status = status;
    this.field = field;
    this.code = code;
  }
}

/** Return whether an error says that its request was stopped. @param {unknown} error */
export const isAbort = (error) => asError(error).name === "AbortError";

/**
 * fetch() with the key, or with the admin key where that is given: nobody is asked for another
 * then. `path` is relative to the page ("ui/state", "v1/models").
 * Throws HttpError; a stopped request throws the AbortError of fetch().
 *
 * @param {string} path
 * @param {RequestInit} options
 * @param {string | null} adminKey
 */
export async function request(path, options = {}, adminKey = null) {
  const headers = new Headers(options.headers);
  const sent = adminKey ?? key;
  if (sent) headers.set("Authorization", `Bearer ${sent}`);
  let response;
  try {
    response = await fetch(new URL(path, document.baseURI), { ...options, headers });
  } catch (error) {
    if (isAbort(error)) throw error;
    throw new HttpError(0, "the server does not answer; is it still running?");
  }
  if (response.ok) return response;
  const error = await refusal(response);
  if (error.status === 401 && adminKey === null) {
    window.dispatchEvent(new CustomEvent(KEY_NEEDED, { detail: error }));
  }
  throw error;
}

/**
 * Return the JSON at a path. The caller says its type.
 *
 * @template Answer
 * @param {string} path
 * @returns {Promise<Answer>}
 */
export async function getJson(path) {
  return (await request(path)).json();
}

/**
 * Send JSON, and return the JSON of the answer. The caller says its type.
 *
 * @template Answer
 * @param {string} path
 * @param {object} body
 * @param {string | null} adminKey
 * @returns {Promise<Answer>}
 */
export async function postJson(path, body, adminKey = null) {
  return (await request(path, posted(body), adminKey)).json();
}

/** Return the options of a request that sends JSON. @param {object} body */
export const posted = (body) => ({
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify(body),
});

/** @param {Response} response */
async function refusal(response) {
  const text = await response.text();
  try {
    /** @type {ErrorResponse} */
    const { error: { message, param, code } } = JSON.parse(text);
    return new HttpError(response.status, message, param, code);
  } catch {
    return new HttpError(response.status, text || `the server answered ${response.status}`);
  }
}

/**
 * Return a function that calls `ask(input)` with the newest input only: at once where no request is
 * in flight, else when that one has been answered and its frame drawn. Older inputs are dropped.
 * `done(answer)` or `failed(error)` gets the result.
 *
 * @template Input, Answer
 * @param {(input: Input) => Promise<Answer>} ask
 * @param {(answer: Answer) => void} done
 * @param {(error: Error) => void} failed
 * @returns {(input: Input) => void}
 */
export function newest(ask, done, failed) {
  /** @type {{ input: Input } | null} */
  let waiting = null;
  let busy = false;
  const next = async () => {
    if (busy || waiting === null) return;
    const { input } = waiting;
    waiting = null;
    busy = true;
    try {
      const answer = await ask(input);
      if (waiting === null) done(answer);
    } catch (error) {
      if (waiting === null) failed(asError(error));
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
