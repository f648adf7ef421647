/** The received batches that a program has not consumed yet, and the positions of a subscription; without I/O. */

import { ProtocolError } from "./errors.js";
import { checkedInteger, payloadBytes, TidelogRecord } from "./records.js";

/** Records of one partition that arrived together, in the order of their offsets; `nextOffset` is where reading continues. */
export class Batch {
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
export class Inbox {
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
