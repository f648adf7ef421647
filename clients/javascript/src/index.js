/** Tidelog's client for JavaScript: browsers, node 18 and later, and other runtimes with `fetch`. No dependencies. */

export { TidelogClient } from "./client.js";
export {
  AuthenticationError, ConflictError, ConnectionError, ForbiddenError, InexactNumberError, InvalidRequestError, NotFoundError,
  OffsetOutOfRangeError, OutcomeUnknownError, OverloadedError, PartialPublishError, ProtocolError, TidelogError, TimeoutError,
  UnavailableError,
} from "./errors.js";
export { JsonNumber, parseJson, stringifyJson } from "./numbers.js";
export { TidelogRecord } from "./records.js";
export { Batch } from "./delivery.js";
export { RecordStream } from "./stream.js";
export { Subscription } from "./subscription.js";
