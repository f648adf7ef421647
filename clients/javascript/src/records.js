/** Records as they are read, and as programs pass them to `publish`. */

import { base64Length, bytesOf, fromBase64, toBase64, utf8Length } from "./bytes.js";
import { InexactNumberError, InvalidRequestError, ProtocolError } from "./errors.js";
import { parseJson, stringifyJson } from "./numbers.js";

const ENCODER = new TextEncoder();
const FIELDS = ["key", "value", "json", "valueText", "headers", "tag", "partition", "timestamp"];

/** Return an offset or another integer of the gateway as a number; throw if a double does not hold it exactly. */
export function checkedInteger(value, name) {
  if (Number.isSafeInteger(value)) return value;
  if (typeof value === "number" && Number.isInteger(value)) {
    throw new InexactNumberError(`${name} ${value} is beyond 2^53 - 1, where JavaScript numbers lose digits`, {
      code: "inexact_number",
    });
  }
  throw new ProtocolError(`${name} must be an integer, got ${JSON.stringify(value)}`, { code: "bad_reply" });
}

/** A record that was read. */
export class TidelogRecord {
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
export function payloadBytes(row) {
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
export function publishRow(record) {
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
