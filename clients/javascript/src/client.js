/** The client: publishing, reading, topics and groups over HTTP, subscriptions over WebSocket. */

import { bytesOf, toBase64 } from "./bytes.js";
import { ConnectionError, errorOf, invalidOption, OutcomeUnknownError, PartialPublishError, ProtocolError, TimeoutError } from "./errors.js";
import { baseUrl, Credentials, HttpTransport } from "./http.js";
import { stringifyJson } from "./numbers.js";
import { checkedInteger, publishRow, TidelogRecord } from "./records.js";
import { RecordStream } from "./stream.js";
import { Subscription } from "./subscription.js";

const CLIENT_OPTIONS = ["url", "apiKey", "token", "user", "password", "fetch", "WebSocket", "timeoutMs", "retries", "backoff"];

/** A client of one gateway. It keeps no connection open between calls; each subscription and each stream opens its own. */
export class TidelogClient {
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
