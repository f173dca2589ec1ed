// Questions that a tab asks the server again and again, and only while somebody looks.

import { HttpError } from "./http.js";

export class Asking {
  #isShown = false;
  #isAsking = false;
  #isAgain = false;
  #timer = 0;
  #every;
  #ask;
  #failed;

  /**
   * @param {number} every milliseconds between two questions
   * @param {() => Promise<number | void>} ask asks, and may return other milliseconds to the next
   * @param {(error: unknown) => void} failed shows what went wrong
   */
  constructor(every, ask, failed) {
    this.#every = every;
    this.#ask = ask;
    this.#failed = failed;
    document.addEventListener("visibilitychange", () => this.now());
  }

  show() {
    this.#isShown = true;
    this.now();
  }

  hide() {
    this.#isShown = false;
    clearTimeout(this.#timer);
  }

  /** Ask now, or as soon as the question that is open is answered; never while nobody looks. */
  async now() {
    clearTimeout(this.#timer);
    if (!this.#isShown || document.visibilityState !== "visible") return;
    this.#isAgain = this.#isAsking;
    if (this.#isAsking) return;
    this.#isAsking = true;
    let wait = this.#every;
    try {
      wait = await this.#ask() ?? wait;
    } catch (error) {
      this.#failed(error);
      // after a refused key, another question would only open the dialog again
      if (error instanceof HttpError && error.status === 401) return;
    } finally {
      this.#isAsking = false;
    }
    this.#timer = setTimeout(() => this.now(), this.#isAgain ? 0 : wait);
  }
}
