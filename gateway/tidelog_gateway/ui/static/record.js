// One record: where it is, its headers, and its value as a JSON tree, text or bytes.

import { dialog, fill, h, toast } from "./dom.js";
import { bytes, hexDump, octetsOf, time, utc } from "./format.js";
import { parseJson, treeOf } from "./json_tree.js";
import { fact } from "./groups.js";

const PREVIEW_CHARS = 160;
const HEX_BYTES_MAX = 64 * 1024;

/** Returns the short form of a key or value, for a table. */
export function preview(text, encoding) {
  if (text === null) return h("em", { class: "muted" }, encoding === "key" ? "none" : "tombstone");
  if (text === "") return h("em", { class: "muted" }, "empty");
  if (encoding === "base64") return h("code", { class: "muted" }, `base64 ${text.slice(0, 40)}${text.length > 40 ? "…" : ""}`);
  return text.length > PREVIEW_CHARS ? `${text.slice(0, PREVIEW_CHARS)}…` : text;
}

export function keyOf(record) {
  return record.key_encoding === "base64" ? preview(record.key, "base64") : preview(record.key, "key");
}

/** Returns the text that a search by text examines: key, value, tag and headers. */
export function textOf(record) {
  const headers = (record.headers || []).map(([name, value]) => `${name} ${value || ""}`).join(" ");
  return `${record.key || ""} ${record.value || ""} ${record.tag || ""} ${headers}`;
}

/** Shows a record in a dialog. `row`: its row in a table, whose neighbours can be shown next. */
export function showRecord(topic, partition, record, row = null) {
  const link = new URL(`#/topic/${encodeURIComponent(topic)}?tab=records&partition=${partition}&offset=${record.offset}&one=1`, location.href);
  const octets = record.value === null ? new Uint8Array() : octetsOf(record.value, record.value_encoding);
  const tree = record.value_encoding === "utf8" && record.value ? parseJson(record.value) : null;
  const views = [
    tree && ["JSON", () => h("div", { class: "json" }, treeOf(tree))],
    record.value_encoding === "utf8" && ["Text", () => h("pre", {}, record.value)],
    ["Hex", () => h("pre", {}, hexDump(octets.slice(0, HEX_BYTES_MAX)) + (octets.length > HEX_BYTES_MAX ? `\n… ${octets.length - HEX_BYTES_MAX} bytes more` : ""))],
  ].filter(Boolean);
  const shown = h("div", { class: "value-box", tabindex: 0 });
  const bar = h("div", { class: "tabs small", role: "group", "aria-label": "How the value is shown" });
  const choose = (index) => {
    fill(bar, views.map(([text], each) => h("button", { type: "button", "aria-pressed": String(each === index), onclick: () => choose(each) }, text)));
    fill(shown, record.value === null ? h("p", {}, "A tombstone: the key's earlier records count as deleted.") : record.value === "" ? h("p", { class: "muted" }, "The value is empty: 0 bytes.") : views[index][1]());
  };
  choose(0);
  const copy = (text, what) => h("button", { type: "button", class: "quiet", onclick: async () => (await navigator.clipboard.writeText(text), toast(`${what} is in the clipboard`)) }, `Copy ${what.toLowerCase()}`);
  const turn = (text, sibling) =>
    h("button", { type: "button", disabled: !sibling, onclick: (event) => (event.target.closest("dialog").close(), sibling.querySelector("button").click()) }, text);
  const body = h(
    "div",
    { class: "record" },
    h(
      "dl",
      { class: "facts" },
      fact("Partition", partition),
      fact("Offset", String(record.offset)),
      fact("Time", h("span", {}, time(record.timestamp_ms), h("small", { class: "muted" }, ` ${utc(record.timestamp_ms)}`))),
      fact("Key", keyOf(record)),
      fact("Tag", record.tag || "–"),
      fact("Value", bytes(octets.length)),
    ),
    record.headers && h("table", { class: "headers" }, h("caption", {}, "Headers"), record.headers.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, value === null ? "–" : value)))),
    bar,
    shown,
    h("div", { class: "buttons" }, row && [turn("Row above", row.previousElementSibling), turn("Row below", row.nextElementSibling)], copy(String(link), "Link"), record.value !== null && copy(record.value, "Value")),
  );
  return dialog(`${topic}, partition ${partition}, offset ${record.offset}`, body);
}
