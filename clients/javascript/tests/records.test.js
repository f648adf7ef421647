import assert from "node:assert/strict";
import { test } from "node:test";

import { fromBase64, toBase64, utf8Length } from "../src/bytes.js";
import { InexactNumberError, ProtocolError, TidelogRecord } from "../src/index.js";
import { payloadBytes, publishRow } from "../src/records.js";

const ROW = { offset: 3, timestamp_ms: 5, key: null, value: "x", value_encoding: "utf8" };

test("base64 and lengths are those of node's Buffer", () => {
  for (const size of [0, 1, 2, 3, 255, 70_000]) {
    const bytes = Uint8Array.from({ length: size }, (_, at) => (at * 7) % 256);
    assert.equal(toBase64(bytes), Buffer.from(bytes).toString("base64"));
    assert.deepEqual(fromBase64(toBase64(bytes)), bytes);
    assert.equal(payloadBytes({ ...ROW, value: toBase64(bytes), value_encoding: "base64" }), size);
  }
  for (const text of ["", "a", "ü", "€", "😀", "a😀\ud800", "\ud800a", "\udc00"]) assert.equal(utf8Length(text), Buffer.byteLength(text), text);
});

test("the payload of key, value, tag and headers is counted", () => {
  const row = { ...ROW, key: "ü", value: null, tag: "t", headers: [["n", "vw"], ["m", null], ["b", "AAA=", "base64"]] };
  assert.equal(payloadBytes(row), 2 + 1 + 3 + 1 + 3);
});

test("a record is written in the gateway's form", () => {
  const row = publishRow({
    key: new Uint8Array([255]), value: "v", headers: { a: "b", c: null, d: new Uint8Array([1]).buffer }, tag: "t", partition: 0, timestamp: new Date(7),
  });
  assert.deepEqual(row, {
    value: "v", key: "/w==", key_encoding: "base64", headers: [["a", "b"], ["c", null], ["d", "AQ==", "base64"]], tag: "t", partition: 0, timestamp_ms: 7,
  });
  assert.deepEqual(publishRow({ value: null }), { value: null });
  assert.deepEqual(publishRow({ json: { id: 2n ** 64n } }), { value: '{"id":18446744073709551616}' });
  assert.deepEqual(publishRow({ valueText: "1.10" }), { value: "1.10" });
});

test("a record that says too little, too much or something unknown is refused", () => {
  for (const [record, message] of [
    [{}, /exactly one of value, json and valueText, got none/], [{ value: "a", json: 1 }, /got value and json/], [{ value: 1 }, /for JSON use the field json/],
    [{ value: "a", keys: "k" }, /unknown field keys/], [{ valueText: "{" }, /must be JSON text/], [{ json: 2 ** 60 }, /loses? digits|lose digits/],
    [{ value: "a", timestamp: 1.5 }, /timestamp must be/], [null, /a record is an object/],
  ]) assert.throws(() => publishRow(record), message);
});

test("values are read as text, bytes and JSON", () => {
  const record = new TidelogRecord("t", 0, { ...ROW, value: '{"n":9007199254740993}', key: "/w==", key_encoding: "base64" });
  assert.equal(record.text(), '{"n":9007199254740993}');
  assert.throws(() => record.json(), InexactNumberError);
  assert.deepEqual(record.json({ numbers: "bigint" }), { n: 9007199254740993n });
  assert.deepEqual(record.key, new Uint8Array([255]));
  assert.deepEqual(record.bytes(), new TextEncoder().encode(record.value));
  assert.equal(new TidelogRecord("t", 0, { ...ROW, value: null }).json(), null);
  assert.throws(() => new TidelogRecord("t", 0, { ...ROW, value: "AA==", value_encoding: "base64" }).text(), /t partition 0 offset 3: the value is not UTF-8/);
  assert.throws(() => new TidelogRecord("t", 0, ROW).json(), /the value is not JSON/);
});

test("an offset beyond 2^53 - 1 is refused, not rounded", () => {
  assert.throws(() => new TidelogRecord("t", 0, { ...ROW, offset: JSON.parse("9007199254740993") }), InexactNumberError);
  assert.throws(() => new TidelogRecord("t", 0, { ...ROW, offset: "3" }), ProtocolError);
});
