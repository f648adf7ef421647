/** A topic as server-sent events over `fetch`: records or batches as an async iterator, with reconnect and resume. */

import { bytesOf, toBase64 } from "./bytes.js";
import { Batch } from "./delivery.js";
import { abortReason, ConnectionError, errorOf, invalidOption, ProtocolError } from "./errors.js";
import { checkedInteger } from "./records.js";
import { isPassing } from "./socket.js";
import { Backoff, sleep } from "./waiting.js";

const STREAM_OPTIONS = [
  "from", "lastEventId", "offsets", "group", "key", "tag", "signal", "timeoutMs", "heartbeatMs", "reconnect", "onConnected",
  "onDisconnected",
];
const FIRST_STREAM_ATTEMPTS = 5;
/** Maximum length of a line in characters. A line contains the records of one event; a longer line ends the stream. */
const LINE_CHARS_MAX = 256 * 1024 * 1024;

/** See `RecordStream` in `index.d.ts`. */
export class RecordStream {
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
export async function* parsedEvents(chunks) {
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
