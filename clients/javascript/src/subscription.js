/** A subscription over WebSocket: batches or records as an async iterator, credit by consumption, reconnect and resume. */

import { toBase64, bytesOf } from "./bytes.js";
import { Inbox } from "./delivery.js";
import { abortReason, AuthenticationError, ConnectionError, errorOf, invalidOption, TimeoutError } from "./errors.js";
import { GatewaySocket, isPassing } from "./socket.js";
import { Backoff, Deadline, sleep } from "./waiting.js";

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
export class Subscription {
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
