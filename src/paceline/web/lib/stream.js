// Streamed answers: the server-sent events of /v1/chat/completions.

import { HttpError, isAbort, posted, request } from "./http.js";

/** @import { ChatRequest } from "../types/api" */
/** @import { ChatChunk } from "../types/answers" */

/**
 * Send `body`, and yield the parsed events as they come, until `[DONE]`. Throws HttpError for a
 * refusal, for an error in the stream and for a stream that breaks off, and the AbortError of
 * fetch() when `signal` stops it.
 *
 * @param {string} path
 * @param {ChatRequest} body
 * @param {AbortSignal} signal
 * @returns {AsyncGenerator<ChatChunk, void>}
 */
export async function* streamed(path, body, signal) {
  const response = await request(path, { ...posted(body), signal });
  for await (const data of events(response)) {
    if (data === "[DONE]") return;
    /** @type {ChatChunk} */
    const event = JSON.parse(data);
    if (event.error) {
      const { message, param, code } = event.error;
      throw new HttpError(response.status, message, param, code);
    }
    yield event;
  }
  throw new HttpError(0, "the server broke off in the middle of the answer");
}

/** Yield the `data` of each event. Events end with an empty line. @param {Response} response */
async function* events({ body }) {
  if (body === null) return;
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const complete = (text + value).split("\n\n");
      text = complete.pop() ?? "";
      for (const event of complete) if (event.startsWith("data: ")) yield event.slice(6);
    }
  } catch (error) {
    if (isAbort(error)) throw error;
    throw new HttpError(0, "the connection to the server was lost in the middle of the answer");
  } finally {
    reader.cancel().catch(() => {}); // a reader that stops early hangs up
  }
}
