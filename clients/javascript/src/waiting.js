/** Time: back-off with jitter, sleeping that can be aborted, and signals that combine a caller's signal with a timeout. */

import { abortReason, invalidOption } from "./errors.js";

const TIMER_MS_MAX = 2 ** 31 - 1;

/** Delays that double up to a maximum. Each is shortened at random by up to half, so that clients do not all reconnect at once. */
export class Backoff {
  #failures = 0;

  /** @param {{initialMs?: number, maxMs?: number}} [options] */
  constructor({ initialMs = 250, maxMs = 30_000 } = {}) {
    if (!(initialMs > 0 && maxMs >= initialMs && maxMs <= TIMER_MS_MAX)) {
      throw invalidOption(`initialMs and maxMs must be 0 < initialMs <= maxMs <= ${TIMER_MS_MAX}, got ${initialMs} and ${maxMs}`);
    }
    this.initialMs = initialMs;
    this.maxMs = maxMs;
  }

  /** Return the delay in milliseconds after another failure; at least `retryAfterMs`, which the server asked for. */
  next(retryAfterMs = 0) {
    const fullMs = Math.min(this.maxMs, this.initialMs * 2 ** Math.min(this.#failures, 40));
    this.#failures += 1;
    return Math.max(fullMs * (0.5 + Math.random() / 2), retryAfterMs);
  }

  /** Begin again with the shortest delay. */
  reset() {
    this.#failures = 0;
  }
}

/** Return a promise that resolves after `ms`, or rejects with the signal's reason if the signal is aborted before. */
export function sleep(ms, signal) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) {
      reject(abortReason(signal));
      return;
    }
    const onAbort = () => {
      clearTimeout(timer);
      reject(abortReason(signal));
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", onAbort);
      resolve();
    }, Math.min(ms, TIMER_MS_MAX));
    signal?.addEventListener("abort", onAbort, { once: true });
  });
}

/**
 * A signal that is aborted when the caller's signal `parent` is, or after `timeoutMs`, which sets `isOver`. `done` releases the
 * timer and the listener.
 */
export class Deadline {
  #controller = new AbortController();
  #timer;
  #parent;
  #onAbort = () => this.#controller.abort(abortReason(this.#parent));

  /**
   * @param {number} timeoutMs
   * @param {AbortSignal} [parent]
   */
  constructor(timeoutMs, parent) {
    if (!(timeoutMs > 0)) {
      throw invalidOption(`timeoutMs must be > 0, got ${timeoutMs}`);
    }
    this.isOver = false;
    this.#parent = parent;
    if (parent?.aborted) this.#onAbort();
    else parent?.addEventListener("abort", this.#onAbort, { once: true });
    this.#timer = setTimeout(() => {
      this.isOver = true;
      this.#controller.abort(new DOMException("timed out", "TimeoutError"));
    }, Math.min(timeoutMs, TIMER_MS_MAX));
  }

  get signal() {
    return this.#controller.signal;
  }

  done() {
    clearTimeout(this.#timer);
    this.#parent?.removeEventListener("abort", this.#onAbort);
  }
}
