import assert from "node:assert/strict";
import { test } from "node:test";

import { InvalidRequestError, NotFoundError } from "../src/index.js";
import { parsedEvents } from "../src/stream.js";
import { collect, newClient, newTopic, restartGateway, until, URL_OF_GATEWAY } from "./helpers/gateway.js";
import { Proxy } from "./helpers/proxy.js";

const QUICK = { initialMs: 20, maxMs: 200, firstAttempts: 50 };

async function publish(client, topic, from, to, more = {}) {
  const rows = Array.from({ length: to - from }, (_, index) => ({ value: String(from + index), partition: 0, ...more }));
  await client.publishMany(topic, rows, { retries: 20 });
}

const values = (records) => records.map(({ value }) => Number(value));

test("records arrive in order, and state continues exactly after the last one that was processed", async () => {
  const client = newClient();
  const topic = await newTopic(client, { partitions: 2 });
  await publish(client, topic, 0, 500);
  const stream = client.stream(topic, { from: "earliest" });
  const first = [];
  for await (const record of stream) {
    first.push(record);
    if (first.length === 203) {
      stream.processed(record);
      break;
    }
  }
  assert.deepEqual(values(first), [...Array(203).keys()]);
  assert.deepEqual(stream.state.offsets, { 0: 203 });
  const rest = await collect(client.stream(topic, { ...stream.state }), 297);
  assert.deepEqual(values(rest), [...Array(297).keys()].map((at) => at + 203));
  for await (const batch of client.stream(topic, { from: new Date(0) }).batches()) {
    assert.equal(batch.records[0].offset, 0);
    break;
  }
  await assert.rejects(async () => { for await (const record of stream) assert.fail(record); }, /iterated only once/);
});

test("a stream resumes over cut and silent connections and a gateway that is killed", { timeout: 110_000 }, async () => {
  const client = newClient();
  const topic = await newTopic(client);
  const proxy = await Proxy.before(URL_OF_GATEWAY);
  const errors = [];
  const stream = newClient({ url: proxy.url }).stream(topic, {
    from: "earliest", reconnect: QUICK, heartbeatMs: 2_000, onDisconnected: (error) => errors.push(error.code),
  });
  const found = [];
  const reading = (async () => {
    for await (const record of stream) {
      found.push(Number(record.value));
      if (found.length === 400) return;
    }
  })();
  await publish(client, topic, 0, 100);
  await until(() => found.length === 100);
  proxy.cut();
  await publish(client, topic, 100, 200);
  await until(() => found.length === 200);
  proxy.hang();
  await publish(client, topic, 200, 300);
  await until(() => found.length === 300);
  await restartGateway({ kill: true });
  await publish(client, topic, 300, 400);
  await reading;
  assert.deepEqual(found, [...Array(400).keys()]);
  assert.ok(errors.includes("connection_lost"), errors);
  await proxy.close?.();
});

test("keys and tags filter, and a group begins where it has committed", async () => {
  const client = newClient();
  const topic = await newTopic(client, { index_key: true });
  await publish(client, topic, 0, 10, { key: "a", tag: "x" });
  await publish(client, topic, 10, 20, { key: "b", tag: "y" });
  assert.deepEqual(values(await collect(client.stream(topic, { from: "earliest", key: "b" }), 10)), [...Array(10).keys()].map((at) => at + 10));
  assert.deepEqual(values(await collect(client.stream(topic, { from: "earliest", tag: "x" }), 3)), [0, 1, 2]);
  const group = `${topic}-readers`;
  const stream = client.stream(topic, { from: "earliest", group });
  for await (const record of stream) {
    if (record.offset === 7) {
      const [held] = await stream.commit(record, { note: "seven" });
      assert.deepEqual([held.next_offset, held.note], [8, "seven"]);
      assert.deepEqual(await stream.commit(), []);
      break;
    }
  }
  assert.deepEqual(values(await collect(client.stream(topic, { group }), 2)), [8, 9]);
  await assert.rejects(client.stream(topic).commit(), InvalidRequestError);
});

test("what cannot be is thrown, and a signal or close ends the loop", async () => {
  const client = newClient();
  await assert.rejects(collect(client.stream("no-such-topic"), 1), NotFoundError);
  assert.throws(() => client.stream("t", { member: true }), /unknown option member/);
  assert.throws(() => client.stream("t", { from: "yesterday" }), /from must be/);
  const topic = await newTopic(client);
  const stop = new AbortController();
  setTimeout(() => stop.abort(new Error("enough")), 300);
  await assert.rejects(collect(client.stream(topic, { signal: stop.signal }), 1), /enough/);
  const closed = client.stream(topic);
  setTimeout(() => closed.close(), 300);
  assert.deepEqual(await collect(closed, 1), []);
  const deleted = client.stream(topic, { onConnected: () => client.topics.delete(topic) });
  await assert.rejects(collect(deleted, 1), (error) => error.code === "unknown_topic");
});

test("events are parsed as the standard says, wherever they are cut", async () => {
  const text = 'retry: 1000\nid: A\nevent: begin\ndata: {"a":"ü"}\n\n:\n\ndata:x\ndata: y\r\n\r\nid: B\n\ndata\n\n';
  const expected = [
    { name: "begin", data: '{"a":"ü"}', id: "A" },
    { name: "message", data: "x\ny", id: undefined },
    { name: "message", data: "", id: undefined },
  ];
  for (let size = 1; size <= text.length; size += 1) {
    const chunks = async function* () {
      for (let at = 0; at < text.length; at += size) yield text.slice(at, at + size);
    };
    const found = [];
    for await (const event of parsedEvents(chunks())) found.push(event);
    assert.deepEqual(found, expected);
  }
});

test("a subscription that lags skips what it asked to skip, or ends", { timeout: 60_000 }, async () => {
  const client = newClient();
  const topic = await newTopic(client);
  const gaps = [];
  const skipping = client.subscribe(topic, { onLag: "skip", maxLagRecords: 50, credit: { records: 10 }, onGap: (gap) => gaps.push(gap) });
  const closing = client.subscribe(topic, { onLag: "close", maxLagRecords: 50, credit: { records: 10 } });
  await Promise.all([skipping.ready(), closing.ready()]);
  await publish(client, topic, 0, 10);
  const iterator = skipping[Symbol.asyncIterator]();
  const offsets = [(await iterator.next()).value.offset];
  await publish(client, topic, 10, 500);
  await assert.rejects(async () => {
    for await (const record of closing) {
      assert.ok(record.offset < 500);
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }, (error) => error.code === "lagging" && error.problem.high_watermark === 500);
  while (offsets.length < 10) offsets.push((await iterator.next()).value.offset);
  const next = iterator.next();
  await until(() => gaps.length);
  await publish(client, topic, 500, 501);
  offsets.push((await next).value.offset);
  assert.deepEqual(offsets, [...Array(10).keys(), 500]);
  assert.deepEqual(gaps, [{ partition: 0, fromOffset: 10, nextOffset: 500 }]);
  await iterator.return();
  await assert.rejects(client.subscribe(topic, { onLag: "skip" }).ready(), /max_lag_records/);
});
