// A JSON document as a tree that people can open, with numbers as they are written: JSON.parse rounds beyond 2^53.

import { h } from "./dom.js";
import { plural } from "./format.js";

const TOKEN = /\s*(?:([{}[\],:])|("(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*")|(-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?)|(true|false|null))/y;
const DEPTH_MAX = 200;
const SHOWN_MAX = 2000;

/** Returns the nodes of a JSON text, {kind, raw} or {kind, items: [[key, node], …]}; null if the text is not JSON. */
export function parseJson(text) {
  let at = 0;
  const next = () => {
    TOKEN.lastIndex = at;
    const found = TOKEN.exec(text);
    if (!found) throw new SyntaxError("no JSON");
    at = TOKEN.lastIndex;
    return found;
  };
  const value = (found, depth) => {
    if (depth > DEPTH_MAX) throw new SyntaxError("too deep");
    if (found[1] === "{" || found[1] === "[") return list(found[1] === "{", depth);
    if (found[2] !== undefined) return { kind: "string", raw: found[2] };
    if (found[3] !== undefined) return { kind: "number", raw: found[3] };
    if (found[4] !== undefined) return { kind: "word", raw: found[4] };
    throw new SyntaxError("no JSON");
  };
  const list = (isObject, depth) => {
    const items = [];
    const end = isObject ? "}" : "]";
    let found = next();
    if (found[1] === end) return { kind: isObject ? "object" : "array", items };
    for (;;) {
      let key = items.length;
      if (isObject) {
        if (found[2] === undefined || next()[1] !== ":") throw new SyntaxError("no JSON");
        key = JSON.parse(found[2]);
        found = next();
      }
      items.push([key, value(found, depth + 1)]);
      found = next();
      if (found[1] === end) return { kind: isObject ? "object" : "array", items };
      if (found[1] !== ",") throw new SyntaxError("no JSON");
      found = next();
    }
  };
  try {
    const node = value(next(), 0);
    return /^\s*$/.test(text.slice(at)) ? node : null;
  } catch {
    return null;
  }
}

const DIRECTION = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** Returns text with the characters that change its direction as JSON escapes, because they could hide what the text is. */
function visible(text) {
  return text.replace(DIRECTION, (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** Returns an element that shows a node; deeper levels are made when they are opened. */
export function treeOf(node, key = null, open = true) {
  const name = key === null ? null : [h("span", { class: "json-key" }, visible(String(key))), ": "];
  if (node.raw !== undefined) return h("div", { class: "json-row" }, name, h("span", { class: `json-${node.kind}` }, visible(node.raw)));
  const [begin, end] = node.kind === "object" ? ["{", "}"] : ["[", "]"];
  const summary = h("summary", {}, name, `${begin}…${end} `, h("span", { class: "muted" }, plural(node.items.length, node.kind === "object" ? "member" : "item")));
  const details = h("details", { class: "json-row", open: open }, summary);
  const show = () => {
    if (details.dataset.made || !details.open) return;
    details.dataset.made = "yes";
    for (const [child, below] of node.items.slice(0, SHOWN_MAX)) details.append(treeOf(below, child, false));
    const left = node.items.length - SHOWN_MAX;
    if (left > 0) details.append(h("div", { class: "muted" }, `… ${left} more: see the text`));
  };
  details.addEventListener("toggle", show);
  show();
  return details;
}
