/**
 * Errors of the client: a class for each kind. `code` names the cause; `retryable` says whether a retry may succeed, and
 * `definite` whether the failed request certainly had no effect, so that a retry does no harm.
 *
 * The gateway answers with problem documents (RFC 9457); `errorOf` turns one into an error. Errors that the client itself
 * detects (no connection, no answer in time, an answer that is not the gateway's) have codes of their own.
 */

/** The base of all errors of this client. */
export class TidelogError extends Error {
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
export class AuthenticationError extends TidelogError {}

/** The principal of the client's credentials has no permission for the request (403). */
export class ForbiddenError extends TidelogError {}

/** The topic, partition, group or path does not exist (404). */
export class NotFoundError extends TidelogError {}

/** The request conflicts with the present state, such as a topic that exists already (409) or was recreated (409, 410). */
export class ConflictError extends TidelogError {}

/** The request is not valid (400, 405, 406, 413, 415, 421, 422), or the client refuses to send it. */
export class InvalidRequestError extends TidelogError {}

/** The offset was deleted or does not exist yet; `logStartOffset` and `highWatermark` are the log's bounds. */
export class OffsetOutOfRangeError extends TidelogError {
  constructor(message, about = {}) {
    super(message, about);
    this.partition = about.problem?.partition;
    this.logStartOffset = about.problem?.log_start_offset;
    this.highWatermark = about.problem?.high_watermark;
  }
}

/** A limit of rates, connections or memory is exhausted (429); retry after `retryAfterMs`. */
export class OverloadedError extends TidelogError {}

/** The gateway or a node cannot serve the request now (503), or the client was too slow (408); see `definite`. */
export class UnavailableError extends TidelogError {}

/** It is unknown whether the request took effect (504, or the connection broke before the answer). */
export class OutcomeUnknownError extends TidelogError {}

/** The gateway cannot be reached, or the connection broke. */
export class ConnectionError extends TidelogError {}

/** No answer came within `timeoutMs`. */
export class TimeoutError extends TidelogError {}

/** The answer does not follow the gateway's protocol: another server or a proxy answered, or the versions do not match. */
export class ProtocolError extends TidelogError {}

/** A number has more digits than a JavaScript number keeps. */
export class InexactNumberError extends TidelogError {}

/** Some records of a publish were not stored; `results` has one entry for each record. */
export class PartialPublishError extends TidelogError {
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
export function errorOf(problem, about = {}) {
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
export function invalidOption(message, cause) {
  return new InvalidRequestError(message, { code: "invalid_option", cause });
}

/** Return what to throw for a signal that was aborted: its reason, as `fetch` does. */
export function abortReason(signal) {
  return signal.reason ?? new DOMException("The operation was aborted", "AbortError");
}
