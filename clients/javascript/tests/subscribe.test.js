import assert from "node:assert/strict";
import { test } from "node:test";

import { ConflictError, ConnectionError, InvalidRequestError, NotFoundError, OffsetOutOfRangeError } from "../src/index.js";
import { collect, newClient, newTopic, restartGateway, until, URL_OF_GATEWAY } from "./helpers/gateway.js";
import { Proxy } from "./helpers/proxy.js";

const QUICK = { initialMs: 20, maxMs: 200, firstAttempts: 50 };

function numbers(from, to) {
  return Array.from({ length: to - from }, (_, index) => ({ value: String(from + index) }));
}

async function publishInOrder(client, topic, from, to, partition = 0) {
  for (let at = from; at < to; at += 500) {
    const rows = numbers(at, Math.min(to, at + 500)).map((row) => ({ ...row, partition }));
    await client.publishMany(topic, rows, { retries: 20 });
  }
}

test("records and batches arrive in order, and the iterator ends with break", async () => {
  const client = newClient();
  const topic = await newTopic(client, { partitions: 2 });
  await publishInOrder(client, topic, 0, 3_000);
  const records = await collect(client.subscribe(topic, { from: "earliest" }), 3_000);
  assert.deepEqual(records.map((record) => Number(record.value)), [...Array(3_000).keys()]);
  const batches = client.subscribe(topic, { from: "earliest", credit: { records: 100 } });
  let expected = 0;
  for await (const batch of batches.batches()) {
    assert.equal(batch.records[0].offset, expected);
    assert.ok(batch.records.length <= 100);
    expected = batch.nextOffset;
    if (expected === 3_000) break;
  }
  await assert.rejects(async () => { for await (const record of batches) assert.fail(record); }, /iterated only once/);
});

test("latest begins where ready was told, and a key or a tag filters", async () => {
  const client = newClient();
  const topic = await newTopic(client, { index_key: true });
  await client.publish(topic, { value: "before" });
  const live = await client.subscribe(topic).ready();
  const keyed = await client.subscribe(topic, { key: "a", from: "earliest" }).ready();
  const tagged = await client.subscribe(topic, { tag: "x", from: new Date(0) }).ready();
  await client.publishMany(topic, [{ key: "b", value: "1", tag: "x" }, { key: "a", value: "2" }]);
  assert.deepEqual((await collect(live, 2)).map(({ value }) => value), ["1", "2"]);
  assert.deepEqual((await collect(keyed, 1)).map(({ value }) => value), ["2"]);
  assert.deepEqual((await collect(tagged, 1)).map(({ value }) => value), ["1"]);
});

test("a slow program bounds what is sent: credit is given after consumption", async () => {
  const client = newClient();
  const topic = await newTopic(client);
  await publishInOrder(client, topic, 0, 1_000);
  let arrived = 0;
  class Counting extends WebSocket {
    constructor(...parameters) {
      super(...parameters);
      this.addEventListener("message", ({ data }) => {
        arrived += JSON.parse(data).batch?.records.length ?? 0;
      });
    }
  }
  const sub = newClient({ WebSocket: Counting }).subscribe(topic, { from: "earliest", credit: { records: 20 } });
  const iterator = sub[Symbol.asyncIterator]();
  let most = 0;
  for (let taken = 1; taken <= 1_000; taken += 1) {
    assert.equal((await iterator.next()).value.offset, taken - 1);
    if (taken % 250 === 1) {
      await new Promise((resolve) => setTimeout(resolve, 200));
      assert.ok(arrived >= taken + 10, `${arrived} came while ${taken} were taken: credit runs dry`);
    }
    most = Math.max(most, arrived - taken);
  }
  assert.ok(most <= 20, `${most} records lay waiting`);
  assert.equal(arrived, 1_000);
  await iterator.return();
});

test("bytes are credit too, and a record larger than all of it still comes", async () => {
  const client = newClient();
  const topic = await newTopic(client);
  await client.publishMany(topic, Array.from({ length: 20 }, (_, n) => ({ value: `${n}`.padEnd(3_000, "ü"), key: new Uint8Array([255, n]) })));
  const records = await collect(client.subscribe(topic, { from: "earliest", credit: { records: 1_000, bytes: 1_000 } }), 20);
  assert.deepEqual(records.map(({ offset }) => offset), [...Array(20).keys()]);
});

test("nothing is lost or repeated while connections are cut again and again", async () => {
  const client = newClient();
  const topic = await newTopic(client, { partitions: 3 });
  const proxy = await Proxy.before(URL_OF_GATEWAY);
  const dropped = [];
  const sub = newClient({ url: proxy.url }).subscribe(topic, {
    credit: { records: 64 }, reconnect: QUICK, onDisconnected: (error) => dropped.push(error),
  });
  await sub.ready();
  const total = 6_000;
  const publishing = Promise.all([0, 1, 2].map((partition) => publishInOrder(client, topic, 0, total / 3, partition)));
  const seen = [[], [], []];
  let count = 0;
  for await (const record of sub) {
    seen[record.partition].push(Number(record.value));
    count += 1;
    if (count % 700 === 0) proxy.cut();
    if (count === total) break;
  }
  await publishing;
  for (const each of seen) assert.deepEqual(each, [...Array(total / 3).keys()]);
  assert.ok(dropped.length >= 5, `${dropped.length} cuts`);
  assert.ok(dropped.every((error) => error instanceof ConnectionError), dropped.map(String).join());
  await proxy.close();
});

for (const kill of [false, true]) {
  test(`nothing is lost or repeated when the gateway is ${kill ? "killed" : "stopped"} and started again`, async () => {
    const client = newClient({ retries: 100, backoff: { initialMs: 50, maxMs: 500 } });
    const topic = await newTopic(client, { partitions: 2 });
    const codes = [];
    const sub = client.subscribe(topic, {
      from: "earliest", credit: { records: 50 }, reconnect: QUICK, onDisconnected: (error) => codes.push(error.code),
    });
    const seen = [[], []];
    const reading = (async () => {
      for await (const record of sub) {
        seen[record.partition].push(record.value);
        if (seen[0].length + seen[1].length === 3_000) break;
      }
    })();
    await publishInOrder(client, topic, 0, 1_000, 0);
    await until(() => seen[0].length >= 100);
    await restartGateway({ kill, downMs: 300 });
    await publishInOrder(client, topic, 1_000, 1_500, 0);
    await restartGateway({ kill });
    await publishInOrder(client, topic, 0, 1_500, 1);
    await reading;
    const expected = [...Array(1_500).keys()].map(String);
    assert.deepEqual(seen, [expected, expected]);
    assert.ok(codes.length >= 2, codes.join());
    if (!kill) assert.ok(codes.includes("shutting_down"), codes.join());
  });
}

test("a lost network is noticed by a probe, and the subscription goes on", async () => {
  const client = newClient();
  const topic = await newTopic(client);
  const proxy = await Proxy.before(URL_OF_GATEWAY);
  const dropped = [];
  const sub = newClient({ url: proxy.url }).subscribe(topic, {
    heartbeatMs: 150, reconnect: QUICK, onDisconnected: (error) => dropped.push(error.code),
  });
  await sub.ready();
  await new Promise((resolve) => setTimeout(resolve, 500));
  assert.deepEqual(dropped, [], "a connection that answers probes is kept");
  proxy.hang();
  await client.publish(topic, { value: "in the meantime" });
  assert.deepEqual((await collect(sub, 1)).map(({ value }) => value), ["in the meantime"]);
  assert.equal(dropped[0], "connection_lost");
  await proxy.close();
});

test("a later subscription goes on from the state of an earlier one, record by record", async () => {
  const client = newClient();
  const topic = await newTopic(client, { partitions: 2 });
  for (const partition of [0, 1]) await publishInOrder(client, topic, 0, 300, partition);
  let state = {};
  const seen = [];
  for (let round = 0; seen.length < 600 && round < 100; round += 1) {
    const sub = client.subscribe(topic, { from: "earliest", ...state });
    let count = 0;
    for await (const record of sub) {
      seen.push(`${record.partition}-${record.value}`);
      sub.processed(record);
      count += 1;
      if (count === 37 || seen.length === 600) break;
    }
    state = JSON.parse(JSON.stringify(sub.state));
  }
  assert.equal(new Set(seen).size, 600);
  assert.equal(seen.length, 600);
  const live = await client.subscribe(topic, { ...state }).ready();
  await client.publish(topic, { value: "next", partition: 1 });
  assert.equal((await collect(live, 1))[0].value, "next");
});

test("a record that was not processed when the loop threw is delivered again", async () => {
  const client = newClient();
  const topic = await newTopic(client);
  await publishInOrder(client, topic, 0, 10);
  const sub = client.subscribe(topic, { from: "earliest" });
  await assert.rejects(async () => {
    for await (const record of sub) if (record.value === "4") throw new Error("no");
  }, /no/);
  assert.equal((await collect(client.subscribe(topic, sub.state), 1))[0].value, "4");
});

test("a group's positions are committed, also over a lost connection", async () => {
  const client = newClient();
  const topic = await newTopic(client);
  const group = `g-${topic}`;
  await publishInOrder(client, topic, 0, 10);
  const proxy = await Proxy.before(URL_OF_GATEWAY);
  const sub = newClient({ url: proxy.url }).subscribe(topic, { group, from: "earliest", reconnect: QUICK });
  for await (const record of sub) {
    if (record.value === "3") {
      assert.deepEqual(await sub.commit(record, { note: "so far" }), { 0: 4 });
      assert.deepEqual(await sub.commit(), {}, "there is nothing new to commit");
    }
    if (record.value === "6") {
      proxy.cut();
      assert.deepEqual(await sub.commit(record), { 0: 7 });
      break;
    }
  }
  const [position] = await client.groups.offsets(group);
  assert.equal(position.next_offset, 7);
  assert.equal((await collect(client.subscribe(topic, { group }), 1))[0].value, "7");
  const alone = client.subscribe(topic);
  await assert.rejects(alone.commit(), /commit needs a group/);
  alone.close();
  await proxy.close();
});

test("a batch counts as processed when the next one is asked for", async () => {
  const client = newClient();
  const topic = await newTopic(client);
  await publishInOrder(client, topic, 0, 10);
  const sub = client.subscribe(topic, { group: `g-${topic}`, from: "earliest", credit: { records: 5 } });
  const committed = [];
  for await (const batch of sub.batches()) {
    committed.push(await sub.commit());
    if (batch.nextOffset === 10) break;
  }
  assert.deepEqual(committed, [{}, { 0: 5 }]);
});

test("members of a group share the partitions, and hand them over with what was committed", { timeout: 90_000 }, async () => {
  const client = newClient();
  const topic = await newTopic(client, { partitions: 2 });
  const group = `g-${topic}`;
  for (const partition of [0, 1]) await publishInOrder(client, topic, 0, 50, partition);
  const owned = new Map();
  const member = (name) => {
    owned.set(name, new Set());
    const sub = client.subscribe(topic, {
      group, member: true, from: "earliest", reconnect: QUICK,
      onAssigned: (offsets) => Object.keys(offsets).forEach((partition) => owned.get(name).add(Number(partition))),
      onRevoked: async (partitions, { isLost }) => {
        partitions.forEach((partition) => owned.get(name).delete(partition));
        if (!isLost) await sub.commit();
      },
    });
    return sub;
  };
  const seen = [];
  const read = async (sub) => {
    for await (const record of sub) {
      seen.push(`${record.partition}-${record.value}`);
      await sub.commit(record);
    }
  };
  const first = member("first");
  const firstReading = read(first);
  await until(() => owned.get("first").size === 2 && seen.length === 100);
  const second = member("second");
  const secondReading = read(second);
  await until(() => owned.get("first").size === 1 && owned.get("second").size === 1, 40_000);
  for (const partition of [0, 1]) await publishInOrder(client, topic, 50, 80, partition);
  await until(async () => seen.length >= 160 && (await client.groups.lag(group)).lag === 0);
  first.close();
  await firstReading;
  await until(() => owned.get("second").size === 2, 40_000);
  await client.publishMany(topic, [{ value: "last", partition: 0 }, { value: "last", partition: 1 }]);
  await until(async () => seen.length >= 162 && (await client.groups.lag(group)).lag === 0);
  second.close();
  await secondReading;
  assert.equal(seen.length, 162);
  assert.equal(new Set(seen).size, 162, "nothing was read twice");
});

test("a member whose connection is lost goes on behind what was committed", { timeout: 60_000 }, async () => {
  const client = newClient();
  const topic = await newTopic(client);
  await publishInOrder(client, topic, 0, 10);
  const proxy = await Proxy.before(URL_OF_GATEWAY);
  const lost = [];
  const sub = newClient({ url: proxy.url }).subscribe(topic, {
    group: `g-${topic}`, member: true, from: "earliest", reconnect: QUICK, onRevoked: (partitions, { isLost }) => lost.push([partitions, isLost]),
  });
  const seen = [];
  for await (const record of sub) {
    seen.push(Number(record.value));
    if (record.value === "4" && !lost.length) await sub.commit(record);
    if (record.value === "7" && !lost.length) {
      proxy.cut();
      await until(() => lost.length);
      await publishInOrder(client, topic, 10, 12);
    }
    if (record.value === "11") {
      assert.deepEqual(await sub.commit(record), { 0: 12 });
      break;
    }
  }
  assert.deepEqual(seen, [0, 1, 2, 3, 4, 5, 6, 7, 5, 6, 7, 8, 9, 10, 11]);
  assert.deepEqual(lost, [[[0], true]]);
  await proxy.close();
});

test("a subscription ends with the error of the log", async () => {
  const client = newClient();
  const topic = await newTopic(client);
  await assert.rejects(client.subscribe("no-such-topic").ready(), (error) => error instanceof NotFoundError && error.code === "unknown_topic");
  await assert.rejects(client.subscribe(topic, { resume: { 0: 99 } }).ready(), (error) => error instanceof OffsetOutOfRangeError);
  await assert.rejects(client.subscribe(topic, { resumeToken: "AQ" }).ready(), (error) => error instanceof InvalidRequestError && error.code === "invalid_resume_token");
  const sub = await client.subscribe(topic).ready();
  await client.topics.delete(topic);
  await assert.rejects(collect(sub), NotFoundError);
  await client.topics.create(topic);
  await assert.rejects(collect(client.subscribe(topic, sub.state)), (error) => error instanceof ConflictError && error.code === "topic_recreated");
  assert.throws(() => client.subscribe(topic, { credits: 1 }), /unknown option credits/);
  assert.throws(() => client.subscribe(topic, { credit: { records: 0 } }), /credit must have/);
  assert.throws(() => client.subscribe(topic, { from: "now" }), /from must be/);
  assert.throws(() => client.subscribe(topic, { group: "g", member: true, resume: { 0: 0 } }), /leave resume and resumeToken out/);
});

test("an aborted signal ends a subscription with its reason, and close ends it without one", async () => {
  const client = newClient();
  const topic = await newTopic(client);
  await client.publish(topic, { value: "a" });
  const stop = new AbortController();
  const reason = new Error("enough");
  const sub = client.subscribe(topic, { from: "earliest", signal: stop.signal });
  await assert.rejects(async () => {
    for await (const record of sub) setTimeout(() => stop.abort(reason), 10, record);
  }, reason);
  await assert.rejects(collect(client.subscribe(topic, { signal: stop.signal })), reason);
  const closed = client.subscribe(topic, { from: "earliest" });
  setTimeout(() => closed.close(), 200);
  assert.equal((await collect(closed)).length, 1);
  assert.equal(closed.isConnected, false);
});

test("a gateway that is gone is an error after the attempts that were asked for", async () => {
  const proxy = await Proxy.before(URL_OF_GATEWAY);
  const client = newClient({ url: proxy.url });
  const topic = await newTopic(client);
  const sub = await client.subscribe(topic, { reconnect: { ...QUICK, attempts: 3 } }).ready();
  const strict = await client.subscribe(topic, { reconnect: false }).ready();
  await proxy.close();
  for (const each of [sub, strict]) await assert.rejects(collect(each), (error) => error instanceof ConnectionError && error.code === "connection_lost");
  await assert.rejects(client.subscribe(topic, { reconnect: { ...QUICK, firstAttempts: 2 } }).ready(), ConnectionError);
});
