// Made of clients/javascript/src: python -m tests.javascript_bundle

/** Bytes and text: base64 and the length of UTF-8, by functions that node and browsers both have. */

const CHUNK_BYTES = 0x8000;

/** Return the bytes of a Uint8Array, another view or an ArrayBuffer; undefined for anything else. */
function bytesOf(value) {
  if (value instanceof Uint8Array) return value;
  if (ArrayBuffer.isView(value)) return new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
  if (value instanceof ArrayBuffer) return new Uint8Array(value);
  return undefined;
}

/** Return bytes as base64. */
function toBase64(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += CHUNK_BYTES) {
    text += String.fromCharCode(...bytes.subarray(at, at + CHUNK_BYTES));
  }
  return btoa(text);
}

/** Return the bytes that a base64 text encodes. */
function fromBase64(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at += 1) bytes[at] = binary.charCodeAt(at);
  return bytes;
}

/** Return the number of bytes that a base64 text encodes. */
function base64Length(text) {
  const padding = text.endsWith("==") ? 2 : text.endsWith("=") ? 1 : 0;
  return (text.length / 4) * 3 - padding;
}

/** Return the number of bytes of a text in UTF-8. */
function utf8Length(text) {
  let length = text.length;
  for (let at = 0; at < text.length; at += 1) {
    const unit = text.charCodeAt(at);
    if (unit < 0x80) continue;
    if (unit < 0x800) {
      length += 1;
    } else if (unit >= 0xd800 && unit < 0xdc00 && at + 1 < text.length) {
      length += 2; // four bytes for the two units of a pair
      at += 1;
    } else {
      length += 2;
    }
  }
  return length;
}

/**
 * Errors of the client: a class for each kind. `code` names the cause; `retryable` says whether a retry may succeed, and
 * `definite` whether the failed request certainly had no effect, so that a retry does no harm.
 *
 * The gateway answers with problem documents (RFC 9457); `errorOf` turns one into an error. Errors that the client itself
 * detects (no connection, no answer in time, an answer that is not the gateway's) have codes of their own.
 */

/** The base of all errors of this client. */
class TidelogError extends Error {
  /**
   * @param {string} message what happened, and what to do next
   * @param {object} [about] fields of the error; see `index.d.ts`
   */
  constructor(message, about = {}) {
    super(message, about.cause === undefined ? undefined : { cause: about.cause });
    this.name = new.target.name;
    this.code = about.code ?? "error";
    this.status = about.status;
    this.retryable = about.retryable ?? false;
    this.definite = about.definite ?? true;
    this.requestId = about.requestId;
    this.retryAfterMs = about.retryAfterMs;
    this.problem = about.problem;
  }
}

/** The credentials are missing, wrong, revoked or expired (401). */
class AuthenticationError extends TidelogError {}

/** The principal of the client's credentials has no permission for the request (403). */
class ForbiddenError extends TidelogError {}

/** The topic, partition, group or path does not exist (404). */
class NotFoundError extends TidelogError {}

/** The request conflicts with the present state, such as a topic that exists already (409) or was recreated (409, 410). */
class ConflictError extends TidelogError {}

/** The request is not valid (400, 405, 406, 413, 415, 421, 422), or the client refuses to send it. */
class InvalidRequestError extends TidelogError {}

/** The offset was deleted or does not exist yet; `logStartOffset` and `highWatermark` are the log's bounds. */
class OffsetOutOfRangeError extends TidelogError {
  constructor(message, about = {}) {
    super(message, about);
    this.partition = about.problem?.partition;
    this.logStartOffset = about.problem?.log_start_offset;
    this.highWatermark = about.problem?.high_watermark;
  }
}

/** A limit of rates, connections or memory is exhausted (429); retry after `retryAfterMs`. */
class OverloadedError extends TidelogError {}

/** The gateway or a node cannot serve the request now (503), or the client was too slow (408); see `definite`. */
class UnavailableError extends TidelogError {}

/** It is unknown whether the request took effect (504, or the connection broke before the answer). */
class OutcomeUnknownError extends TidelogError {}

/** The gateway cannot be reached, or the connection broke. */
class ConnectionError extends TidelogError {}

/** No answer came within `timeoutMs`. */
class TimeoutError extends TidelogError {}

/** The answer does not follow the gateway's protocol: another server or a proxy answered, or the versions do not match. */
class ProtocolError extends TidelogError {}

/** A number has more digits than a JavaScript number keeps. */
class InexactNumberError extends TidelogError {}

/** Some records of a publish were not stored; `results` has one entry for each record. */
class PartialPublishError extends TidelogError {
  constructor(message, results) {
    const failed = results.filter((result) => result.error !== undefined).map((result) => result.error);
    super(message, {
      code: "partial_publish",
      retryable: failed.every((error) => error.retryable),
      definite: failed.every((error) => error.definite),
    });
    this.results = results;
  }
}

const CLASS_BY_STATUS = {
  401: AuthenticationError,
  403: ForbiddenError,
  404: NotFoundError,
  408: UnavailableError,
  409: ConflictError,
  410: ConflictError,
  429: OverloadedError,
  503: UnavailableError,
  504: OutcomeUnknownError,
};

/**
 * Return the error for a problem document, or for the shorter object `error` in a WebSocket message or a record's result.
 *
 * @param {object} problem with `code`, `status`, `detail` and `retryable`
 * @param {{requestId?: string, retryAfterMs?: number}} [about] values of the answer's headers
 */
function errorOf(problem, about = {}) {
  const { code, status, detail } = problem;
  let kind = CLASS_BY_STATUS[status] ?? (status >= 500 ? TidelogError : InvalidRequestError);
  if (code === "offset_out_of_range") kind = OffsetOutOfRangeError;
  return new kind(typeof detail === "string" ? detail : `the gateway answered ${status}`, {
    code: typeof code === "string" ? code : "error",
    status,
    retryable: problem.retryable === true,
    // 504 means that the outcome is unknown; 500 is a failure at any point of the request, also after it took effect.
    definite: status !== 504 && status !== 500,
    requestId: about.requestId ?? problem.request_id,
    retryAfterMs: about.retryAfterMs,
    problem,
  });
}

/** Return the error for an argument or an option that the client does not accept. */
function invalidOption(message, cause) {
  return new InvalidRequestError(message, { code: "invalid_option", cause });
}

/** Return what to throw for a signal that was aborted: its reason, as `fetch` does. */
function abortReason(signal) {
  return signal.reason ?? new DOMException("The operation was aborted", "AbortError");
}

/**
 * JSON without lost digits.
 *
 * `JSON.parse` makes every number a double: 9007199254740993 becomes 9007199254740992 and 0.12345678901234567890 loses
 * its last digits, silently. `parseJson` compares each number's digits with those that the double prints, and refuses,
 * or keeps, numbers that a double does not hold. `stringifyJson` writes BigInt and `JsonNumber` digit by digit, and
 * refuses values that `JSON.stringify` would change silently.
 */

const NUMBERS = ["exact", "bigint", "text", "lossy"];

/** A number that a double may not hold has 16 or more digits, or an exponent. Strings may match, too; that only costs time. */
const SUSPICIOUS = /[\d.]{16}|\d[eE]/;
const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
const INTEGER = /^-?\d+$/;

/** A JSON number as its text. `stringifyJson` writes it as it is; `Number(n)` gives the nearest double. */
class JsonNumber {
  /** @param {string} text a number as JSON writes it */
  constructor(text) {
    if (!/^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?$/.test(text)) {
      throw new InvalidRequestError(`not a JSON number: ${text}`, { code: "invalid_number" });
    }
    this.text = text;
  }

  toString() {
    return this.text;
  }

  valueOf() {
    return Number(this.text);
  }

  toJSON() {
    throw new InexactNumberError(`JSON.stringify would lose digits of ${this.text}; use stringifyJson`, {
      code: "inexact_number",
    });
  }
}

/** Return digits and exponent of a decimal number as a text that is equal for equal numbers; the sign of zero is left out. */
function canonical(text) {
  const [, sign, whole, fraction = "", exponent = "0"] = /^(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?$/.exec(text);
  const digits = (whole + fraction).replace(/^0+/, "");
  const stripped = digits.replace(/0+$/, "");
  if (stripped === "") return "0";
  const scale = BigInt(exponent) - BigInt(fraction.length) + BigInt(digits.length - stripped.length);
  return `${sign}${stripped}e${scale}`;
}

/** Return whether a double holds all digits of a JSON number. */
function isExact(text) {
  const number = Number(text);
  return Number.isFinite(number) && canonical(text) === canonical(String(number));
}

/**
 * Parse JSON.
 *
 * @param {string} text
 * @param {{numbers?: "exact" | "bigint" | "text" | "lossy"}} [options] what happens to numbers that a double does not hold:
 *   "exact" (the default) throws `InexactNumberError`; "bigint" makes integers beyond 2^53 - 1 BigInt, and throws for
 *   other such numbers; "text" makes each a `JsonNumber`; "lossy" rounds them, as `JSON.parse` does
 */
function parseJson(text, options = {}) {
  const numbers = options.numbers ?? "exact";
  if (!NUMBERS.includes(numbers)) {
    throw invalidOption(`numbers must be one of ${NUMBERS.join(", ")}, got ${numbers}`);
  }
  if (numbers === "lossy" || !SUSPICIOUS.test(text)) return JSON.parse(text);
  JSON.parse(text); // throws if the text is not JSON: the rewriting below expects JSON
  let mark = "number:";
  while (text.includes(mark)) mark = `_${mark}`;
  const rewritten = text.replace(TOKEN, (token) => {
    if (token[0] === '"') return token;
    const isLarge = INTEGER.test(token) && !Number.isSafeInteger(Number(token));
    if (numbers === "bigint" ? !isLarge && isExact(token) : isExact(token)) return token;
    if (numbers === "exact" || (numbers === "bigint" && !isLarge)) {
      const shown = token.length > 60 ? `${token.slice(0, 60)}…` : token;
      throw new InexactNumberError(
        `the number ${shown} has more digits than a JavaScript number keeps; read it as text, or with ` +
          (INTEGER.test(token) ? '{numbers: "bigint"}' : '{numbers: "text"}'),
        { code: "inexact_number" },
      );
    }
    return `"${mark}${token}"`;
  });
  if (rewritten === text) return JSON.parse(text);
  return JSON.parse(rewritten, (_, value) => {
    if (typeof value !== "string" || !value.startsWith(mark)) return value;
    const token = value.slice(mark.length);
    return numbers === "bigint" ? BigInt(token) : new JsonNumber(token);
  });
}

/** Write JSON. BigInt and `JsonNumber` keep their digits; NaN, infinities, and integers that have lost digits throw. */
function stringifyJson(value) {
  const text = written(value, "", []);
  if (text === undefined) {
    throw new InvalidRequestError(`a value of type ${typeof value} is not JSON`, { code: "invalid_value" });
  }
  return text;
}

function written(value, key, parents) {
  if (value instanceof JsonNumber) return value.text;
  if (value !== null && typeof value === "object" && typeof value.toJSON === "function") value = value.toJSON(key);
  switch (typeof value) {
    case "bigint":
      return value.toString();
    case "number":
      return writtenNumber(value);
    case "object":
      break;
    default:
      return JSON.stringify(value); // undefined for functions and symbols
  }
  if (value === null) return "null";
  if (value instanceof JsonNumber) return value.text;
  if (value instanceof Number || value instanceof String || value instanceof Boolean) {
    return written(value.valueOf(), key, parents);
  }
  if (parents.includes(value)) throw new InvalidRequestError("the value contains itself", { code: "invalid_value" });
  const inside = [...parents, value];
  if (Array.isArray(value)) {
    return `[${value.map((item, index) => written(item, String(index), inside) ?? "null").join(",")}]`;
  }
  const members = [];
  for (const [name, member] of Object.entries(value)) {
    const text = written(member, name, inside);
    if (text !== undefined) members.push(`${JSON.stringify(name)}:${text}`);
  }
  return `{${members.join(",")}}`;
}

function writtenNumber(number) {
  if (!Number.isFinite(number)) {
    throw new InvalidRequestError(`${number} is not a JSON number`, { code: "invalid_value" });
  }
  if (Number.isInteger(number) && !Number.isSafeInteger(number)) {
    throw new InexactNumberError(
      `the integer ${number} is beyond 2^53 - 1, where JavaScript numbers lose digits; use a BigInt, a JsonNumber or valueText`,
      { code: "inexact_number" },
    );
  }
  return JSON.stringify(number);
}

/** Time: back-off with jitter, sleeping that can be aborted, and signals that combine a caller's signal with a timeout. */

const TIMER_MS_MAX = 2 ** 31 - 1;

/** Delays that double up to a maximum. Each is shortened at random by up to half, so that clients do not all reconnect at once. */
class Backoff {
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
function sleep(ms, signal) {
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
class Deadline {
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

/** Requests over HTTP: credentials, timeouts, errors of problem documents, and retries where they are safe. */

const SHOWN_CHARS = 200;
const NEVER_SENT = ["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN"];

/** Credentials of the client, in the forms that HTTP and WebSocket take. */
class Credentials {
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
function baseUrl(url) {
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
class HttpTransport {
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

/** Records as they are read, and as programs pass them to `publish`. */

const ENCODER = new TextEncoder();
const FIELDS = ["key", "value", "json", "valueText", "headers", "tag", "partition", "timestamp"];

/** Return an offset or another integer of the gateway as a number; throw if a double does not hold it exactly. */
function checkedInteger(value, name) {
  if (Number.isSafeInteger(value)) return value;
  if (typeof value === "number" && Number.isInteger(value)) {
    throw new InexactNumberError(`${name} ${value} is beyond 2^53 - 1, where JavaScript numbers lose digits`, {
      code: "inexact_number",
    });
  }
  throw new ProtocolError(`${name} must be an integer, got ${JSON.stringify(value)}`, { code: "bad_reply" });
}

/** A record that was read. */
class TidelogRecord {
  #row;

  /**
   * @param {string} topic
   * @param {number} partition
   * @param {object} row the record as the gateway sends it
   */
  constructor(topic, partition, row) {
    this.topic = topic;
    this.partition = partition;
    this.offset = checkedInteger(row.offset, "offset");
    this.timestampMs = checkedInteger(row.timestamp_ms, "timestamp_ms");
    this.tag = row.tag ?? null;
    this.#row = row;
  }

  /** The key: text, bytes if it is not UTF-8, or null. */
  get key() {
    return decoded(this.#row.key, this.#row.key_encoding);
  }

  /** The value: text, bytes if it is not UTF-8, or null for a tombstone. */
  get value() {
    return decoded(this.#row.value, this.#row.value_encoding);
  }

  /** The headers as pairs of name and value; a value is text, bytes if it is not UTF-8, or null. */
  get headers() {
    return (this.#row.headers ?? []).map(([name, value, encoding]) => [name, decoded(value, encoding)]);
  }

  get isTombstone() {
    return this.#row.value === null;
  }

  /** Return the value's bytes; null for a tombstone. */
  bytes() {
    return asBytes(this.value);
  }

  /** Return the key's bytes; null if the record has no key. */
  keyBytes() {
    return asBytes(this.key);
  }

  /** Return the value's text, digit by digit as it was published; null for a tombstone. */
  text() {
    const value = this.value;
    if (value instanceof Uint8Array) {
      throw new InvalidRequestError(`${this.#place()}: the value is not UTF-8; read bytes()`, { code: "not_text" });
    }
    return value;
  }

  /** Parse the value as JSON; null for a tombstone. See `parseJson` for `numbers`. */
  json(options) {
    const text = this.text();
    if (text === null) return null;
    try {
      return parseJson(text, options);
    } catch (error) {
      if (!(error instanceof SyntaxError)) throw error;
      throw new InvalidRequestError(`${this.#place()}: the value is not JSON: ${error.message}`, {
        code: "not_json",
        cause: error,
      });
    }
  }

  toJSON() {
    return { topic: this.topic, partition: this.partition, ...this.#row };
  }

  /** Return the record in the form that `publish` accepts, to store the same content again. */
  toPublish() {
    const { key, value, headers, tag } = this;
    return { key, value, headers, ...(tag === null ? {} : { tag }), timestamp: this.timestampMs };
  }

  #place() {
    return `${this.topic} partition ${this.partition} offset ${this.offset}`;
  }
}

function decoded(text, encoding) {
  return encoding === "base64" && text !== null ? fromBase64(text) : text;
}

function asBytes(value) {
  return typeof value === "string" ? ENCODER.encode(value) : value;
}

/** Return a row's payload in bytes, counted as the gateway counts credit: key, value, tag, headers. */
function payloadBytes(row) {
  let total = sized(row.key, row.key_encoding) + sized(row.value, row.value_encoding) + sized(row.tag);
  for (const [name, value, encoding] of row.headers ?? []) total += sized(name) + sized(value, encoding);
  return total;
}

function sized(text, encoding) {
  if (text === null || text === undefined) return 0;
  return encoding === "base64" ? base64Length(text) : utf8Length(text);
}

/**
 * Convert a record that is passed to `publish` to the row of a publish request, and check its fields.
 *
 * @param {object} record see `PublishRecord` in `index.d.ts`
 */
function publishRow(record) {
  if (record === null || typeof record !== "object") throw invalidRecord(`a record is an object such as {value: "text"}, got ${record === null ? "null" : typeof record}`);
  const unknown = Object.keys(record).filter((name) => !FIELDS.includes(name));
  if (unknown.length) throw invalidRecord(`unknown field ${unknown[0]} of a record; the fields are ${FIELDS.join(", ")}`);
  const row = valueOf(record);
  if (record.key !== undefined && record.key !== null) {
    const [text, encoding] = encoded(record.key, "key");
    row.key = text;
    if (encoding) row.key_encoding = encoding;
  }
  if (record.headers !== undefined && record.headers !== null) row.headers = headersOf(record.headers);
  if (record.tag !== undefined && record.tag !== null) row.tag = record.tag;
  if (record.partition !== undefined && record.partition !== null) row.partition = record.partition;
  if (record.timestamp !== undefined && record.timestamp !== null) row.timestamp_ms = millisecondsOf(record.timestamp);
  return row;
}

function valueOf(record) {
  const given = ["value", "json", "valueText"].filter((name) => record[name] !== undefined);
  if (given.length !== 1) {
    throw invalidRecord(`a record must have exactly one of value, json and valueText, got ${given.join(" and ") || "none"}; for a tombstone set value to null`);
  }
  // JSON is sent as a string, too: the node stores the bytes of the text, and no component in between parses its numbers.
  if (given[0] === "json") return { value: stringifyJson(record.json) };
  if (given[0] === "valueText") return { value: checkedJson(record.valueText) };
  if (record.value === null) return { value: null };
  const [text, encoding] = encoded(record.value, "value");
  return encoding ? { value: text, value_encoding: encoding } : { value: text };
}

function checkedJson(text) {
  try {
    if (typeof text !== "string") throw new SyntaxError(`it is of type ${typeof text}`);
    JSON.parse(text);
  } catch (error) {
    throw invalidRecord(`valueText must be JSON text: ${error.message}`);
  }
  return text;
}

function encoded(value, name) {
  if (typeof value === "string") return [value];
  const bytes = bytesOf(value);
  if (bytes) return [toBase64(bytes), "base64"];
  throw invalidRecord(`${name} must be a string or bytes, got ${typeof value}; for JSON use the field json`);
}

function headersOf(headers) {
  const pairs = Array.isArray(headers) ? headers : Object.entries(headers);
  return pairs.map(([name, value]) => (value === null ? [name, null] : [name, ...encoded(value, `header ${name}`)]));
}

function millisecondsOf(timestamp) {
  const ms = timestamp instanceof Date ? timestamp.getTime() : timestamp;
  if (!Number.isSafeInteger(ms)) throw invalidRecord(`timestamp must be a Date or whole milliseconds, got ${timestamp}`);
  return ms;
}

function invalidRecord(message) {
  return new InvalidRequestError(message, { code: "invalid_record" });
}

/** The received batches that a program has not consumed yet, and the positions of a subscription; without I/O. */

/** Records of one partition that arrived together, in the order of their offsets; `nextOffset` is where reading continues. */
class Batch {
  constructor(topic, message) {
    this.topic = topic;
    this.partition = message.partition;
    this.nextOffset = message.next_offset;
    this.records = message.records.map((row) => new TidelogRecord(topic, message.partition, row));
  }
}

/** A batch in the queue, or positions to which a subscription has advanced without records to deliver. */
class Item {
  /**
   * @param {Batch | undefined} batch
   * @param {number[]} sizes sizes of the records in bytes; the credit of the first `released` records is free again
   * @param {string | undefined} token the resume token after the item
   */
  constructor(batch, sizes, token) {
    this.batch = batch;
    this.sizes = sizes;
    this.token = token;
    this.released = 0;
    this.isDropped = false;
    this.positions = batch ? new Map([[batch.partition, batch.nextOffset]]) : new Map();
    this.uncovered = new Map(token === undefined ? this.positions : []); // positions that the token does not include
  }
}

/**
 * The bounded queue of received records between a subscription's connection and the program that iterates over it.
 *
 * The gateway never sends more records than it has credit for, which bounds the queue: the records that are queued and
 * not released, and the credit at the gateway, are together at most the window (the option `credit`). After a lost
 * connection the subscription continues at the positions of `received`, because the queue is kept. `state` has the
 * positions that the program has processed, with which a new subscription continues.
 */
class Inbox {
  #queue = [];
  #current;
  #heldRecords = 0;
  #heldBytes = 0;
  #freedRecords = 0;
  #freedBytes = 0;

  /**
   * @param {string} topic
   * @param {{records: number, bytes: number}} window
   * @param {{resumeToken?: string, resume?: Record<string, number>}} start
   * @param {boolean} isMember whether the subscription is a member of a group, which then chooses the start positions
   */
  constructor(topic, window, start, isMember) {
    this.topic = topic;
    this.window = window;
    this.isMember = isMember;
    this.isOpened = false;
    this.received = new Map();
    this.processed = new Map();
    this.receivedState = { token: start.resumeToken, resume: new Map(Object.entries(start.resume ?? {})) };
    this.processedState = { token: start.resumeToken, resume: new Map(this.receivedState.resume) };
  }

  /** Process the answer to `sub`. A resumed subscription must continue exactly where the last connection ended. */
  opened({ offsets, resume_token: token }) {
    for (const [number, offset] of Object.entries(offsets)) {
      const partition = Number(number);
      const before = this.received.get(partition);
      checkedInteger(offset, "offset");
      if (before !== undefined && before !== offset) {
        throw unexpected(`partition ${partition} of topic ${this.topic} continues at offset ${offset}, but ${before} was requested`);
      }
      this.received.set(partition, offset);
    }
    if (token !== undefined) adopt(this.receivedState, token);
    if (!this.isOpened && token !== undefined) adopt(this.processedState, token);
    this.isOpened = true;
  }

  /** Return the start position as fields of a request `sub`; empty for a member of a group. */
  get start() {
    return this.isMember ? {} : membersOf(this.receivedState);
  }

  /** Return the positions up to which the program has processed records; empty for a member, whose group stores them. */
  get state() {
    if (this.isMember) return {};
    const { resume_token: resumeToken, resume } = membersOf(this.processedState);
    return { ...(resumeToken === undefined ? {} : { resumeToken }), ...(resume ? { resume } : {}) };
  }

  /** Return the credit of a new connection: the window without the records that are still in the queue. */
  initialCredit() {
    this.#freedRecords = this.#freedBytes = 0;
    return {
      records: Math.max(0, this.window.records - this.#heldRecords),
      bytes: Math.max(0, this.window.bytes - this.#heldBytes),
    };
  }

  /** Return the freed credit to grant now; undefined until a quarter of the window is free, or the queue is empty. */
  takeFreed() {
    const { records, bytes } = this.window;
    const isDue = this.#freedRecords * 4 >= records || this.#freedBytes * 4 >= bytes || this.#heldRecords === 0;
    if (!isDue || (!this.#freedRecords && !this.#freedBytes)) return undefined;
    const freed = { records: this.#freedRecords, bytes: this.#freedBytes };
    this.#freedRecords = this.#freedBytes = 0;
    return freed;
  }

  /** Add a batch message to the queue. */
  add(message) {
    const { partition, records, next_offset: nextOffset, resume_token: token } = message;
    checkedInteger(partition, "partition");
    checkedInteger(nextOffset, "next_offset");
    if (!Array.isArray(records)) throw unexpected(`a batch message of topic ${this.topic} has no list of records`);
    let expected = this.received.get(partition) ?? 0;
    const batch = new Batch(this.topic, message);
    for (const { offset } of batch.records) {
      if (offset < expected) throw unexpected(`partition ${partition} of topic ${this.topic}: offset ${offset} arrived, but ${expected} or a later one was expected`);
      expected = offset + 1;
    }
    if (nextOffset < expected) throw unexpected(`partition ${partition} of topic ${this.topic}: next_offset ${nextOffset} is below ${expected}`);
    this.received.set(partition, nextOffset);
    advance(this.receivedState, new Map([[partition, nextOffset]]), token);
    if (records.length === 0) this.#addProgress(partition, nextOffset, token);
    else this.#addBatch(batch, records.map(payloadBytes), token);
  }

  /** Process a gap: the gateway has skipped records, because the subscription lags and was opened with `onLag: "skip"`. */
  gap({ partition, from_offset: fromOffset, next_offset: nextOffset, resume_token: token }) {
    const expected = this.received.get(checkedInteger(partition, "partition")) ?? 0;
    checkedInteger(nextOffset, "next_offset");
    if (fromOffset !== expected || nextOffset <= fromOffset) {
      throw unexpected(`partition ${partition} of topic ${this.topic}: a gap from offset ${fromOffset} to ${nextOffset} arrived, but one from ${expected} was expected`);
    }
    this.received.set(partition, nextOffset);
    advance(this.receivedState, new Map([[partition, nextOffset]]), token);
    this.#addProgress(partition, nextOffset, token);
  }

  #addBatch(batch, sizes, token) {
    this.#heldRecords += sizes.length;
    this.#heldBytes += sizes.reduce((total, size) => total + size, 0);
    this.#queue.push(new Item(batch, sizes, token));
  }

  /** Queue a position without records. It costs no credit, so consecutive ones are merged, or the queue would be unbounded. */
  #addProgress(partition, nextOffset, token) {
    let last = this.#queue.at(-1);
    if (!last || last.batch) {
      last = new Item(undefined, [], undefined);
      this.#queue.push(last);
    }
    last.positions.set(partition, nextOffset);
    if (token === undefined) {
      last.uncovered.set(partition, nextOffset);
    } else {
      last.token = token;
      last.uncovered.clear();
    }
  }

  /** Whether the queue is empty. */
  get isEmpty() {
    return this.#queue.length === 0;
  }

  /** Return the next item with a batch; undefined if there is none. Positions without records before it count as processed. */
  take() {
    while (this.#queue.length) {
      this.#current = this.#queue.shift();
      if (this.#current.batch) return this.#current;
      this.finish(this.#current);
    }
    return undefined;
  }

  /** Count all records of a partition before `nextOffset` as processed. */
  processedTo(partition, nextOffset) {
    if (this.isMember && !this.received.has(partition)) return; // the partition was revoked from this member
    if ((this.processed.get(partition) ?? 0) >= nextOffset) return;
    this.processed.set(partition, nextOffset);
    this.processedState.resume.set(String(partition), nextOffset);
  }

  /** Free the credit of the first `count` records of an item. */
  release(item, count) {
    while (item.released < count) {
      const size = item.sizes[item.released];
      item.released += 1;
      this.#heldRecords -= 1;
      this.#heldBytes -= size;
      this.#freedRecords += 1;
      this.#freedBytes += size;
    }
  }

  /** Free the credit of all records of an item, and count them as processed unless their partition was revoked. */
  finish(item) {
    this.release(item, item.sizes.length);
    if (item.isDropped) return;
    for (const [partition, nextOffset] of item.positions) this.processedTo(partition, nextOffset);
    if (item.token !== undefined) adopt(this.processedState, item.token);
    for (const [partition, nextOffset] of item.uncovered) this.processedState.resume.set(String(partition), nextOffset);
  }

  /** Store the start offsets of the partitions that a member is assigned. */
  assigned(offsets) {
    for (const [number, offset] of Object.entries(offsets)) this.received.set(Number(number), checkedInteger(offset, "offset"));
  }

  /** Drop the queued records of partitions that were revoked from a member; by default of all its partitions. */
  drop(partitions = [...this.received.keys()]) {
    for (const item of [this.#current, ...this.#queue]) {
      if (!item?.batch || item.isDropped || !partitions.includes(item.batch.partition)) continue;
      item.isDropped = true;
      this.release(item, item.sizes.length);
    }
    this.#queue = this.#queue.filter((item) => !item.isDropped);
    for (const partition of partitions) this.received.delete(partition);
  }

  /** Forget the processed positions of partitions that a member no longer has. */
  forget(partitions) {
    for (const partition of partitions) {
      if (!this.received.has(partition)) this.processed.delete(partition);
    }
  }
}

function adopt(state, token) {
  state.token = token;
  state.resume.clear();
}

function advance(state, positions, token) {
  if (token !== undefined) adopt(state, token);
  else for (const [partition, offset] of positions) state.resume.set(String(partition), offset);
}

function membersOf({ token, resume }) {
  return {
    ...(token === undefined ? {} : { resume_token: token }),
    ...(resume.size ? { resume: Object.fromEntries(resume) } : {}),
  };
}

function unexpected(what) {
  return new ProtocolError(`WebSocket: ${what}`, { code: "bad_reply" });
}

/** One WebSocket to the gateway: opening with credentials, requests and their answers, and a probe of quiet connections. */

const SUBPROTOCOL = "tidelog.v1.json";

/** An id that this client gives no subscription: a request to end it is a probe, which the gateway answers at once. */
const PROBE_SID = 0;
const OPEN = 1;
const ERROR_WAIT_MS = 20;

/** A WebSocket to the gateway. `closed` is a promise that rejects, once, with the error that ended the connection. */
class GatewaySocket {
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
function isPassing(error) {
  return error instanceof TidelogError && error.retryable;
}

/** A topic as server-sent events over `fetch`: records or batches as an async iterator, with reconnect and resume. */

const STREAM_OPTIONS = [
  "from", "lastEventId", "offsets", "group", "key", "tag", "signal", "timeoutMs", "heartbeatMs", "reconnect", "onConnected",
  "onDisconnected",
];
const FIRST_STREAM_ATTEMPTS = 5;
/** Maximum length of a line in characters. A line contains the records of one event; a longer line ends the stream. */
const LINE_CHARS_MAX = 256 * 1024 * 1024;

/** See `RecordStream` in `index.d.ts`. */
class RecordStream {
  #http;
  #topic;
  #options;
  #reconnect;
  #backoff;
  #controller = new AbortController();
  #received;
  #state;
  #processed = new Map();
  #committed = new Map();
  #isOpened = false;
  #isIterated = false;

  /**
   * @param {import("./http.js").HttpTransport} http
   * @param {string} topic
   * @param {object} options see `StreamOptions` in `index.d.ts`
   */
  constructor(http, topic, options) {
    const unknown = Object.keys(options).find((name) => !STREAM_OPTIONS.includes(name));
    if (unknown) throw invalidOption(`unknown option ${unknown}; the options are ${STREAM_OPTIONS.join(", ")}`);
    const { attempts = Infinity, firstAttempts = FIRST_STREAM_ATTEMPTS, ...delays } = options.reconnect || {};
    this.topic = topic;
    this.#http = http;
    this.#topic = topic;
    this.#options = { heartbeatMs: 45_000, ...options };
    if (!(this.#options.heartbeatMs > 0)) throw invalidOption(`heartbeatMs must be > 0, got ${options.heartbeatMs}`);
    this.#reconnect = options.reconnect === false ? { attempts: 0, firstAttempts: 0 } : { attempts, firstAttempts };
    this.#backoff = new Backoff(delays);
    this.#received = { lastEventId: options.lastEventId, offsets: new Map(Object.entries(options.offsets ?? {})) };
    this.#state = { lastEventId: options.lastEventId, offsets: new Map(this.#received.offsets) };
    queryOf(options);
  }

  /** The positions that the program has processed; spread it into the options of a later `stream` to continue there. */
  get state() {
    const { lastEventId, offsets } = this.#state;
    return {
      ...(lastEventId === undefined ? {} : { lastEventId }),
      ...(offsets.size ? { offsets: Object.fromEntries(offsets) } : {}),
    };
  }

  /** Iterate over batches. A batch counts as processed when the next one is requested. */
  async *batches() {
    for await (const { batch, id } of this.#events()) {
      if (batch.records.length) yield batch;
      this.#finish(batch, id);
    }
  }

  /** Iterate over records. A record counts as processed when the next one is requested. */
  async *[Symbol.asyncIterator]() {
    for await (const { batch, id } of this.#events()) {
      for (const record of batch.records) {
        if (this.#controller.signal.aborted) return;
        yield record;
        this.processed(record);
      }
      this.#finish(batch, id);
    }
  }

  /** Count a record or a batch as processed, with all records before it in its partition. */
  processed(upTo) {
    const { partition, offset, nextOffset } = upTo;
    const next = nextOffset ?? offset + 1;
    if ((this.#processed.get(partition) ?? -1) >= next) return;
    this.#processed.set(partition, next);
    this.#state.offsets.set(String(partition), next);
  }

  /** Commit the processed positions for the group, and return the offsets that are committed now. */
  async commit(upTo, { note, ...options } = {}) {
    const { group } = this.#options;
    if (group === undefined) throw invalidOption("commit needs a group: call stream with the option group");
    if (upTo) this.processed(upTo);
    const rows = [...this.#processed].filter(([partition, next]) => (this.#committed.get(partition) ?? -1) < next);
    if (!rows.length) return [];
    const offsets = rows.map(([partition, next_offset]) => ({
      topic: this.#topic, partition, next_offset, ...(note === undefined ? {} : { note }),
    }));
    const request = { ...options, body: JSON.stringify({ offsets }), isRepeatable: true };
    const answer = await this.#http.request("PUT", ["v1", "groups", group, "offsets"], request);
    for (const [partition, next] of rows) this.#committed.set(partition, next);
    return answer.offsets;
  }

  /** End the stream; its iterator ends. */
  close() {
    this.#controller.abort();
  }

  /** Count all records of an event as processed; its id contains the positions of all partitions, so it replaces `offsets`. */
  #finish(batch, id) {
    this.processed(batch);
    if (id === undefined) return;
    this.#state.lastEventId = id;
    this.#state.offsets.clear();
  }

  /** Yield the batches of events, and connect again after a lost connection. */
  async *#events() {
    if (this.#isIterated) throw invalidOption("a stream can be iterated only once; call stream again, with {...stream.state}");
    this.#isIterated = true;
    const { signal } = this.#options;
    const onAbort = () => this.#controller.abort();
    if (signal?.aborted) throw abortReason(signal);
    signal?.addEventListener("abort", onAbort, { once: true });
    try {
      for (let failures = 0; ; ) {
        try {
          for await (const event of this.#connection()) {
            failures = 0;
            this.#backoff.reset();
            if (event.batch) yield event;
          }
          const ended = `the stream of topic ${this.topic} ended without the event "end", so the connection was lost`;
          throw new ConnectionError(ended, { code: "connection_lost", retryable: true });
        } catch (error) {
          if (signal?.aborted) throw abortReason(signal);
          if (this.#controller.signal.aborted) return;
          failures += 1;
          if (!isPassing(error) || failures > this.#reconnect[this.#isOpened ? "attempts" : "firstAttempts"]) throw error;
          const delayMs = this.#backoff.next(error.retryAfterMs);
          this.#options.onDisconnected?.(error, delayMs);
          await sleep(delayMs, this.#controller.signal).catch(() => {});
        }
      }
    } finally {
      signal?.removeEventListener("abort", onAbort);
      this.close();
    }
  }

  /** Yield the events of one connection; the next connection continues after the last event that was yielded. */
  async *#connection() {
    const { timeoutMs, heartbeatMs } = this.#options;
    const { lastEventId, offsets } = this.#received;
    const query = queryOf(this.#options);
    if (lastEventId !== undefined) query.last_event_id = lastEventId;
    if (offsets.size) query.offsets = [...offsets].map(([partition, offset]) => `${partition}:${offset}`).join(",");
    const path = ["v1", "topics", this.#topic, "stream"];
    const opened = await this.#http.open(path, { query, timeoutMs, quietMs: heartbeatMs, signal: this.#controller.signal });
    try {
      for await (const { name, data, id } of parsedEvents(opened.chunks())) {
        const event = { id };
        if (name === "end") throw errorOf(parsedData(data).error);
        else if (name === "begin") this.#begun(id);
        else if (name === "message") event.batch = batchOf(this.#topic, parsedData(data));
        if (id !== undefined) this.#received = { lastEventId: id, offsets: new Map() };
        yield event;
      }
    } finally {
      opened.close();
    }
  }

  #begun(id) {
    if (!this.#isOpened && id !== undefined) this.#state = { lastEventId: id, offsets: new Map() };
    this.#isOpened = true;
    this.#options.onConnected?.();
  }
}

function batchOf(topic, message) {
  if (!Array.isArray(message.records)) throw new ProtocolError(`an event of the stream of topic ${topic} has no list of records`, { code: "bad_reply" });
  checkedInteger(message.partition, "partition");
  checkedInteger(message.next_offset, "next_offset");
  return new Batch(topic, message);
}

function parsedData(text) {
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw new ProtocolError("the data of an event of the stream is not JSON", { code: "bad_reply", cause });
  }
}

function queryOf({ from, group, key, tag }) {
  const query = { group, tag };
  if (from === "earliest" || from === "latest") query.from = from;
  else if (from !== undefined) {
    const ms = from instanceof Date ? from.getTime() : from;
    if (!Number.isSafeInteger(ms) || ms < 0) {
      throw invalidOption(`from must be "earliest", "latest", a Date or milliseconds, got ${from}`);
    }
    query.timestamp = from instanceof Date ? from.toISOString() : ms;
  }
  const bytes = bytesOf(key);
  if (bytes) Object.assign(query, { key: toBase64(bytes), key_encoding: "base64" });
  else query.key = key;
  return query;
}

/**
 * Parse server-sent events; yield the type, the data, and the id if the event has one.
 *
 * @param {AsyncIterable<string>} chunks the text, split at arbitrary positions
 */
async function* parsedEvents(chunks) {
  let name = "message";
  let data = [];
  let id;
  for await (const line of linesOf(chunks)) {
    if (line === "") {
      if (data.length) yield { name, data: data.join("\n"), id };
      name = "message";
      data = [];
      id = undefined;
      continue;
    }
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "data") data.push(value);
    else if (field === "event") name = value;
    else if (field === "id") id = value;
  }
}

async function* linesOf(chunks) {
  let parts = [];
  let heldChars = 0;
  for await (const chunk of chunks) {
    const lines = chunk.split("\n");
    parts.push(lines[0]);
    heldChars += lines[0].length;
    if (heldChars > LINE_CHARS_MAX) throw new ProtocolError(`a line of the stream has more than ${LINE_CHARS_MAX} characters`, { code: "bad_reply" });
    if (lines.length === 1) continue;
    lines[0] = parts.join("");
    parts = [lines.pop()];
    heldChars = parts[0].length;
    for (const line of lines) yield line.endsWith("\r") ? line.slice(0, -1) : line;
  }
}

/** A subscription over WebSocket: batches or records as an async iterator, credit by consumption, reconnect and resume. */

/** Id of the subscription on its connection, which carries no other subscription. */
const SID = 1;
/** After a connection that lasted for this time, the back-off begins again with the shortest delay. */
const GOOD_MS = 5_000;
const FIRST_ATTEMPTS = 5;
const SUBSCRIBE_OPTIONS = [
  "from", "resumeToken", "resume", "group", "member", "key", "tag", "credit", "signal", "timeoutMs", "heartbeatMs",
  "reconnect", "onConnected", "onDisconnected", "onAssigned", "onRevoked", "onLag", "maxLagRecords", "maxMessageBytes", "onGap",
];
/** Default of `maxMessageBytes`, in bytes: the limit of the package `ws`. */
const MESSAGE_BYTES_MAX = 100 * 1024 * 1024;

/** See `Subscription` in `index.d.ts`. */
class Subscription {
  #transport;
  #options;
  #inbox;
  #request;
  #reconnect;
  #backoff;
  #controller = new AbortController();
  #onAbort = () => this.#fail(abortReason(this.#options.signal));
  #socket;
  #waiting = new Set();
  #error;
  #isIterated = false;
  #committed = new Map();

  /**
   * @param {object} transport base address, credentials and the class of WebSockets
   * @param {string} topic
   * @param {object} options see `SubscribeOptions` in `index.d.ts`
   */
  constructor(transport, topic, options) {
    const unknown = Object.keys(options).find((name) => !SUBSCRIBE_OPTIONS.includes(name));
    if (unknown) throw invalidOption(`unknown option ${unknown}; the options are ${SUBSCRIBE_OPTIONS.join(", ")}`);
    if (!transport.WebSocket) {
      throw invalidOption("this runtime has no WebSocket: pass a class as the option WebSocket of TidelogClient, or use node 22");
    }
    const { records = 2_000, bytes = 2 * 1024 * 1024 } = options.credit ?? {};
    if (!(Number.isSafeInteger(records) && records > 0 && Number.isSafeInteger(bytes) && bytes > 0)) {
      throw invalidOption(`credit must have whole numbers of records and bytes > 0, got ${records} and ${bytes}`);
    }
    if (options.member && (options.resume !== undefined || options.resumeToken !== undefined)) {
      throw invalidOption("a member begins at the committed offsets of its group: leave resume and resumeToken out");
    }
    this.topic = topic;
    this.#transport = transport;
    this.#options = { timeoutMs: transport.timeoutMs, heartbeatMs: 20_000, ...options };
    const { attempts = Infinity, firstAttempts = FIRST_ATTEMPTS, ...delays } = options.reconnect || {};
    this.#reconnect = options.reconnect === false ? { attempts: 0, firstAttempts: 0 } : { attempts, firstAttempts };
    this.#backoff = new Backoff(delays);
    this.#inbox = new Inbox(topic, { records, bytes }, options, options.member === true);
    this.#request = requestOf(topic, options);
    if (options.signal?.aborted) this.#onAbort();
    else options.signal?.addEventListener("abort", this.#onAbort, { once: true });
    if (!this.#error) this.#run().catch((error) => this.#fail(error));
  }

  /** Wait until the subscription is open for the first time: records that are published from then on are delivered. */
  async ready() {
    while (!this.#inbox.isOpened) {
      this.#throwIfOver();
      await this.#change();
    }
    return this;
  }

  /** The positions that the program has processed; spread it into the options of a later `subscribe` to continue there. */
  get state() {
    return this.#inbox.state;
  }

  /** Whether a connection is open now. */
  get isConnected() {
    return this.#socket !== undefined;
  }

  /** Iterate over batches. A batch counts as processed when the next one is requested. */
  async *batches() {
    this.#beginIteration();
    try {
      for (let item = await this.#next(); item; item = await this.#next()) {
        yield item.batch;
        this.#inbox.finish(item);
        this.#giveCredit();
      }
    } finally {
      this.close();
    }
  }

  /** Iterate over records. A record counts as processed when the next one is requested. */
  async *[Symbol.asyncIterator]() {
    this.#beginIteration();
    try {
      for (let item = await this.#next(); item; item = await this.#next()) {
        const { partition, records } = item.batch;
        for (const [index, record] of records.entries()) {
          this.#throwIfAborted();
          if (item.isDropped || this.#isClosed) break;
          yield record;
          if (!item.isDropped) this.#inbox.processedTo(partition, record.offset + 1);
          this.#inbox.release(item, index + 1);
          this.#giveCredit();
        }
        this.#inbox.finish(item);
        this.#giveCredit();
      }
    } finally {
      this.close();
    }
  }

  /** Count a record or a batch as processed, and so all records before it in its partition. */
  processed(recordOrBatch) {
    const { partition, offset, nextOffset } = recordOrBatch;
    this.#inbox.processedTo(partition, nextOffset ?? offset + 1);
  }

  /**
   * Commit the processed positions for the group, and return the offsets that are committed now, by partition.
   *
   * @param {object} [upTo] a record or a batch that counts as processed
   * @param {{note?: string, signal?: AbortSignal, timeoutMs?: number}} [options]
   */
  async commit(upTo, { note, signal, timeoutMs = this.#options.timeoutMs } = {}) {
    if (this.#options.group === undefined) throw invalidOption("commit needs a group: subscribe with the option group");
    if (upTo) this.processed(upTo);
    const offsets = {};
    for (const [partition, offset] of this.#inbox.processed) {
      if ((this.#committed.get(partition) ?? -1) < offset) offsets[partition] = offset;
    }
    if (Object.keys(offsets).length === 0) return {};
    const body = { commit: { sid: SID, offsets, ...(note === undefined ? {} : { note }) } };
    const held = await this.#requestWhenConnected(body, { signal, timeoutMs });
    for (const [partition, offset] of Object.entries(offsets)) this.#committed.set(Number(partition), offset);
    return held.offsets;
  }

  /** End the subscription; its iterator ends. */
  close() {
    if (this.#isClosed) return;
    this.#finish();
  }

  get #isClosed() {
    return this.#controller.signal.aborted;
  }

  #beginIteration() {
    if (this.#isIterated) throw invalidOption("a subscription can be iterated only once; subscribe again, with {...subscription.state}");
    this.#isIterated = true;
  }

  /** Return the next item; undefined once the subscription is closed. */
  async #next() {
    for (;;) {
      this.#throwIfAborted();
      if (this.#isClosed && !this.#error) return undefined;
      const item = this.#inbox.take();
      this.#giveCredit();
      if (item) return item;
      if (this.#error) throw this.#error;
      await this.#change();
    }
  }

  #throwIfAborted() {
    if (this.#options.signal?.aborted) throw abortReason(this.#options.signal);
  }

  #throwIfOver() {
    if (this.#error) throw this.#error;
    if (this.#isClosed) throw new ConnectionError("the subscription is closed", { code: "closed" });
  }

  #change(signal) {
    return new Promise((resolve, reject) => {
      const onAbort = () => {
        this.#waiting.delete(done);
        reject(abortReason(signal));
      };
      const done = () => {
        signal?.removeEventListener("abort", onAbort);
        resolve();
      };
      if (signal?.aborted) reject(abortReason(signal));
      else {
        this.#waiting.add(done);
        signal?.addEventListener("abort", onAbort, { once: true });
      }
    });
  }

  #changed() {
    const waiting = [...this.#waiting];
    this.#waiting.clear();
    for (const done of waiting) done();
  }

  #fail(error) {
    if (this.#isClosed) return;
    this.#error = error;
    this.#finish();
  }

  #finish() {
    this.#options.signal?.removeEventListener("abort", this.#onAbort);
    this.#controller.abort();
    this.#socket?.close();
    this.#changed();
  }

  #giveCredit() {
    const credit = this.#socket && this.#inbox.takeFreed();
    if (credit) this.#socket.send({ credit: { sid: SID, ...credit } });
  }

  async #run() {
    for (let failures = 0; !this.#isClosed; ) {
      const begunAt = Date.now();
      let hasOpened = false;
      try {
        await this.#connection(() => {
          hasOpened = true;
        });
      } catch (error) {
        if (this.#isClosed) return;
        if (hasOpened) failures = 0;
        if (hasOpened && Date.now() - begunAt >= GOOD_MS) this.#backoff.reset();
        failures += 1;
        if (!this.#mayReconnect(error, hasOpened, failures)) throw error;
        const delayMs = this.#backoff.next(error.retryAfterMs);
        this.#call("onDisconnected", error, delayMs);
        if (this.#inbox.isMember && hasOpened) this.#lose([...this.#inbox.received.keys()]);
        this.#changed();
        await sleep(delayMs, this.#controller.signal).catch(() => {});
      }
    }
  }

  #mayReconnect(error, hasOpened, failures) {
    const { attempts, firstAttempts } = this.#reconnect;
    if (error.code === "lagging") return false; // `onLag: "close"` asks for this end
    if (failures > (this.#inbox.isOpened ? attempts : firstAttempts)) return false;
    if (isPassing(error)) return true;
    return error instanceof AuthenticationError && hasOpened && this.#transport.credentials.areRenewed;
  }

  /** Connect, subscribe, and stay until the connection ends; always throws. */
  async #connection(onOpened) {
    const { timeoutMs, heartbeatMs } = this.#options;
    const signal = this.#controller.signal;
    const onMessage = (kind, body, socket) => this.#received(kind, body, socket);
    const socket = await GatewaySocket.open({ ...this.#transport, signal, timeoutMs, heartbeatMs, onMessage });
    try {
      const sub = { ...this.#request, ...this.#inbox.start, credit: this.#inbox.initialCredit() };
      // Batches may arrive in the same iteration of the event loop as the answer, so `onOk` processes the answer before them.
      const opened = socket.request({ sub }, { signal, timeoutMs, onOk: (ok) => this.#opened(ok, socket, onOpened) });
      await Promise.race([opened, socket.closed]);
      await socket.closed;
    } finally {
      this.#socket = undefined;
      socket.close();
    }
  }

  #opened(ok, socket, onOpened) {
    this.#inbox.opened(ok);
    this.#socket = socket;
    onOpened();
    this.#giveCredit();
    this.#call("onConnected");
    this.#changed();
  }

  #received(kind, body, socket) {
    if (body.sid !== SID) return;
    switch (kind) {
      case "batch":
        this.#inbox.add(body);
        this.#backoff.reset();
        this.#changed();
        break;
      case "gap":
        this.#inbox.gap(body);
        this.#changed();
        this.#call("onGap", { partition: body.partition, fromOffset: body.from_offset, nextOffset: body.next_offset });
        break;
      case "assigned":
        this.#inbox.assigned(body.offsets);
        this.#call("onAssigned", body.offsets);
        break;
      case "revoked":
        if (body.lost) this.#lose(body.partitions);
        else this.#revoke(body.partitions);
        this.#giveCredit();
        break;
      default:
        socket.fail(errorOf(body.error));
    }
  }

  #revoke(partitions) {
    this.#inbox.drop(partitions);
    const told = this.#call("onRevoked", partitions, { isLost: false });
    // Until the callback has ended, the program may commit the processed positions of these partitions.
    Promise.resolve(told).then(() => this.#forget(partitions), (error) => this.#fail(error));
  }

  #lose(partitions) {
    if (!partitions.length) return;
    this.#inbox.drop(partitions);
    this.#forget(partitions);
    this.#call("onRevoked", partitions, { isLost: true });
  }

  #forget(partitions) {
    this.#inbox.forget(partitions);
    for (const partition of partitions) this.#committed.delete(partition);
  }

  #call(name, ...what) {
    try {
      const result = this.#options[name]?.(...what);
      if (typeof result?.then === "function") result.then(undefined, (error) => this.#fail(error));
      return result;
    } catch (error) {
      this.#fail(error);
      return undefined;
    }
  }

  /**
   * Send a commit as soon as a connection is open. After a lost connection it is repeated, because a commit is idempotent; a
   * member's commit fails instead, because its partitions may belong to another member by then.
   */
  async #requestWhenConnected(body, { signal, timeoutMs }) {
    const deadline = new Deadline(timeoutMs, signal);
    let last;
    try {
      for (;;) {
        this.#throwIfOver();
        if (signal?.aborted) throw abortReason(signal);
        try {
          if (this.#socket) return await this.#socket.request(body, { signal: deadline.signal, timeoutMs });
          await this.#change(deadline.signal);
        } catch (error) {
          if (deadline.isOver) {
            const about = { code: "timed_out", retryable: true, definite: false, cause: last };
            throw new TimeoutError(`commit for group ${this.#options.group}, topic ${this.topic}: no answer within ${timeoutMs} ms`, about);
          }
          if (this.#inbox.isMember || !isPassing(error)) throw error;
          last = error;
          await sleep(this.#backoff.initialMs, deadline.signal).catch(() => {});
        }
      }
    } finally {
      deadline.done();
    }
  }
}

function requestOf(topic, options) {
  const { from = "latest", group, member, key, tag, onLag, maxLagRecords, maxMessageBytes = MESSAGE_BYTES_MAX } = options;
  const sub = { sid: SID, topic, from: startOf(from), max_message_bytes: maxMessageBytes };
  if (onLag !== undefined) sub.on_lag = onLag;
  if (maxLagRecords !== undefined) sub.max_lag_records = maxLagRecords;
  if (group !== undefined) sub.group = group;
  if (member) sub.member = true;
  if (tag !== undefined) sub.tag = tag;
  const bytes = bytesOf(key);
  if (bytes) Object.assign(sub, { key: toBase64(bytes), key_encoding: "base64" });
  else if (key !== undefined) sub.key = key;
  return sub;
}

function startOf(from) {
  if (from === "earliest" || from === "latest") return from;
  if (from instanceof Date && from.getTime() >= 0) return { timestamp: from.toISOString() };
  if (Number.isSafeInteger(from) && from >= 0) return { timestamp_ms: from };
  throw invalidOption(`from must be "earliest", "latest", a Date or milliseconds, got ${from}`);
}

/** The client: publishing, reading, topics and groups over HTTP, subscriptions over WebSocket. */

const CLIENT_OPTIONS = ["url", "apiKey", "token", "user", "password", "fetch", "WebSocket", "timeoutMs", "retries", "backoff"];

/** A client of one gateway. It keeps no connection open between calls; each subscription and each stream opens its own. */
class TidelogClient {
  #http;
  #transport;

  /** @param {object} [options] see `ClientOptions` in `index.d.ts` */
  constructor(options = {}) {
    const unknown = Object.keys(options).find((name) => !CLIENT_OPTIONS.includes(name));
    if (unknown) throw invalidOption(`unknown option ${unknown}; the options are ${CLIENT_OPTIONS.join(", ")}`);
    const { timeoutMs = 35_000, retries = 3, backoff } = options;
    const base = baseUrl(options.url);
    const credentials = new Credentials(options);
    this.url = base.href;
    this.#http = new HttpTransport(base, credentials, { fetch: options.fetch, timeoutMs, retries, backoff });
    this.#transport = { base, credentials, timeoutMs, WebSocket: options.WebSocket ?? globalThis.WebSocket };
    this.topics = new Topics(this.#http);
    this.groups = new Groups(this.#http);
  }

  /** Publish one record, and return its partition and offset; a record that the gateway dropped as a duplicate has no offset. */
  async publish(topic, record, options = {}) {
    const { results } = await this.#publish(topic, [record], options);
    if (results[0].error) throw results[0].error;
    return results[0];
  }

  /**
   * Publish records, and return `results`, one for each record in their order, and `duplicates`, how many of them were dropped
   * as duplicates; throws `PartialPublishError` if some failed.
   */
  async publishMany(topic, records, options = {}) {
    const rows = [...records];
    if (rows.length === 0) return { results: [], duplicates: 0 };
    const published = await this.#publish(topic, rows, options);
    const failed = published.results.filter((result) => result.error);
    if (failed.length) {
      const shown = `${failed.length} of ${rows.length} records were not stored, or their outcome is unknown; the first error is`;
      throw new PartialPublishError(`topic ${topic}: ${shown}: ${failed[0].error.message}`, published.results);
    }
    return published;
  }

  async #publish(topic, records, { signal, timeoutMs, retries, retryUnknown = false }) {
    const body = `{"records":[${records.map((record) => JSON.stringify(publishRow(record))).join(",")}]}`;
    const options = { body, signal, timeoutMs, retries, isRepeatable: retryUnknown };
    try {
      const answer = await this.#http.request("POST", ["v1", "topics", topic, "records"], options);
      if (!Array.isArray(answer.results) || answer.results.length !== records.length) {
        const missing = `the gateway did not answer with one result for each of ${records.length} records, which may have been stored`;
        throw new ProtocolError(`topic ${topic}: ${missing}`, { code: "bad_reply", definite: false });
      }
      return { results: answer.results.map(resultOf), duplicates: answer.duplicates ?? 0 };
    } catch (error) {
      throw unknownOutcome(error);
    }
  }

  /** Read records of a partition with one request; at the end of the log the gateway waits up to `waitMs` for a record. */
  async read(topic, partition, options = {}) {
    const { offset, timestamp, from, maxRecords, maxBytes, waitMs, key, tag, ...rest } = options;
    const query = {
      offset, from, tag, timestamp: timeOf(timestamp), max_records: maxRecords, max_bytes: maxBytes, wait_ms: waitMs, ...keyOf(key),
    };
    const path = ["v1", "topics", topic, "partitions", partition, "records"];
    // `JSON.parse` suffices: the only numbers of a record are its offset and its timestamp, and `TidelogRecord` refuses them if
    // they lost digits.
    const answer = await this.#http.request("GET", path, { ...rest, query, waitMs: waitMs ?? 0, parse: JSON.parse });
    return {
      records: answer.records.map((row) => new TidelogRecord(topic, partition, row)),
      nextOffset: checkedInteger(answer.next_offset, "next_offset"),
      logStartOffset: checkedInteger(answer.log_start_offset, "log_start_offset"),
      highWatermark: checkedInteger(answer.high_watermark, "high_watermark"),
    };
  }

  /** Read a partition's records from a position on, and wait for more at its end, until the signal is aborted. */
  async *follow(topic, partition, { waitMs = 20_000, ...options } = {}) {
    for (let start = options; ; ) {
      const { records, nextOffset } = await this.read(topic, partition, { ...start, waitMs });
      yield* records;
      const { from, timestamp, ...rest } = start;
      start = { ...rest, offset: nextOffset };
    }
  }

  /** Return the newest record with a key; undefined if no record has the key. */
  async newest(topic, key, { partition, ...options } = {}) {
    const { key: text, key_encoding } = keyOf(key);
    try {
      const path = ["v1", "topics", topic, "keys", text];
      const answer = await this.#http.request("GET", path, { ...options, query: { partition, key_encoding }, parse: JSON.parse });
      return new TidelogRecord(topic, answer.partition, answer.record);
    } catch (error) {
      if (error.code === "not_found") return undefined;
      throw error;
    }
  }

  /** Return the log bounds of a topic's partitions; with `timestamp` also the offset of the first record at or after it. */
  async offsets(topic, { timestamp, ...options } = {}) {
    const answer = await this.#http.request("GET", ["v1", "topics", topic, "offsets"], { ...options, query: { timestamp: timeOf(timestamp) } });
    return answer.offsets;
  }

  /** Subscribe to a topic over WebSocket; the returned subscription is an async iterable of records. */
  subscribe(topic, options = {}) {
    return new Subscription(this.#transport, topic, options);
  }

  /** Read a topic as server-sent events over `fetch`; the returned stream is an async iterable of records. */
  stream(topic, options = {}) {
    return new RecordStream(this.#http, topic, options);
  }
}

/** Lists, describes, creates, alters and deletes topics, with requests to `/v1/topics`; `/openapi.json` describes the answers. */
class Topics {
  #http;

  constructor(http) {
    this.#http = http;
  }

  /** Return one page of the topics in the order of their names: `topics`, and `next_cursor`, which is null on the last page. */
  page({ limit, cursor, ...options } = {}) {
    return this.#http.request("GET", ["v1", "topics"], { ...options, query: { limit, cursor } });
  }

  /** Iterate over all topics in the order of their names. */
  list(options = {}) {
    return pages((cursor) => this.page({ limit: 1000, ...options, cursor }), "topics");
  }

  /** Describe a topic with its partitions. */
  describe(topic, options) {
    return this.#http.request("GET", ["v1", "topics", topic], options);
  }

  /** Create a topic with settings such as `{partitions: 4}`, and return it. */
  create(topic, settings = {}, options = {}) {
    return this.#http.request("POST", ["v1", "topics"], { ...options, body: stringifyJson({ name: topic, ...settings }) });
  }

  /** Change settings of a topic, and return the topic; settings that are left out do not change. */
  alter(topic, settings, options = {}) {
    const body = stringifyJson(settings);
    return this.#http.request("PATCH", ["v1", "topics", topic], { ...options, body, isRepeatable: true });
  }

  /** Delete a topic and its records. */
  delete(topic, options) {
    return this.#http.request("DELETE", ["v1", "topics", topic], options);
  }

  /** Delete a partition's records before an offset or a time, and return the new log start offset. */
  deleteRecords(topic, partition, { beforeOffset, beforeTimestamp, ...options } = {}) {
    const query = { before_offset: beforeOffset, before_timestamp: timeOf(beforeTimestamp) };
    const path = ["v1", "topics", topic, "partitions", partition, "records"];
    return this.#http.request("DELETE", path, { ...options, query, isRepeatable: true });
  }
}

/** Lists, describes and deletes consumer groups and sets their offsets, with requests to `/v1/groups`; see `/openapi.json`. */
class Groups {
  #http;

  constructor(http) {
    this.#http = http;
  }

  /** Return one page of the groups in the order of their names: `groups`, and `next_cursor`, which is null on the last page. */
  page({ limit, cursor, ...options } = {}) {
    return this.#http.request("GET", ["v1", "groups"], { ...options, query: { limit, cursor } });
  }

  /** Iterate over all groups in the order of their names. */
  list(options = {}) {
    return pages((cursor) => this.page({ limit: 1000, ...options, cursor }), "groups");
  }

  /** Describe a group with its members. */
  describe(group, options) {
    return this.#http.request("GET", ["v1", "groups", group], options);
  }

  /** Delete a group and its committed offsets; the group must not have members. */
  delete(group, options) {
    return this.#http.request("DELETE", ["v1", "groups", group], options);
  }

  /** Return the committed offsets of a group. */
  async offsets(group, { topic, ...options } = {}) {
    return (await this.#http.request("GET", ["v1", "groups", group, "offsets"], { ...options, query: { topic } })).offsets;
  }

  /** Return the lag of a group in records: the sum `lag`, and the list `partitions` with the lag of each. */
  lag(group, { topic, ...options } = {}) {
    return this.#http.request("GET", ["v1", "groups", group, "lag"], { ...options, query: { topic } });
  }

  /** Commit offsets, such as `[{topic, partition, next_offset}]`, and return the offsets that are committed now. */
  async commit(group, offsets, options = {}) {
    const request = { ...options, body: stringifyJson({ offsets }), isRepeatable: true };
    return (await this.#http.request("PUT", ["v1", "groups", group, "offsets"], request)).offsets;
  }

  /** Set the offsets of a group without members, to `{to: "earliest"}`, `{offset}` or `{timestamp}`; with `dry_run` only compute them. */
  reset(group, { timestamp, ...target }, options = {}) {
    const body = stringifyJson({ ...target, timestamp: timeOf(timestamp) });
    return this.#http.request("POST", ["v1", "groups", group, "offsets:reset"], { ...options, body });
  }
}

async function* pages(page, name) {
  for (let cursor; ; ) {
    const answer = await page(cursor);
    yield* answer[name];
    if (answer.next_cursor === null) return;
    cursor = answer.next_cursor;
  }
}

function resultOf({ partition, offset, error }) {
  if (error) return { error: errorOf(error) };
  return { partition, ...(offset === undefined ? { isDuplicate: true } : { offset: checkedInteger(offset, "offset"), isDuplicate: false }) };
}

/** Replace the error of a lost answer by an `OutcomeUnknownError`, because the records may have been stored. */
function unknownOutcome(error) {
  if (!(error instanceof ConnectionError || error instanceof TimeoutError) || error.definite) return error;
  const message = `${error.message}; the records may have been stored, and publishing them again may store them twice`;
  return new OutcomeUnknownError(message, { code: "outcome_unknown", retryable: true, definite: false, cause: error });
}

function timeOf(timestamp) {
  if (timestamp === undefined) return undefined;
  if (!(timestamp instanceof Date)) return String(timestamp);
  if (Number.isNaN(timestamp.getTime())) throw invalidOption(`timestamp must be a valid Date, got ${timestamp}`);
  return timestamp.toISOString();
}

function keyOf(key) {
  if (key === undefined) return {};
  const bytes = bytesOf(key);
  return bytes ? { key: toBase64(bytes), key_encoding: "base64" } : { key };
}

export { AuthenticationError, Batch, ConflictError, ConnectionError, ForbiddenError, InexactNumberError, InvalidRequestError, JsonNumber, NotFoundError, OffsetOutOfRangeError, OutcomeUnknownError, OverloadedError, PartialPublishError, ProtocolError, RecordStream, Subscription, TidelogClient, TidelogError, TidelogRecord, TimeoutError, UnavailableError, parseJson, stringifyJson };
