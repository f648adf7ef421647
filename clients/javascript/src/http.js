/** Requests over HTTP: credentials, timeouts, errors of problem documents, and retries where they are safe. */

import { toBase64 } from "./bytes.js";
import { abortReason, ConnectionError, errorOf, invalidOption, InvalidRequestError, OutcomeUnknownError, ProtocolError, TidelogError, TimeoutError } from "./errors.js";
import { parseJson } from "./numbers.js";
import { Backoff, Deadline, sleep } from "./waiting.js";

const SHOWN_CHARS = 200;
const NEVER_SENT = ["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN"];

/** Credentials of the client, in the forms that HTTP and WebSocket take. */
export class Credentials {
  #token;
  #user;
  #password;

  /** @param {{apiKey?: string, token?: string | (() => string | Promise<string>), user?: string, password?: string}} options */
  constructor({ apiKey, token, user, password }) {
    const kinds = [apiKey, token, user].filter((given) => given !== undefined);
    if (kinds.length > 1 || (user === undefined) !== (password === undefined)) {
      throw invalidOption("give one of apiKey, token, or user with password");
    }
    this.#token = token ?? apiKey;
    this.#user = user;
    this.#password = password;
  }

  /** Whether the client requests a new token for each connection, so that reconnecting after a refused token may succeed. */
  get areRenewed() {
    return typeof this.#token === "function";
  }

  /** Return the fields of the WebSocket message `auth`; undefined without credentials. */
  async message() {
    if (this.#user !== undefined) return { user: this.#user, password: this.#password };
    const token = typeof this.#token === "function" ? await this.#token() : this.#token;
    return token === undefined ? undefined : { token };
  }

  /** Return the header `Authorization`; undefined without credentials. */
  async header() {
    if (this.#user === undefined) {
      const shown = await this.message();
      return shown && `Bearer ${shown.token}`;
    }
    return `Basic ${toBase64(new TextEncoder().encode(`${this.#user}:${this.#password}`))}`;
  }
}

/** Return the address of the gateway, which may have a path prefix, with a slash at its end. */
export function baseUrl(url) {
  let base;
  try {
    base = new URL(url ?? globalThis.location?.origin);
  } catch (error) {
    throw invalidOption(`url must be the gateway's address, such as http://127.0.0.1:8080, got ${url}`, error);
  }
  if (!["http:", "https:"].includes(base.protocol)) {
    throw invalidOption(`url must begin with http: or https:, got ${base.protocol}`);
  }
  if (base.username || base.password || base.search || base.hash) {
    throw invalidOption("url must have no credentials, query or fragment; give credentials as apiKey, token or user");
  }
  if (!base.pathname.endsWith("/")) base.pathname += "/";
  return base;
}

/** Sends requests to one gateway. */
export class HttpTransport {
  #base;
  #credentials;
  #fetch;
  #timeoutMs;
  #retries;
  #backoff;

  constructor(base, credentials, { fetch, timeoutMs, retries, backoff }) {
    this.#base = base;
    this.#credentials = credentials;
    // Browsers refuse to call `fetch` as a method of another object.
    this.#fetch = fetch ?? ((...request) => globalThis.fetch(...request));
    this.#timeoutMs = timeoutMs;
    this.#retries = retries;
    this.#backoff = backoff;
  }

  /**
   * Send a request and return its answer.
   *
   * @param {string} method
   * @param {(string | number)[]} path parts, which are percent-encoded
   * @param {object} [options]
   * @param {object} [options.query] parameters; undefined ones are left out
   * @param {string} [options.body] JSON text
   * @param {boolean} [options.isRepeatable] whether the request is idempotent
   * @param {number} [options.waitMs] how long the request asks the gateway to wait for records; added to the timeout
   * @param {(text: string) => any} [options.parse] parses the answer; by default integers beyond 2^53 - 1 become BigInt
   */
  async request(method, path, options = {}) {
    const { signal, retries = this.#retries, isRepeatable = method === "GET" } = options;
    const backoff = new Backoff(this.#backoff);
    for (let left = retries; ; left -= 1) {
      try {
        return await this.#once(method, path, options);
      } catch (error) {
        const mayRepeat = error instanceof TidelogError && error.retryable && (isRepeatable || error.definite);
        // `Retry-After` is never shortened: if it is longer than the longest back-off delay, the call fails instead.
        if (left <= 0 || !mayRepeat || error.retryAfterMs > backoff.maxMs) throw error;
        await sleep(backoff.next(error.retryAfterMs), signal);
      }
    }
  }

  #urlOf(path, query) {
    const url = new URL(path.map(pathSegment).join("/"), this.#base);
    for (const [name, value] of Object.entries(query)) {
      if (value !== undefined) url.searchParams.set(name, String(value));
    }
    return url;
  }

  /**
   * Send a GET whose answer does not end, and return the answer when its head has arrived.
   *
   * @param {(string | number)[]} path
   * @param {object} options
   * @param {object} options.query
   * @param {AbortSignal} options.signal ends the answer
   * @param {number} [options.timeoutMs] how long the head of the answer may take, in milliseconds
   * @param {number} options.quietMs the connection counts as lost if no data arrives for this number of milliseconds
   */
  async open(path, { query, signal, timeoutMs = this.#timeoutMs, quietMs }) {
    const url = this.#urlOf(path, query);
    const what = `GET ${url.pathname}`;
    const deadline = new Deadline(timeoutMs, signal);
    const controller = new AbortController();
    const onAbort = () => controller.abort();
    deadline.signal.addEventListener("abort", onAbort, { once: true });
    const close = () => {
      signal.removeEventListener("abort", onAbort);
      controller.abort();
    };
    try {
      const headers = { Accept: "text/event-stream" };
      const authorization = await this.#credentials.header();
      if (authorization) headers.Authorization = authorization;
      const request = { method: "GET", headers, signal: controller.signal, cache: "no-store", redirect: "error" };
      const answer = await this.#fetch(url.href, request);
      if (!answer.ok) return documentOf(what, answer, await answer.text(), parseAnswer);
      signal.addEventListener("abort", onAbort, { once: true });
      if (signal.aborted) onAbort();
      return { close, chunks: () => chunksOf(what, answer.body, quietMs) };
    } catch (error) {
      close();
      if (error instanceof TidelogError) throw error;
      throw this.#failure(what, error, { signal, isOver: deadline.isOver, timeoutMs });
    } finally {
      deadline.signal.removeEventListener("abort", onAbort);
      deadline.done();
    }
  }

  async #once(method, path, { query = {}, body, signal, timeoutMs = this.#timeoutMs, waitMs = 0, parse = parseAnswer }) {
    if (signal?.aborted) throw abortReason(signal);
    const url = this.#urlOf(path, query);
    const what = `${method} ${url.pathname}`;
    const deadline = new Deadline(timeoutMs + waitMs, signal);
    try {
      const headers = { Accept: "application/json" };
      const authorization = await this.#credentials.header();
      if (authorization) headers.Authorization = authorization;
      if (body !== undefined) headers["Content-Type"] = "application/json";
      const request = { method, headers, body, signal: deadline.signal, cache: "no-store", redirect: "error" };
      let answer, text;
      try {
        answer = await this.#fetch(url.href, request);
        text = await answer.text();
      } catch (error) {
        throw this.#failure(what, error, { signal, isOver: deadline.isOver, timeoutMs: timeoutMs + waitMs });
      }
      return documentOf(what, answer, text, parse);
    } finally {
      deadline.done();
    }
  }

  #failure(what, error, { signal, isOver, timeoutMs }) {
    if (signal?.aborted) return abortReason(signal);
    // If the connection was never established, nothing was sent. Browsers do not report that.
    const about = { retryable: true, definite: NEVER_SENT.includes(error?.cause?.code), cause: error };
    if (isOver) return new TimeoutError(`${what}: no answer within ${timeoutMs} ms`, { ...about, code: "timed_out" });
    const why = error?.cause?.message || error?.message;
    return new ConnectionError(`${what}: ${this.#base.origin} cannot be reached, or the connection broke: ${why}`, {
      ...about,
      code: "connection_failed",
    });
  }
}

/** Yield the text of an answer as it arrives. */
async function* chunksOf(what, body, quietMs) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  try {
    for (;;) {
      let timer;
      const quiet = new Promise((_, reject) => {
        const error = new ConnectionError(`${what}: no data arrived for ${quietMs} ms`, { code: "connection_lost", retryable: true });
        timer = setTimeout(() => reject(error), quietMs);
      });
      let read;
      try {
        read = await Promise.race([reader.read(), quiet]);
      } catch (cause) {
        if (cause instanceof TidelogError) throw cause;
        throw new ConnectionError(`${what}: the connection broke: ${cause?.cause?.message || cause?.message}`, {
          code: "connection_lost", retryable: true, cause,
        });
      } finally {
        clearTimeout(timer);
      }
      if (read.done) return;
      yield decoder.decode(read.value, { stream: true });
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function pathSegment(part) {
  const text = String(part);
  // A URL resolves "." and ".." even where they are percent-encoded.
  if (text === "" || text === "." || text === "..") {
    throw new InvalidRequestError(`the name of a topic or group, or a key, must not be "${text}"`, { code: "invalid_name" });
  }
  return encodeURIComponent(text);
}

function parseAnswer(text) {
  return parseJson(text, { numbers: "bigint" });
}

function documentOf(what, answer, text, parse) {
  if (answer.ok && text === "" && answer.status === 204) return undefined;
  let document;
  try {
    document = answer.ok ? parse(text) : JSON.parse(text);
    if (document === null || typeof document !== "object") throw new SyntaxError("the answer is not an object");
  } catch (error) {
    if (error instanceof TidelogError) throw error;
    throw notTheGateway(what, answer, text, error);
  }
  if (answer.ok) return document;
  if (typeof document.code !== "string") throw notTheGateway(what, answer, text);
  throw errorOf(document, {
    requestId: answer.headers.get("X-Request-Id") ?? document.request_id,
    retryAfterMs: retryAfterMs(answer.headers.get("Retry-After")),
  });
}

/** Return the error for an answer that comes from a proxy in front of the gateway, or from another server. */
function notTheGateway(what, answer, text, cause) {
  const message = `${what}: the answer with status ${answer.status} does not come from a Tidelog gateway; check the url and proxies: ${text.slice(0, SHOWN_CHARS)}`;
  const retryable = [429, 502, 503, 504].includes(answer.status);
  const about = { code: "bad_reply", status: answer.status, retryable, definite: false, cause };
  const retryAfter = retryAfterMs(answer.headers.get("Retry-After"));
  return new (answer.ok || !retryable ? ProtocolError : OutcomeUnknownError)(message, { ...about, retryAfterMs: retryAfter });
}

function retryAfterMs(header) {
  return header !== null && /^\d+$/.test(header) ? Number(header) * 1000 : undefined;
}
