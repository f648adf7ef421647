/** A program that uses each part of the types; `tsc --noEmit` checks it (tests/javascript/test_types.py). */

import { InexactNumberError, PartialPublishError, TidelogClient, TidelogError, type SubscriptionState } from "tidelog";

const client = new TidelogClient({ url: "http://127.0.0.1:8080", token: async () => "token", timeoutMs: 1_000 });
const secret = new TidelogClient({ user: "ada", password: "secret" });

export async function main(signal: AbortSignal): Promise<SubscriptionState> {
  await client.topics.create("visits", { partitions: 2, retention_bytes: 2n ** 62n });
  const { partition, offset } = await client.publish("visits", { key: "ada", json: { id: 1n } });
  await client.publishMany("visits", [{ value: null }, { valueText: "1.10" }, { value: new Uint8Array([1]), headers: { a: "b" } }], { retryUnknown: true });
  // @ts-expect-error a record has one value
  await client.publish("visits", { value: "a", json: 1 });
  // @ts-expect-error there is no such option
  await client.publish("visits", { value: "a" }, { idempotencyKey: "a" });
  const { records, nextOffset } = await client.read("visits", partition, { offset, waitMs: 100, signal });
  const exact: string | null = records[0].text();
  for await (const record of client.follow("visits", 0, { offset: nextOffset })) console.log(record.json({ numbers: "bigint" }), exact);
  await client.groups.reset("readers", { to: "earliest", topic: "visits", dry_run: true });
  const subscription = secret.subscribe("visits", {
    group: "readers", member: true, reconnect: { attempts: 3, maxMs: 1_000 },
    onRevoked: async (partitions, { isLost }) => console.log(partitions.length, isLost),
  });
  try {
    for await (const batch of subscription.batches()) await subscription.commit(batch, { note: "n" });
  } catch (error) {
    if (error instanceof PartialPublishError) console.log(error.results[0].error?.code);
    else if (error instanceof InexactNumberError || error instanceof TidelogError) console.log(error.retryAfterMs, error.requestId);
  }
  const live = client.subscribe("visits", { onLag: "skip", maxLagRecords: 100, onGap: ({ fromOffset }) => console.log(fromOffset) });
  live.close();
  const stream = client.stream("visits", { from: "earliest", group: "readers", reconnect: false });
  for await (const record of stream) await stream.commit(record, { note: "n" });
  client.stream("visits", { ...stream.state, key: "ada" }).close();
  return subscription.state;
}
