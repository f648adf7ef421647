/**
 * JSON without lost digits.
 *
 * `JSON.parse` makes every number a double: 9007199254740993 becomes 9007199254740992 and 0.12345678901234567890 loses
 * its last digits, silently. `parseJson` compares each number's digits with those that the double prints, and refuses,
 * or keeps, numbers that a double does not hold. `stringifyJson` writes BigInt and `JsonNumber` digit by digit, and
 * refuses values that `JSON.stringify` would change silently.
 */

import { InexactNumberError, invalidOption, InvalidRequestError } from "./errors.js";

const NUMBERS = ["exact", "bigint", "text", "lossy"];

/** A number that a double may not hold has 16 or more digits, or an exponent. Strings may match, too; that only costs time. */
const SUSPICIOUS = /[\d.]{16}|\d[eE]/;
const TOKEN = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
const INTEGER = /^-?\d+$/;

/** A JSON number as its text. `stringifyJson` writes it as it is; `Number(n)` gives the nearest double. */
export class JsonNumber {
  /** @param {string} text a number as JSON writes it */
  constructor(text) {
    if (!/^-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?$/.test(text)) {
      throw new InvalidRequestError(`not a JSON number: ${text}`, { code: "invalid_number" });
    }
    this.text = text;
  }

  toString() {
    return this.text;
  }

  valueOf() {
    return Number(this.text);
  }

  toJSON() {
    throw new InexactNumberError(`JSON.stringify would lose digits of ${this.text}; use stringifyJson`, {
      code: "inexact_number",
    });
  }
}

/** Return digits and exponent of a decimal number as a text that is equal for equal numbers; the sign of zero is left out. */
function canonical(text) {
  const [, sign, whole, fraction = "", exponent = "0"] = /^(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?$/.exec(text);
  const digits = (whole + fraction).replace(/^0+/, "");
  const stripped = digits.replace(/0+$/, "");
  if (stripped === "") return "0";
  const scale = BigInt(exponent) - BigInt(fraction.length) + BigInt(digits.length - stripped.length);
  return `${sign}${stripped}e${scale}`;
}

/** Return whether a double holds all digits of a JSON number. */
export function isExact(text) {
  const number = Number(text);
  return Number.isFinite(number) && canonical(text) === canonical(String(number));
}

/**
 * Parse JSON.
 *
 * @param {string} text
 * @param {{numbers?: "exact" | "bigint" | "text" | "lossy"}} [options] what happens to numbers that a double does not hold:
 *   "exact" (the default) throws `InexactNumberError`; "bigint" makes integers beyond 2^53 - 1 BigInt, and throws for
 *   other such numbers; "text" makes each a `JsonNumber`; "lossy" rounds them, as `JSON.parse` does
 */
export function parseJson(text, options = {}) {
  const numbers = options.numbers ?? "exact";
  if (!NUMBERS.includes(numbers)) {
    throw invalidOption(`numbers must be one of ${NUMBERS.join(", ")}, got ${numbers}`);
  }
  if (numbers === "lossy" || !SUSPICIOUS.test(text)) return JSON.parse(text);
  JSON.parse(text); // throws if the text is not JSON: the rewriting below expects JSON
  let mark = "number:";
  while (text.includes(mark)) mark = `_${mark}`;
  const rewritten = text.replace(TOKEN, (token) => {
    if (token[0] === '"') return token;
    const isLarge = INTEGER.test(token) && !Number.isSafeInteger(Number(token));
    if (numbers === "bigint" ? !isLarge && isExact(token) : isExact(token)) return token;
    if (numbers === "exact" || (numbers === "bigint" && !isLarge)) {
      const shown = token.length > 60 ? `${token.slice(0, 60)}…` : token;
      throw new InexactNumberError(
        `the number ${shown} has more digits than a JavaScript number keeps; read it as text, or with ` +
          (INTEGER.test(token) ? '{numbers: "bigint"}' : '{numbers: "text"}'),
        { code: "inexact_number" },
      );
    }
    return `"${mark}${token}"`;
  });
  if (rewritten === text) return JSON.parse(text);
  return JSON.parse(rewritten, (_, value) => {
    if (typeof value !== "string" || !value.startsWith(mark)) return value;
    const token = value.slice(mark.length);
    return numbers === "bigint" ? BigInt(token) : new JsonNumber(token);
  });
}

/** Write JSON. BigInt and `JsonNumber` keep their digits; NaN, infinities, and integers that have lost digits throw. */
export function stringifyJson(value) {
  const text = written(value, "", []);
  if (text === undefined) {
    throw new InvalidRequestError(`a value of type ${typeof value} is not JSON`, { code: "invalid_value" });
  }
  return text;
}

function written(value, key, parents) {
  if (value instanceof JsonNumber) return value.text;
  if (value !== null && typeof value === "object" && typeof value.toJSON === "function") value = value.toJSON(key);
  switch (typeof value) {
    case "bigint":
      return value.toString();
    case "number":
      return writtenNumber(value);
    case "object":
      break;
    default:
      return JSON.stringify(value); // undefined for functions and symbols
  }
  if (value === null) return "null";
  if (value instanceof JsonNumber) return value.text;
  if (value instanceof Number || value instanceof String || value instanceof Boolean) {
    return written(value.valueOf(), key, parents);
  }
  if (parents.includes(value)) throw new InvalidRequestError("the value contains itself", { code: "invalid_value" });
  const inside = [...parents, value];
  if (Array.isArray(value)) {
    return `[${value.map((item, index) => written(item, String(index), inside) ?? "null").join(",")}]`;
  }
  const members = [];
  for (const [name, member] of Object.entries(value)) {
    const text = written(member, name, inside);
    if (text !== undefined) members.push(`${JSON.stringify(name)}:${text}`);
  }
  return `{${members.join(",")}}`;
}

function writtenNumber(number) {
  if (!Number.isFinite(number)) {
    throw new InvalidRequestError(`${number} is not a JSON number`, { code: "invalid_value" });
  }
  if (Number.isInteger(number) && !Number.isSafeInteger(number)) {
    throw new InexactNumberError(
      `the integer ${number} is beyond 2^53 - 1, where JavaScript numbers lose digits; use a BigInt, a JsonNumber or valueText`,
      { code: "inexact_number" },
    );
  }
  return JSON.stringify(number);
}
