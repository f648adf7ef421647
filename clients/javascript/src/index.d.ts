/** Types of Tidelog's client for JavaScript. */

export type Bytes = Uint8Array | ArrayBuffer | ArrayBufferView;
export type Text = string | Bytes;
/** A time: milliseconds since 1970, or a Date. Options that also accept a string take ISO 8601 with a time zone. */
export type Time = number | Date;

export interface BackoffOptions {
  /** The first delay in milliseconds; it doubles with each failure. Default: 250. */
  initialMs?: number;
  /** The longest delay in milliseconds. Default: 30,000. */
  maxMs?: number;
}

export interface CallOptions {
  /** Aborts the call; the returned promise rejects with the signal's reason. */
  signal?: AbortSignal;
  /** How long each attempt of the call may take, in milliseconds. */
  timeoutMs?: number;
  /** How many times the call is retried after an error that makes a retry safe. */
  retries?: number;
}

export interface ClientOptions {
  /** The gateway's address, which may have a path prefix. Default in a browser: the page's origin. */
  url?: string | URL;
  /** An API key. */
  apiKey?: string;
  /** A token (JWT) of an identity provider, or a function that returns one for each request and each connection. */
  token?: string | (() => string | Promise<string>);
  user?: string;
  password?: string;
  /** The function to use instead of the global `fetch`. */
  fetch?: typeof globalThis.fetch;
  /** The class to use instead of the global `WebSocket`, which node has from version 22 on; such as that of the package `ws`. */
  WebSocket?: new (url: string, protocols: string[]) => any;
  /** The default of `timeoutMs` of each call. Default: 35,000, more than the 30 s that a gateway waits for a node's answer. */
  timeoutMs?: number;
  /** The default of `retries` of each call. Default: 3. */
  retries?: number;
  backoff?: BackoffOptions;
}

/** A record to publish. It has exactly one of `value`, `json` and `valueText`. */
export type PublishRecord = {
  /** Records with equal keys go to one partition. */
  key?: Text | null;
  headers?: Array<[name: string, value: Text | null]> | Record<string, Text | null>;
  tag?: string | null;
  partition?: number | null;
  timestamp?: Time | null;
} & (
  | { /** Text, bytes, or null for a tombstone. */ value: Text | null; json?: undefined; valueText?: undefined }
  | { /** Written with `stringifyJson`. */ json: unknown; value?: undefined; valueText?: undefined }
  | { /** JSON text, stored as it is. */ valueText: string; value?: undefined; json?: undefined }
);

export interface PublishOptions extends CallOptions {
  /** Also retry when it is unknown whether the records were stored; they may then be stored twice. */
  retryUnknown?: boolean;
}

export interface PublishResult {
  partition: number;
  /** Absent for a record that was dropped as a duplicate. */
  offset?: number;
  isDuplicate: boolean;
}

export interface JsonOptions {
  /**
   * How numbers with more digits than a double keeps are parsed. "exact", the default, throws `InexactNumberError`;
   * "bigint" makes integers beyond 2^53 - 1 BigInt and throws for other such numbers; "text" makes each a `JsonNumber`;
   * "lossy" rounds them, as `JSON.parse` does.
   */
  numbers?: "exact" | "bigint" | "text" | "lossy";
}

/** A record that was read. */
export class TidelogRecord {
  private constructor();
  readonly topic: string;
  readonly partition: number;
  readonly offset: number;
  readonly timestampMs: number;
  readonly tag: string | null;
  /** Text, bytes if it is not UTF-8, or null. */
  readonly key: string | Uint8Array | null;
  /** Text, bytes if it is not UTF-8, or null for a tombstone. */
  readonly value: string | Uint8Array | null;
  readonly headers: Array<[name: string, value: string | Uint8Array | null]>;
  readonly isTombstone: boolean;
  bytes(): Uint8Array | null;
  keyBytes(): Uint8Array | null;
  /** The value's text, digit by digit as it was published. */
  text(): string | null;
  /** The value as JSON; null for a tombstone. */
  json(options?: JsonOptions): any;
  toJSON(): object;
  /** The record in the form that `publish` accepts. */
  toPublish(): PublishRecord;
}

export interface ReadOptions extends CallOptions {
  /** Where to begin: one of `offset`, `timestamp` and `from`. Default: the earliest record. */
  offset?: number;
  timestamp?: Time | string;
  from?: "earliest" | "latest";
  maxRecords?: number;
  maxBytes?: number;
  /** How long to wait for a record at the end of the log, in milliseconds. */
  waitMs?: number;
  key?: Text;
  tag?: string;
}

export interface ReadResult {
  records: TidelogRecord[];
  nextOffset: number;
  logStartOffset: number;
  highWatermark: number;
}

/** Records of one partition that arrived together, in the order of their offsets; `nextOffset` is where reading continues. */
export class Batch {
  private constructor();
  readonly topic: string;
  readonly partition: number;
  readonly records: TidelogRecord[];
  readonly nextOffset: number;
}

/** The positions that a program has processed: plain data to store, and to spread into the options of a later `subscribe`. */
export interface SubscriptionState {
  resumeToken?: string;
  resume?: Record<string, number>;
}

export interface SubscribeOptions extends SubscriptionState {
  /** Where to begin in partitions without a stored position or a group's committed offset. Default: "latest". */
  from?: "earliest" | "latest" | Time;
  group?: string;
  /** Whether to join the group, whose members share the topic's partitions. Default: false. */
  member?: boolean;
  key?: Text;
  tag?: string;
  /** Maximum of unprocessed records in this program, in number and bytes. Default: 2,000 records and 2 MiB. */
  credit?: { records?: number; bytes?: number };
  signal?: AbortSignal;
  timeoutMs?: number;
  /**
   * If no data arrives for this number of milliseconds, the client probes the connection, and replaces it if the probe has no
   * answer within the same time. Default: 20,000.
   */
  heartbeatMs?: number;
  /** false ends the subscription with the first lost connection. */
  reconnect?:
    | false
    | (BackoffOptions & {
        /** Number of consecutive failures that are retried before the subscription ends. Default: Infinity. */
        attempts?: number;
        /** Number of failures that are retried before the subscription was open for the first time. Default: 5. */
        firstAttempts?: number;
      });
  /** What the gateway does if the program lags. Default: "pause", with which the program gets every record. */
  onLag?: "pause" | "skip" | "close";
  /** With "skip" and "close": the maximum lag in a partition, in offsets. */
  maxLagRecords?: number;
  /** With "skip": called when records of a partition were skipped, from `fromOffset` to before `nextOffset`. */
  onGap?: (gap: { partition: number; fromOffset: number; nextOffset: number }) => void;
  /** Maximum size of a message in bytes. Default: 100 MiB. A record that does not fit ends the subscription. */
  maxMessageBytes?: number;
  onConnected?: () => void;
  onDisconnected?: (error: TidelogError, delayMs: number) => void;
  /** Called when partitions are assigned to a member, with the next offset of each. */
  onAssigned?: (offsets: Record<string, number>) => void | Promise<void>;
  /**
   * Called when partitions are revoked from a member. Unless they are lost, the member may commit until the returned promise
   * is settled, for at most 3 s.
   */
  onRevoked?: (partitions: number[], how: { isLost: boolean }) => void | Promise<void>;
}

/** A subscription over WebSocket. It is iterated once, over records or over batches. */
export class Subscription implements AsyncIterable<TidelogRecord> {
  private constructor();
  readonly topic: string;
  readonly state: SubscriptionState;
  readonly isConnected: boolean;
  /** Wait until the subscription is open for the first time. */
  ready(): Promise<this>;
  /** A record counts as processed when the next one is requested. */
  [Symbol.asyncIterator](): AsyncGenerator<TidelogRecord, void, void>;
  /** A batch counts as processed when the next one is requested. */
  batches(): AsyncGenerator<Batch, void, void>;
  /** Count a record or a batch as processed, with all records before it in its partition. */
  processed(upTo: TidelogRecord | Batch): void;
  /** Commit the processed positions for the group, and return the committed offsets by partition. */
  commit(upTo?: TidelogRecord | Batch, options?: { note?: string; signal?: AbortSignal; timeoutMs?: number }): Promise<Record<string, number>>;
  close(): void;
}

/** The positions that a program has processed: plain data to store, and to spread into the options of a later `stream`. */
export interface StreamState {
  lastEventId?: string;
  /** Partition -> next offset; takes precedence over `lastEventId`. */
  offsets?: Record<string, number>;
}

export interface StreamOptions extends StreamState {
  /** Where to begin in partitions without a stored position or a group's committed offset. Default: "latest". */
  from?: "earliest" | "latest" | Time;
  /** The group at whose committed offsets the stream begins, and for which `commit` commits. */
  group?: string;
  key?: Text;
  tag?: string;
  signal?: AbortSignal;
  /** How long the stream may take to begin, in milliseconds. */
  timeoutMs?: number;
  /**
   * If no data arrives for this number of milliseconds, the client connects again; must be longer than the gateway's
   * `stream_heartbeat_s`. Default: 45,000.
   */
  heartbeatMs?: number;
  /** See `SubscribeOptions`. */
  reconnect?: SubscribeOptions["reconnect"];
  onConnected?: () => void;
  onDisconnected?: (error: TidelogError, delayMs: number) => void;
}

/** A topic as server-sent events. It is iterated once, over records or over batches. */
export class RecordStream implements AsyncIterable<TidelogRecord> {
  private constructor();
  readonly topic: string;
  readonly state: StreamState;
  /** A record counts as processed when the next one is requested. */
  [Symbol.asyncIterator](): AsyncGenerator<TidelogRecord, void, void>;
  /** A batch counts as processed when the next one is requested. */
  batches(): AsyncGenerator<Batch, void, void>;
  /** Count a record or a batch as processed, with all records before it in its partition. */
  processed(upTo: TidelogRecord | Batch): void;
  /** Commit the processed positions for the group, and return the committed offsets as `groups.commit` does. */
  commit(upTo?: TidelogRecord | Batch, options?: CallOptions & { note?: string }): Promise<Document[]>;
  close(): void;
}

/** A document of the HTTP API, with the members that `/openapi.json` describes; integers beyond 2^53 - 1 are BigInt. */
export type Document = Record<string, any>;
/** Settings of a topic, with the names that `/openapi.json` lists. */
export type TopicSettings = Record<string, string | number | bigint | boolean>;

export interface Topics {
  page(options?: CallOptions & { limit?: number; cursor?: string }): Promise<{ topics: Document[]; next_cursor: string | null }>;
  list(options?: CallOptions): AsyncGenerator<Document, void, void>;
  describe(topic: string, options?: CallOptions): Promise<Document>;
  create(topic: string, settings?: TopicSettings, options?: CallOptions): Promise<Document>;
  alter(topic: string, settings: TopicSettings, options?: CallOptions): Promise<Document>;
  delete(topic: string, options?: CallOptions): Promise<void>;
  deleteRecords(
    topic: string,
    partition: number,
    before: CallOptions & ({ beforeOffset: number } | { beforeTimestamp: Time | string }),
  ): Promise<{ partition: number; log_start_offset: number }>;
}

export interface Groups {
  page(options?: CallOptions & { limit?: number; cursor?: string }): Promise<{ groups: Document[]; next_cursor: string | null }>;
  list(options?: CallOptions): AsyncGenerator<Document, void, void>;
  describe(group: string, options?: CallOptions): Promise<Document>;
  delete(group: string, options?: CallOptions): Promise<void>;
  offsets(group: string, options?: CallOptions & { topic?: string }): Promise<Document[]>;
  lag(group: string, options?: CallOptions & { topic?: string }): Promise<{ group: string; lag: number; partitions: Document[] }>;
  commit(
    group: string,
    offsets: Array<{ topic: string; partition: number; next_offset: number; note?: string }>,
    options?: CallOptions,
  ): Promise<Document[]>;
  reset(
    group: string,
    target: { topic?: string; partitions?: number[]; dry_run?: boolean } & (
      | { to: "earliest" | "latest" }
      | { offset: number }
      | { timestamp: Time | string }
    ),
    options?: CallOptions,
  ): Promise<{ group: string; lag: number; partitions: Document[] }>;
}

/** A client of one gateway. */
export class TidelogClient {
  constructor(options?: ClientOptions);
  readonly url: string;
  readonly topics: Topics;
  readonly groups: Groups;
  publish(topic: string, record: PublishRecord, options?: PublishOptions): Promise<PublishResult>;
  publishMany(topic: string, records: Iterable<PublishRecord>, options?: PublishOptions): Promise<{ results: PublishResult[]; duplicates: number }>;
  read(topic: string, partition: number, options?: ReadOptions): Promise<ReadResult>;
  follow(topic: string, partition: number, options?: ReadOptions): AsyncGenerator<TidelogRecord, never, void>;
  newest(topic: string, key: Text, options?: CallOptions & { partition?: number }): Promise<TidelogRecord | undefined>;
  offsets(topic: string, options?: CallOptions & { timestamp?: Time | string }): Promise<Document[]>;
  subscribe(topic: string, options?: SubscribeOptions): Subscription;
  stream(topic: string, options?: StreamOptions): RecordStream;
}

/** A JSON number as its text. */
export class JsonNumber {
  constructor(text: string);
  readonly text: string;
  toString(): string;
  valueOf(): number;
  toJSON(): never;
}

export function parseJson(text: string, options?: JsonOptions): any;
export function stringifyJson(value: unknown): string;

export interface ErrorFields {
  code?: string;
  status?: number;
  retryable?: boolean;
  definite?: boolean;
  requestId?: string;
  retryAfterMs?: number;
  problem?: Document;
  cause?: unknown;
}

/** The base of all errors of this client. */
export class TidelogError extends Error {
  constructor(message: string, about?: ErrorFields);
  /** The gateway's name of the error, or one of the client's own; docs/errors.md and docs/javascript.md list them. */
  readonly code: string;
  /** The HTTP status; undefined for errors that the client detects itself. */
  readonly status: number | undefined;
  /** Whether the same request may succeed later. */
  readonly retryable: boolean;
  /** Whether it is known that the request had no effect. */
  readonly definite: boolean;
  /** The id of the request in the gateway's log. */
  readonly requestId: string | undefined;
  readonly retryAfterMs: number | undefined;
  /** The problem document of the gateway's answer. */
  readonly problem: Document | undefined;
}

export class AuthenticationError extends TidelogError {}
export class ForbiddenError extends TidelogError {}
export class NotFoundError extends TidelogError {}
export class ConflictError extends TidelogError {}
export class InvalidRequestError extends TidelogError {}
export class OffsetOutOfRangeError extends TidelogError {
  readonly partition: number | undefined;
  readonly logStartOffset: number;
  readonly highWatermark: number;
}
export class OverloadedError extends TidelogError {}
export class UnavailableError extends TidelogError {}
export class OutcomeUnknownError extends TidelogError {}
export class ConnectionError extends TidelogError {}
export class TimeoutError extends TidelogError {}
export class ProtocolError extends TidelogError {}
export class InexactNumberError extends TidelogError {}
export class PartialPublishError extends TidelogError {
  readonly results: Array<(PublishResult & { error?: undefined }) | { error: TidelogError }>;
}
