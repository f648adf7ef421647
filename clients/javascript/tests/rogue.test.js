import assert from "node:assert/strict";
import { test } from "node:test";

import { AuthenticationError, OverloadedError, ProtocolError, TidelogError, TimeoutError } from "../src/index.js";
import { collect, newClient } from "./helpers/gateway.js";
import { Rogue } from "./helpers/rogue.js";

const QUICK = { initialMs: 5, maxMs: 20 };

function batch(first, last, more = {}) {
  const records = [];
  for (let offset = first; offset <= last; offset += 1) records.push({ offset, timestamp_ms: 0, key: null, value: `${offset}`, value_encoding: "utf8" });
  return { batch: { sid: 1, partition: 0, records, next_offset: last + 1, ...more } };
}

/** Start a server that answers `sub` as a gateway does, and then calls `then`. */
function gatewayLike(then, { offset = 0 } = {}) {
  return Rogue.started({
    socket: (socket, number) => {
      socket.onMessage = ({ id, sub, unsub }) => {
        if (sub) {
          const at = Number(sub.resume_token?.slice(1) ?? offset);
          socket.send({ id, ok: { sid: 1, offsets: { 0: at }, resume_token: `t${at}` } });
          then(socket, number, sub);
        } else if (unsub) {
          socket.send({ id, error: { code: "unknown_subscription", status: 404, detail: "none", retryable: false } });
        }
      };
    },
  });
}

const GARBAGE = {
  "text that is not JSON": (socket) => socket.send("{nonsense"),
  "JSON that is no object": (socket) => socket.send("null"),
  "a binary message": (socket) => socket.frame(0x82, Buffer.from([1, 2, 3])),
  "records that come again": (socket) => { socket.send(batch(0, 1)); socket.send(batch(1, 2)); },
  "records in the wrong order": (socket) => { const message = batch(0, 1); message.batch.records.reverse(); socket.send(message); },
  "a batch that ends before its records": (socket) => socket.send(batch(0, 3, { next_offset: 2 })),
  "a batch without records": (socket) => socket.send({ batch: { sid: 1, partition: 0, next_offset: 1 } }),
  "a batch with text as its offset": (socket) => socket.send(batch(0, 0, { next_offset: "1" })),
  "records of null": (socket) => socket.send({ batch: { sid: 1, partition: 0, records: [null], next_offset: 1 } }),
};

for (const [name, send] of Object.entries(GARBAGE)) {
  test(`${name} ends the subscription with an error, and it does not connect again`, async () => {
    const rogue = await gatewayLike(send);
    await assert.rejects(collect(newClient({ url: rogue.url }).subscribe("t", { reconnect: QUICK })), (error) => error instanceof ProtocolError && error.code === "bad_reply");
    assert.equal(rogue.connections, 1);
    await rogue.close();
  });
}

test("an offset that lost its digits is refused", async () => {
  const rogue = await gatewayLike((socket) => socket.send(JSON.stringify(batch(0, 0)).replace('"offset":0', '"offset":9007199254740993')));
  await assert.rejects(collect(newClient({ url: rogue.url }).subscribe("t")), (error) => error.code === "inexact_number");
  await rogue.close();
});

test("a resumed subscription that goes on elsewhere is refused", async () => {
  const rogue = await gatewayLike((socket, number) => {
    if (number === 1) { socket.send(batch(0, 4, { resume_token: "t7" })); socket.close(1012); }
  });
  const seen = [];
  await assert.rejects(async () => {
    for await (const record of newClient({ url: rogue.url }).subscribe("t", { reconnect: QUICK })) seen.push(record.offset);
  }, /continues at offset 7, but 5 was requested/);
  assert.deepEqual(seen, [0, 1, 2, 3, 4]);
  await rogue.close();
});

test("messages of kinds that this client does not know are passed over", async () => {
  const rogue = await gatewayLike((socket) => { socket.send({ news: { sid: 1 } }); socket.send({ batch: { sid: 9 } }); socket.send(batch(0, 0)); });
  assert.equal((await collect(newClient({ url: rogue.url }).subscribe("t"), 1))[0].offset, 0);
  await rogue.close();
});

test("bytes that are no frames, and closes that ask to come again, are followed by a resumed connection", async () => {
  const sent = [
    (socket) => socket.write(Buffer.from([0xff, 0xff, 0xff, 0xff])), (socket) => socket.close(1012), (socket) => socket.close(1013),
    (socket) => socket.close(4408), (socket) => socket.close(4429), (socket) => socket.close(1011), (socket) => socket.cut(),
  ];
  const tokens = [];
  const rogue = await gatewayLike((socket, number, sub) => {
    const at = number - 1;
    tokens.push(sub.resume_token);
    socket.send(batch(at, at, { resume_token: `t${at + 1}` }));
    sent[at]?.(socket);
  });
  const errors = [];
  const sub = newClient({ url: rogue.url }).subscribe("t", { reconnect: QUICK, onDisconnected: (error) => errors.push(error) });
  assert.deepEqual((await collect(sub, 8)).map(({ offset }) => offset), [0, 1, 2, 3, 4, 5, 6, 7]);
  assert.deepEqual(tokens, [undefined, "t1", "t2", "t3", "t4", "t5", "t6", "t7"]);
  assert.ok(errors.every((error) => error instanceof TidelogError && error.retryable), errors.join());
  assert.ok(errors.some((error) => error instanceof OverloadedError));
  await rogue.close();
});

test("without tokens in batches the positions since the last one are sent", async () => {
  const subs = [];
  const rogue = await gatewayLike((socket, number, sub) => {
    subs.push(sub);
    if (number === 1) { socket.send(batch(0, 4)); socket.cut(); }
  });
  const sub = newClient({ url: rogue.url }).subscribe("t", { reconnect: QUICK });
  await assert.rejects(collect(sub), /continues at offset 0, but 5 was requested/); // this server only uses resume tokens
  assert.deepEqual([subs[1].resume_token, subs[1].resume], ["t0", { 0: 5 }]);
  await rogue.close();
});

test("a new connection has credit for what the queue has room for only", async () => {
  const credits = [];
  const rogue = await gatewayLike((socket, number, sub) => {
    credits.push(sub.credit);
    if (number === 1) { socket.send(batch(0, 9, { resume_token: "t10" })); setTimeout(() => socket.cut(), 50); }
  });
  const sub = newClient({ url: rogue.url }).subscribe("t", { reconnect: QUICK, credit: { records: 12, bytes: 100 } });
  await sub.ready();
  while (credits.length < 2) await new Promise((resolve) => setTimeout(resolve, 5));
  assert.deepEqual(credits, [{ records: 12, bytes: 100 }, { records: 2, bytes: 90 }]);
  assert.equal((await collect(sub, 10)).length, 10);
  await rogue.close();
});

test("empty batches move the position and take no room", async () => {
  const rogue = await gatewayLike((socket) => {
    for (let next = 1; next <= 2_000; next += 1) socket.send({ batch: { sid: 1, partition: 0, records: [], next_offset: next, resume_token: `t${next}` } });
    socket.send(batch(2_000, 2_000));
  });
  const sub = newClient({ url: rogue.url }).subscribe("t");
  const iterator = sub.batches();
  assert.equal((await iterator.next()).value.nextOffset, 2_001);
  assert.deepEqual(sub.state, { resumeToken: "t2000" });
  await iterator.return();
  await rogue.close();
});

test("a server that refuses the credentials, or speaks no subprotocol, is not asked again", async () => {
  const refusing = await Rogue.started({
    socket: (socket) => {
      socket.onMessage = ({ id }) => { socket.send({ id, error: { code: "unauthenticated", status: 401, detail: "who are you?", retryable: false } }); socket.close(4401); };
    },
  });
  await assert.rejects(newClient({ url: refusing.url, apiKey: "tlk_x" }).subscribe("t", { reconnect: QUICK }).ready(), (error) => error instanceof AuthenticationError && error.message === "who are you?");
  assert.equal(refusing.connections, 1);
  await refusing.close();
});

test("a server that never answers is an error in time", async () => {
  const silent = await Rogue.started({ socket: () => {}, answer: () => {} });
  const sub = newClient({ url: silent.url }).subscribe("t", { timeoutMs: 100, reconnect: false });
  await assert.rejects(sub.ready(), (error) => error instanceof TimeoutError && error.code === "timed_out");
  await silent.close();
});
