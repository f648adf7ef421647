/** The gateway that the test driver (`tests/javascript/test_client.py`) has started, and what can be done to it. */

import { randomUUID } from "node:crypto";

import { TidelogClient } from "../../src/index.js";

export const URL_OF_GATEWAY = required("TIDELOG_URL");

function required(name) {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set: run these tests with pytest tests/javascript`);
  return value;
}

/** Stop the gateway with SIGTERM or SIGKILL, wait, and start it again on its port. */
export async function restartGateway({ kill = false, downMs = 0 } = {}) {
  const answer = await fetch(`${required("TIDELOG_CONTROL")}/restart?kill=${kill ? 1 : 0}&down_ms=${downMs}`, { method: "POST" });
  if (answer.status !== 200) throw new Error(await answer.text());
}

/** Return the address of a gateway that requires authentication, and keys for it. */
export function secured() {
  return { url: required("TIDELOG_SECURED_URL"), apiKey: required("TIDELOG_API_KEY"), wrongKey: required("TIDELOG_WRONG_KEY") };
}

/** Return the address of a gateway that has a small memory budget for requests. */
export function tightUrl() {
  return required("TIDELOG_TIGHT_URL");
}

export function newClient(options = {}) {
  return new TidelogClient({ url: URL_OF_GATEWAY, timeoutMs: 20_000, ...options });
}

/** Create a topic with a unique name for a test, and return its name. */
export async function newTopic(client, settings = {}) {
  const name = `js-${randomUUID().slice(0, 8)}`;
  await client.topics.create(name, settings);
  return name;
}

export async function collect(iterator, count) {
  const found = [];
  for await (const item of iterator) {
    found.push(item);
    if (found.length === count) break;
  }
  return found;
}

/** Wait until something is true. */
export async function until(condition, timeoutMs = 20_000) {
  for (const end = Date.now() + timeoutMs; !(await condition()); ) {
    if (Date.now() > end) throw new Error(`not true within ${timeoutMs} ms: ${condition}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}
