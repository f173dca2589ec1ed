// Reading an answer while it is being made: server-sent events of /v1/chat/completions.

import { HttpError, request } from "./http.js";

/**
 * Sends `body` and yields the parsed events as they come, until `[DONE]`. Raises HttpError for a
 * refusal, for an error in the stream and for a stream that breaks off; the AbortError of fetch()
 * when `signal` stops it.
 */
export async function* streamed(path, body, signal) {
  const response = await request(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) {
      throw new HttpError(response.status, event.error.message, event.error.param, event.error.code);
    }
    yield event;
  }
  throw new HttpError(0, "the server broke off in the middle of the answer");
}

/** The `data` of each event in a body. Events end with an empty line. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += value;
      const whole = text.split("\n\n");
      text = whole.pop();
      for (const event of whole) if (event.startsWith("data: ")) yield event.slice(6);
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new HttpError(0, "the connection to the server was lost in the middle of the answer");
  } finally {
    reader.cancel().catch(() => {}); // whoever stops early hangs up
  }
}
