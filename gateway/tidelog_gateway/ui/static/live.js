// Records as they arrive, the newest on top. After a stop the rows stay.

import * as api from "./api.js";
import { field, fill, h, sentence } from "./dom.js";
import { count } from "./format.js";
import { textOf } from "./record.js";
import { HEADS, recordRow } from "./records.js";

const SHOWN_MAX = 500;
const CREDIT = 1000;
const CREDIT_BYTES = 8_000_000;

export function livePanel({ topic }) {
  const key = h("input", { autocomplete: "off" });
  const tag = h("input", { autocomplete: "off" });
  const text = h("input", { autocomplete: "off", placeholder: "in key, value, tag, headers" });
  const start = h("button", { class: "primary", onclick: begin }, "Start");
  const stop = h("button", { hidden: true, onclick: () => end("Stopped.") }, "Stop");
  const clear = h("button", { class: "quiet", onclick: () => fill(list) }, "Clear");
  const status = h("p", { class: "muted", role: "status" }, "Nothing is read yet.");
  const list = h("tbody");
  let subscription = null;
  let received = 0;
  let matched = 0;
  let passed = 0;
  let drawing = 0;
  let waiting = [];

  async function begin() {
    received = matched = passed = 0;
    lock(true);
    status.textContent = "Connecting…";
    const mine = (subscription = api.client().subscribe(topic.name, {
      from: "latest",
      key: key.value || undefined,
      tag: tag.value || undefined,
      credit: { records: CREDIT, bytes: CREDIT_BYTES },
      onConnected: () => (status.textContent = "Live: waiting for records."),
      onDisconnected: (error) => fill(status, h("span", { title: error.message }, "Connection lost, trying again…")),
    }));
    try {
      // A batch counts as processed when the next one is requested: a slow browser is sent no more than it shows.
      for await (const batch of mine.batches()) {
        take(batch);
        await new Promise(requestAnimationFrame);
      }
    } catch (error) {
      if (mine !== subscription) return;
      end(sentence(error.message));
    }
  }

  function lock(isLive) {
    for (const control of [key, tag, text]) control.disabled = isLive;
    start.hidden = isLive;
    stop.hidden = !isLive;
  }

  function take({ partition, records }) {
    if (!records.length) return;
    received += records.length;
    const word = text.value.toLowerCase();
    const rows = records.map((record) => record.toJSON()).filter((record) => !word || textOf(record).toLowerCase().includes(word));
    matched += rows.length;
    waiting.push(...rows.map((record) => [partition, record]));
    if (waiting.length > SHOWN_MAX) {
      passed += waiting.length - SHOWN_MAX;
      waiting = waiting.slice(-SHOWN_MAX);
    }
    if (!drawing) drawing = requestAnimationFrame(draw);
  }

  function draw() {
    drawing = 0;
    const rows = waiting.map(([partition, record]) => recordRow(topic.name, partition, record)).reverse();
    waiting = [];
    list.prepend(...rows);
    while (list.children.length > SHOWN_MAX) {
      list.lastChild.remove();
      passed += 1;
    }
    const left = passed ? `; the newest ${count(list.children.length)} are shown` : "";
    status.textContent = `Live: ${counts()}${left}.`;
  }

  function counts() {
    return `${count(received)} received${text.value ? `, ${count(matched)} with the text` : ""}`;
  }

  function end(why) {
    lock(false);
    if (subscription) subscription.close();
    subscription = null;
    status.textContent = `${/[.!?]$/.test(why) ? why : `${why}.`} ${counts()}.`;
  }

  return {
    element: h(
      "div",
      {},
      h("div", { class: "tools-row" }, field("Key", key), field("Tag", tag), field("Text", text), h("div", { class: "buttons" }, start, stop, clear)),
      status,
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Records as they arrive" }, h("table", { class: "records" }, h("thead", {}, h("tr", {}, HEADS.map(([each, kind]) => h("th", { scope: "col", class: kind }, each)))), list)),
    ),
    dispose: () => subscription && end("Left."),
  };
}
