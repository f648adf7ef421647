import assert from "node:assert/strict";
import { test } from "node:test";

import {
  ConflictError, InvalidRequestError, NotFoundError, OffsetOutOfRangeError, OutcomeUnknownError, OverloadedError, PartialPublishError, ProtocolError,
  TidelogClient, TimeoutError, UnavailableError,
} from "../src/index.js";
import { collect, newClient, newTopic, tightUrl, URL_OF_GATEWAY } from "./helpers/gateway.js";
import { Rogue } from "./helpers/rogue.js";

const PROBLEM = { "Content-Type": "application/problem+json", "X-Request-Id": "r-1" };

function problem(response, status, code, { retryable = false, headers = {} } = {}) {
  response.writeHead(status, { ...PROBLEM, ...headers });
  response.end(JSON.stringify({ type: "x", title: "x", status, code, detail: `because of ${code}`, retryable, request_id: "r-1" }));
}

test("records come back as they were published, in every encoding", async () => {
  const client = newClient();
  const topic = await newTopic(client, { partitions: 2 });
  const big = '{"id":12345678901234567890,"price":0.10}';
  const one = await client.publish(topic, { key: "k", value: "text ü😀", headers: [["h", "v"], ["b", new Uint8Array([255, 0])], ["n", null]], tag: "t", partition: 1, timestamp: 1_000 });
  assert.deepEqual(one, { partition: 1, offset: 0, isDuplicate: false });
  const { results, duplicates } = await client.publishMany(topic, [
    { value: new Uint8Array([0, 255]), partition: 1 }, { value: null, key: "k", partition: 1 }, { valueText: big, partition: 1 }, { json: { n: 2n ** 70n }, partition: 1 },
  ]);
  assert.deepEqual([results.map((result) => result.offset), duplicates], [[1, 2, 3, 4], 0]);
  const { records, nextOffset, logStartOffset, highWatermark } = await client.read(topic, 1, { from: "earliest" });
  assert.deepEqual([nextOffset, logStartOffset, highWatermark], [5, 0, 5]);
  const [text, binary, tombstone, exact, bigint] = records;
  assert.deepEqual([text.key, text.value, text.tag, text.timestampMs, text.offset, text.partition], ["k", "text ü😀", "t", 1_000, 0, 1]);
  assert.deepEqual(text.headers, [["h", "v"], ["b", new Uint8Array([255, 0])], ["n", null]]);
  assert.deepEqual(binary.value, new Uint8Array([0, 255]));
  assert.equal(tombstone.isTombstone, true);
  assert.equal(exact.text(), big);
  assert.equal(bigint.json({ numbers: "bigint" }).n, 2n ** 70n);
  await client.publish(topic, { ...text.toPublish(), partition: 0 });
  const [copy] = (await client.read(topic, 0, {})).records;
  assert.deepEqual({ ...copy.toJSON(), partition: 1 }, text.toJSON());
});

test("reading begins at an offset or a time, is bounded, and waits at the end of the log", async () => {
  const client = newClient();
  const topic = await newTopic(client);
  await client.publishMany(topic, [0, 1, 2, 3].map((n) => ({ value: `${n}`, timestamp: 1_000 * (n + 1) })));
  const values = async (options) => (await client.read(topic, 0, options)).records.map((record) => record.value);
  assert.deepEqual(await values({ offset: 2 }), ["2", "3"]);
  assert.deepEqual(await values({ timestamp: new Date(2_500) }), ["2", "3"]);
  assert.deepEqual(await values({ offset: 1, maxRecords: 2 }), ["1", "2"]);
  const waiting = values({ offset: 4, waitMs: 10_000 });
  await client.publish(topic, { value: "late" });
  assert.deepEqual(await waiting, ["late"]);
  const stop = new AbortController();
  const seen = [];
  await assert.rejects(async () => {
    for await (const record of client.follow(topic, 0, { offset: 3, signal: stop.signal })) {
      seen.push(record.value);
      if (seen.length === 2) stop.abort(new Error("enough"));
    }
  }, /enough/);
  assert.deepEqual(seen, ["3", "late"]);
  await client.topics.alter(topic, { index_key: true });
  await client.publish(topic, { key: "a/b ü", value: "newest" });
  assert.equal((await client.newest(topic, "a/b ü")).value, "newest");
  assert.equal(await client.newest(topic, new Uint8Array([1])), undefined);
});

test("a Date is exact, also where the same number of milliseconds is refused as seconds", async () => {
  const client = newClient();
  const topic = await newTopic(client);
  const seconds = 1_700_000_000;
  await client.publishMany(topic, [seconds - 1, seconds].map((n) => ({ value: `${n}`, timestamp: n })));
  const from = new Date(seconds);
  assert.deepEqual((await client.read(topic, 0, { timestamp: from })).records.map((record) => record.value), [`${seconds}`]);
  assert.equal((await collect(client.subscribe(topic, { from }), 1))[0].value, `${seconds}`);
  assert.equal((await collect(client.stream(topic, { from }), 1))[0].value, `${seconds}`);
  await assert.rejects(client.read(topic, 0, { timestamp: seconds }), /in seconds/);
  await assert.rejects(client.read(topic, 0, { timestamp: new Date(NaN) }), /valid Date/);
  await assert.rejects(collect(client.subscribe(topic, { from: seconds }), 1), /in seconds/);
  await assert.rejects(collect(client.stream(topic, { from: seconds }), 1), /in seconds/);
});

test("topics are created, listed, described, altered and deleted", async () => {
  const client = newClient();
  const topic = await newTopic(client, { partitions: 2, retention_bytes: 2n ** 62n });
  assert.equal((await client.topics.describe(topic)).retention_bytes, 2n ** 62n);
  assert.equal((await client.topics.alter(topic, { partitions: 3 })).partition_states.length, 3);
  const page = await client.topics.page({ limit: 1 });
  assert.equal(page.topics.length, 1);
  assert.ok((await collect(client.topics.list({ limit: 1 }))).some(({ name }) => name === topic));
  await assert.rejects(client.topics.create(topic), (error) => error instanceof ConflictError && error.code === "topic_exists" && !error.retryable);
  await client.publishMany(topic, [{ value: "a", partition: 0 }, { value: "b", partition: 0 }]);
  assert.deepEqual(await client.topics.deleteRecords(topic, 0, { beforeOffset: 1 }), { partition: 0, log_start_offset: 1 });
  const [first] = await client.offsets(topic);
  assert.deepEqual([first.log_start_offset, first.high_watermark], [1, 2]);
  await assert.rejects(client.read(topic, 0, { offset: 0 }), (error) => {
    assert.ok(error instanceof OffsetOutOfRangeError);
    assert.deepEqual([error.status, error.logStartOffset, error.highWatermark], [410, 1, 2]);
    return true;
  });
  await client.topics.delete(topic);
  await assert.rejects(client.topics.describe(topic), (error) => {
    assert.ok(error instanceof NotFoundError);
    assert.equal(error.code, "unknown_topic");
    assert.ok(error.requestId);
    return true;
  });
});

test("groups are committed, measured, moved and deleted", async () => {
  const client = newClient();
  const topic = await newTopic(client);
  const group = `g-${topic}`;
  await client.publishMany(topic, Array.from({ length: 5 }, (_, n) => ({ value: `${n}`, timestamp: 1_000 + n })));
  const [held] = await client.groups.commit(group, [{ topic, partition: 0, next_offset: 2, note: "page 1" }]);
  assert.deepEqual([held.next_offset, held.note], [2, "page 1"]);
  assert.equal((await client.groups.offsets(group, { topic }))[0].next_offset, 2);
  assert.equal((await client.groups.lag(group)).lag, 3);
  const dry = await client.groups.reset(group, { timestamp: new Date(1_001), topic, dry_run: true });
  assert.equal(dry.partitions[0].next_offset, 1);
  assert.equal((await client.groups.lag(group)).lag, 3);
  await client.groups.reset(group, { to: "latest", topic });
  assert.equal((await client.groups.lag(group)).lag, 0);
  assert.ok((await collect(client.groups.list())).some(({ name }) => name === group));
  assert.equal((await client.groups.describe(group)).members, 0);
  await client.groups.delete(group);
  await assert.rejects(client.groups.describe(group), NotFoundError);
});

test("what the gateway refuses is an error that says where", async () => {
  const client = newClient();
  const topic = await newTopic(client);
  await assert.rejects(client.publish(topic, { value: "a", partition: 9 }), NotFoundError);
  await assert.rejects(client.publishMany(topic, [{ value: "a" }, { value: "b", tag: "x".repeat(10_000) }]), (error) => {
    assert.ok(error instanceof InvalidRequestError);
    assert.match(error.problem.errors[0].pointer, /^\/records\/1\/tag/);
    return true;
  });
  await assert.rejects(client.publishMany(topic, [{ value: "a", partition: 0 }, { value: "b", partition: 9 }]), (error) => {
    assert.ok(error instanceof PartialPublishError);
    assert.deepEqual([error.results[0].offset, error.results[1].error.code, error.definite], [0, "unknown_partition", true]);
    return true;
  });
  assert.deepEqual(await client.publishMany(topic, []), { results: [], duplicates: 0 });
  for (const name of ["", "..", "."]) await assert.rejects(async () => client.topics.describe(name), /must not be/);
  assert.throws(() => new TidelogClient({ url: URL_OF_GATEWAY, apikey: "x" }), /unknown option apikey/);
  assert.throws(() => new TidelogClient({ url: "ftp://x" }), /must begin with http/);
  assert.throws(() => new TidelogClient({ url: "http://a:b@x" }), /must have no credentials/);
  assert.throws(() => new TidelogClient({ url: URL_OF_GATEWAY, apiKey: "a", user: "b", password: "c" }), /give one of/);
});

test("429 of a gateway without room is retried, and is an error in the end", async () => {
  const client = newClient({ url: tightUrl(), retries: 1, backoff: { initialMs: 10, maxMs: 1_000 } });
  await assert.rejects(client.publish("t", { value: "x".repeat(4_000) }), (error) => {
    assert.ok(error instanceof OverloadedError);
    assert.deepEqual([error.status, error.retryable, error.definite, error.retryAfterMs], [429, true, true, 1_000]);
    return true;
  });
});

test("a publish is sent again where nothing was written, and not where that is unknown", async () => {
  let plan = [];
  const rogue = await Rogue.started({ answer: (_, response) => plan.shift()(response) });
  const client = newClient({ url: rogue.url, backoff: { initialMs: 5, maxMs: 1_000 } });
  const stored = (response) => response.end('{"results":[{"partition":0,"offset":7}]}');
  const refused = (response) => problem(response, 503, "quorum_lost", { retryable: true, headers: { "Retry-After": "1" } });
  const unknown = (response) => problem(response, 504, "timed_out", { retryable: true });
  const cut = (response) => response.socket.destroy();
  plan = [refused, refused, stored];
  const begun = Date.now();
  assert.equal((await client.publish("t", { value: "a" })).offset, 7);
  assert.ok(Date.now() - begun >= 1_990, "Retry-After is not cut short");
  assert.equal(rogue.requests.length, 3);
  assert.ok(rogue.requests.every(({ headers }) => !("idempotency-key" in headers)));
  for (const [lost, kind] of [[unknown, "timed_out"], [cut, "outcome_unknown"]]) {
    plan = [lost, stored];
    rogue.requests.length = 0;
    await assert.rejects(client.publish("t", { value: "a" }), (error) => {
      assert.ok(error instanceof OutcomeUnknownError);
      assert.deepEqual([error.code, error.definite], [kind, false]);
      return true;
    });
    assert.equal(rogue.requests.length, 1);
    plan = [lost, stored];
    assert.equal((await client.publish("t", { value: "a" }, { retryUnknown: true })).offset, 7);
  }
  plan = [(response) => problem(response, 429, "quota_exceeded")];
  await assert.rejects(client.publish("t", { value: "a" }), (error) => error instanceof OverloadedError && !error.retryable);
  plan = [(response) => problem(response, 503, "quorum_lost", { retryable: true, headers: { "Retry-After": "2" } })];
  await assert.rejects(client.publish("t", { value: "a" }), (error) => error.retryAfterMs === 2_000, "it is longer than the longest delay");
  plan = [refused];
  await assert.rejects(client.publish("t", { value: "a" }, { retries: 0 }), (error) => error instanceof UnavailableError && error.requestId === "r-1");
  await rogue.close();
});

test("an answer that is not a gateway's is an error", async () => {
  let say;
  const rogue = await Rogue.started({ answer: (_, response) => say(response) });
  const client = newClient({ url: rogue.url, retries: 0 });
  for (const body of ["<html>", "", "null", '{"results":[]}', '{"results":3}']) {
    say = (response) => response.end(body);
    await assert.rejects(client.publish("t", { value: "a" }), (error) => error instanceof ProtocolError && error.code === "bad_reply" && !error.definite, body);
  }
  say = (response) => response.writeHead(404).end("<html>");
  await assert.rejects(client.topics.describe("t"), ProtocolError);
  say = (response) => response.writeHead(502, { "Retry-After": "3" }).end("bad gateway");
  await assert.rejects(client.topics.describe("t"), (error) => error instanceof OutcomeUnknownError && error.retryAfterMs === 3_000);
  say = (response) => response.end('{"topics":[{"name":"a","retention_bytes":1e400}],"next_cursor":null}');
  await assert.rejects(client.topics.page(), /has more digits/);
  say = (response) => response.end('{"records":[{"offset":9007199254740993,"timestamp_ms":0,"key":null,"value":"x"}],"next_offset":1}');
  await assert.rejects(client.read("t", 0), /offset .* is beyond 2\^53/);
  await rogue.close();
});

test("reads are tried again when the connection breaks", async () => {
  let count = 0;
  const rogue = await Rogue.started({
    answer: (_, response) => {
      count += 1;
      if (count < 3) response.socket.destroy();
      else response.end('{"topics":[],"next_cursor":null}');
    },
  });
  const client = newClient({ url: rogue.url, backoff: { initialMs: 5, maxMs: 20 } });
  assert.deepEqual((await client.topics.page()).topics, []);
  assert.equal(count, 3);
  await rogue.close();
  await assert.rejects(client.topics.page(), (error) => error.code === "connection_failed" && error.retryable);
  await assert.rejects(client.publish("t", { value: "a" }), (error) => error.code === "connection_failed" && error.definite, "nothing was sent");
});

test("a request ends with its timeout, and with the caller's signal and reason", async () => {
  const rogue = await Rogue.started({ answer: () => {} });
  const client = newClient({ url: rogue.url, retries: 0 });
  await assert.rejects(client.topics.page({ timeoutMs: 50 }), (error) => error instanceof TimeoutError && error.code === "timed_out");
  await assert.rejects(client.publish("t", { value: "a" }, { timeoutMs: 50 }), (error) => error instanceof OutcomeUnknownError && !error.definite);
  const stop = new AbortController();
  const reason = new Error("changed my mind");
  setTimeout(() => stop.abort(reason), 20);
  await assert.rejects(client.read("t", 0, { waitMs: 10_000, signal: stop.signal }), reason);
  await assert.rejects(client.read("t", 0, { signal: stop.signal }), reason);
  await assert.rejects(client.topics.page({ timeoutMs: -1 }), /timeoutMs must be > 0/);
  await rogue.close();
});
