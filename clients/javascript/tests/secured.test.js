import assert from "node:assert/strict";
import { test } from "node:test";

import { AuthenticationError, ForbiddenError, OverloadedError } from "../src/index.js";
import { collect, newClient, secured } from "./helpers/gateway.js";

test("an API key is shown over HTTP and over WebSocket", async () => {
  const { url, apiKey } = secured();
  const client = newClient({ url, apiKey });
  await client.publish("allowed", { value: "a" });
  assert.equal((await collect(client.subscribe("allowed", { from: "earliest" }), 1))[0].value, "a");
  await assert.rejects(client.publish("denied", { value: "a" }), ForbiddenError);
  await assert.rejects(client.subscribe("denied").ready(), ForbiddenError);
});

test("a token may be a function, which is asked for each connection", async () => {
  const { url, apiKey } = secured();
  let count = 0;
  const client = newClient({ url, token: async () => { count += 1; return apiKey; } });
  await client.topics.describe("allowed");
  await client.subscribe("allowed", { from: "earliest" }).ready().then((sub) => sub.close());
  assert.equal(count, 2);
});

test("wrong and missing credentials are refused, and a caller that tries too often has to wait", async () => {
  const { url, wrongKey } = secured();
  for (const credentials of [{ apiKey: wrongKey }, {}, { user: "nobody", password: "wrong" }]) {
    const client = newClient({ url, retries: 0, ...credentials });
    await assert.rejects(client.topics.page(), (error) => error instanceof AuthenticationError && error.status === 401 && !error.retryable);
    await assert.rejects(client.subscribe("allowed").ready(), (error) => error instanceof AuthenticationError && !error.message.includes(wrongKey));
  }
  const wrongKeys = Array.from({ length: 60 }, (_, n) => `${wrongKey.slice(0, -2)}${String(n).padStart(2, "a")}`);
  const tries = await Promise.allSettled(wrongKeys.map((apiKey) => newClient({ url, retries: 0, apiKey }).topics.page()));
  const last = tries.map(({ reason }) => reason).find((error) => error instanceof OverloadedError);
  assert.ok(last, tries.map(({ reason }) => reason.code).join());
  assert.deepEqual([last.code, last.status, last.retryable], ["too_many_tries", 429, true]);
  assert.ok(last.retryAfterMs >= 1_000);
});
