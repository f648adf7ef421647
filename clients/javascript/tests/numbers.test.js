import assert from "node:assert/strict";
import { test } from "node:test";

import { InexactNumberError, InvalidRequestError, JsonNumber, parseJson, stringifyJson } from "../src/index.js";

const EXACT = [
  "0", "-0", "1", "-1.5", "0.1", "1e3", "1E-7", "123456789012345", "9007199254740991", "9007199254740992", "100000000000000000000",
  "0.30000000000000004", "1.7976931348623157e308", "5e-324", "0.000000000000000000000", "1.0000000000000000", "0e999999999999",
];
const INEXACT = ["9007199254740993", "-12345678901234567890", "0.12345678901234567890", "1e400", "1e-400", "3.141592653589793238", "2e99999999999999999999"];

test("numbers that a double holds are parsed as JSON.parse does", () => {
  for (const text of EXACT) assert.deepEqual(parseJson(`{"a": [${text}]}`), JSON.parse(`{"a": [${text}]}`), text);
});

test("numbers that lose digits are refused", () => {
  for (const text of INEXACT) {
    assert.throws(() => parseJson(`[1, {"a": ${text}}]`), (error) => error instanceof InexactNumberError && error.message.includes(text), text);
  }
});

test("digits inside strings are not numbers", () => {
  const text = '{"12345678901234567890": "9007199254740993 \\" 1e400 \\\\", "b": "1e5"}';
  for (const numbers of ["exact", "bigint", "text"]) assert.deepEqual(parseJson(text, { numbers }), JSON.parse(text));
});

test("bigint keeps integers beyond 2^53 - 1 and refuses decimals that lose digits", () => {
  assert.deepEqual(parseJson('{"a": -12345678901234567890, "b": [9007199254740992], "c": 7}', { numbers: "bigint" }), {
    a: -12345678901234567890n, b: [9007199254740992n], c: 7,
  });
  assert.throws(() => parseJson("0.12345678901234567890", { numbers: "bigint" }), InexactNumberError);
});

test("text keeps every number that would lose digits, and stringifyJson writes it back", () => {
  const text = '{"a":0.12345678901234567890,"b":[1e400,9007199254740993],"c":0.5,"d":"number:1"}';
  const value = parseJson(text, { numbers: "text" });
  assert.equal(value.a.text, "0.12345678901234567890");
  assert.equal(Number(value.b[0]), Infinity);
  assert.equal(value.c, 0.5);
  assert.equal(stringifyJson(value), text);
  assert.throws(() => JSON.stringify(value), InexactNumberError);
});

test("lossy is JSON.parse, and only on request", () => {
  assert.equal(parseJson("9007199254740993", { numbers: "lossy" }), 9007199254740992);
  assert.throws(() => parseJson("1", { numbers: "some" }), InvalidRequestError);
});

test("text that is not JSON is a SyntaxError in every mode", () => {
  for (const numbers of ["exact", "bigint", "text", "lossy"]) {
    for (const text of ["", "{", "12345678901234567890x", '"1234567890123456', "01234567890123456789"]) {
      assert.throws(() => parseJson(text, { numbers }), SyntaxError, text);
    }
  }
});

test("stringifyJson writes what JSON.stringify writes", () => {
  const when = new Date(0);
  for (const value of [null, true, "ü\u0000\ud800", [undefined, () => 1, null], { a: undefined, b: { c: [1, -0, 1e-9] } }, when, { when }, new Number(3)]) {
    assert.equal(stringifyJson(value), JSON.stringify(value));
  }
  assert.equal(stringifyJson({ a: 2n ** 80n, b: [new JsonNumber("1.10")] }), '{"a":1208925819614629174706176,"b":[1.10]}');
});

test("stringifyJson refuses what would be changed without a word", () => {
  for (const value of [NaN, [Infinity], { a: 2 ** 53 }, -1e20]) assert.throws(() => stringifyJson(value), /JSON number|2\^53/);
  for (const value of [undefined, () => 1, Symbol("a")]) assert.throws(() => stringifyJson(value), /is not JSON/);
  const cycle = {};
  cycle.self = [cycle];
  assert.throws(() => stringifyJson(cycle), /contains itself/);
  assert.throws(() => new JsonNumber("01"), /not a JSON number/);
});
