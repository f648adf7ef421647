/** One WebSocket to the gateway: opening with credentials, requests and their answers, and a probe of quiet connections. */

import { abortReason, AuthenticationError, ConnectionError, errorOf, OverloadedError, ProtocolError, TidelogError, TimeoutError, UnavailableError } from "./errors.js";

export const SUBPROTOCOL = "tidelog.v1.json";

/** An id that this client gives no subscription: a request to end it is a probe, which the gateway answers at once. */
const PROBE_SID = 0;
const OPEN = 1;
const ERROR_WAIT_MS = 20;

/** A WebSocket to the gateway. `closed` is a promise that rejects, once, with the error that ended the connection. */
export class GatewaySocket {
  #socket;
  #onMessage;
  #requests = new Map();
  #lastId = 0;
  #end;
  #endReason;
  #heardAt = Date.now();
  #probe;
  #listeners = [];
  #lastRefusal;

  /**
   * Connect, and authenticate if the client has credentials.
   *
   * @param {object} options
   * @param {URL} options.base
   * @param {typeof WebSocket} options.WebSocket
   * @param {import("./http.js").Credentials} options.credentials
   * @param {number} options.timeoutMs maximum duration of the handshake, and then of the answer to the credentials
   * @param {number} options.heartbeatMs a connection without data for this time is probed, and ended if the probe has no
   *   answer within the same time
   * @param {(kind: string, body: any, socket: GatewaySocket) => void} options.onMessage called with each message that is not
   *   an answer
   * @param {AbortSignal} options.signal
   */
  static async open(options) {
    const auth = await options.credentials.message();
    if (options.signal.aborted) throw abortReason(options.signal);
    const opened = new GatewaySocket(options);
    try {
      await opened.#handshake(options);
      if (auth !== undefined) await opened.request({ auth }, options);
      opened.#watch(options.heartbeatMs);
      return opened;
    } catch (error) {
      opened.close();
      throw error;
    }
  }

  constructor({ base, WebSocket, onMessage }) {
    const url = new URL("v1/ws", base);
    url.protocol = base.protocol === "https:" ? "wss:" : "ws:";
    this.#onMessage = onMessage;
    this.closed = new Promise((_, reject) => {
      this.#end = reject;
    });
    this.closed.catch(() => {}); // if no caller awaits `closed`, its rejection must not be reported as unhandled
    this.#socket = new WebSocket(url.href, [SUBPROTOCOL]);
    this.#listen("message", (event) => this.#received(event.data));
    this.#listen("close", (event) => this.#fail(this.#closeError(event)));
    // An event "close" with a code follows, except in node 20 if the connection cannot be established.
    this.#listen("error", () => setTimeout(() => this.#fail(this.#closeError({ code: 1006 })), ERROR_WAIT_MS));
  }

  /** Send a request and return the `ok` of its answer; `onOk` is called with it before any later message is processed. */
  request(body, { signal, timeoutMs, onOk }) {
    return new Promise((resolve, reject) => {
      if (this.#endReason) throw this.#endReason;
      if (signal?.aborted) throw abortReason(signal);
      const id = ++this.#lastId;
      const settle = (act) => (value) => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", onAbort);
        this.#requests.delete(id);
        act(value);
      };
      const request = { resolve: settle(resolve), reject: settle(reject), onOk };
      const onAbort = () => request.reject(abortReason(signal));
      const timer = setTimeout(() => {
        const about = { code: "timed_out", retryable: true, definite: false };
        request.reject(new TimeoutError(`WebSocket: no answer to ${Object.keys(body)[0]} within ${timeoutMs} ms`, about));
      }, timeoutMs);
      signal?.addEventListener("abort", onAbort, { once: true });
      this.#requests.set(id, request);
      this.send({ id, ...body });
    });
  }

  /** Send a message that has no answer. On a connection that has ended it does nothing. */
  send(message) {
    if (this.#endReason || this.#socket.readyState !== OPEN) return;
    this.#socket.send(JSON.stringify(message));
  }

  /** End the connection. */
  close() {
    this.#fail(new ConnectionError("the client closed the WebSocket", { code: "closed" }));
  }

  /** End the connection with an error, which `closed` and pending requests reject with. */
  fail(error) {
    this.#fail(error);
  }

  #listen(kind, listener) {
    this.#socket.addEventListener(kind, listener);
    this.#listeners.push([kind, listener]);
  }

  async #handshake({ signal, timeoutMs }) {
    let timer, onAbort;
    const opened = new Promise((resolve, reject) => {
      this.#listen("open", () => {
        if (this.#socket.protocol === SUBPROTOCOL) resolve();
        else reject(new ProtocolError(`WebSocket: ${this.#socket.url} does not speak ${SUBPROTOCOL}; check the url and proxies`, { code: "bad_reply" }));
      });
      onAbort = () => reject(abortReason(signal));
      signal.addEventListener("abort", onAbort, { once: true });
      timer = setTimeout(() => {
        const about = { code: "timed_out", retryable: true };
        reject(new TimeoutError(`WebSocket: ${this.#socket.url} did not open within ${timeoutMs} ms`, about));
      }, timeoutMs);
    });
    try {
      await Promise.race([opened, this.closed]);
    } finally {
      clearTimeout(timer);
      signal.removeEventListener("abort", onAbort);
    }
  }

  #received(data) {
    if (this.#endReason) return;
    this.#heardAt = Date.now();
    let message;
    try {
      if (typeof data !== "string") throw new SyntaxError("a binary message");
      message = JSON.parse(data);
      if (message === null || typeof message !== "object") throw new SyntaxError("JSON that is not an object");
      this.#dispatch(message);
    } catch (error) {
      if (error instanceof TidelogError) this.#fail(error);
      else this.#fail(new ProtocolError(`WebSocket: received a message that does not follow ${SUBPROTOCOL}: ${error.message}`, { code: "bad_reply", cause: error }));
    }
  }

  #dispatch(message) {
    const request = this.#requests.get(message.id);
    if (message.error !== undefined) {
      const error = errorOf(message.error);
      this.#lastRefusal = error;
      if (request) request.reject(error);
      else if (message.id === undefined) throw error; // an error of the connection itself, not of a request
    } else if (message.ok !== undefined) {
      request?.onOk?.(message.ok);
      request?.resolve(message.ok);
    } else {
      for (const kind of ["batch", "gap", "assigned", "revoked", "end"]) {
        if (message[kind] !== undefined) this.#onMessage(kind, message[kind], this);
      }
    }
  }

  #watch(heartbeatMs) {
    if (this.#endReason) return;
    this.#probe = setTimeout(async () => {
      if (Date.now() - this.#heardAt >= heartbeatMs) {
        try {
          await this.request({ unsub: { sid: PROBE_SID } }, { timeoutMs: heartbeatMs });
        } catch (error) {
          if (!(error instanceof TimeoutError)) {
            this.#watch(heartbeatMs); // an answer arrived: the error that the subscription does not exist
            return;
          }
          const about = { code: "connection_lost", retryable: true, definite: false };
          this.#fail(new ConnectionError(`WebSocket: ${this.#socket.url} sent no data for ${2 * heartbeatMs} ms and did not answer a probe`, about));
          return;
        }
      }
      this.#watch(heartbeatMs);
    }, heartbeatMs);
  }

  #fail(error) {
    if (this.#endReason) return;
    this.#endReason = error;
    clearTimeout(this.#probe);
    for (const [kind, listener] of this.#listeners) this.#socket.removeEventListener(kind, listener);
    this.#socket.addEventListener("error", () => {}); // some libraries throw if an error has no listener
    try {
      // With libraries for node, a connection whose peer does not answer has to be terminated; browsers do so by themselves.
      if (error.code === "connection_lost" && typeof this.#socket.terminate === "function") this.#socket.terminate();
      else this.#socket.close(1000);
    } catch {
      // it never opened
    }
    for (const { reject } of [...this.#requests.values()]) reject(error);
    this.#end(error);
  }

  #closeError({ code, reason }) {
    const why = reason ? `: ${reason}` : "";
    const about = { code: "connection_lost", retryable: true, definite: false };
    switch (code) {
      case 4401:
        return new AuthenticationError(this.#lastRefusal?.message ?? `WebSocket: the credentials are refused${why}`, {
          code: this.#lastRefusal?.code ?? "unauthenticated",
          status: 401,
          definite: false,
        });
      case 4429:
        return new OverloadedError(`WebSocket: the gateway allows no more WebSockets${why}`, { ...about, code: "too_many_websockets", status: 429 });
      case 4408:
        return new UnavailableError(`WebSocket: the gateway ended the connection, because this client reads too slowly${why}`, { ...about, code: "too_slow" });
      case 1012:
        return new UnavailableError(`WebSocket: the gateway is stopping${why}`, { ...about, code: "shutting_down" });
      case 1013:
        // The error that the gateway sent before has the true cause, and how long to wait.
        return this.#lastRefusal?.retryable ? this.#lastRefusal : new UnavailableError(`WebSocket: the gateway cannot serve this connection now; try again later${why}`, { ...about, code: "try_again" });
      case 1003:
      case 1009:
        return new ProtocolError(`WebSocket: the gateway refused a message of this client (${code})${why}`, { code: "message_refused" });
      default:
        return new ConnectionError(`WebSocket: ${this.#socket.url} cannot be reached, or the connection broke (${code})${why}`, about);
    }
  }
}

/** Return whether reconnecting may help after an error. */
export function isPassing(error) {
  return error instanceof TidelogError && error.retryable;
}
