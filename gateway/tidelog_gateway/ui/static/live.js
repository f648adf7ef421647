// Records as they arrive, the newest on top. After a stop the rows stay.

import * as api from "./api.js";
import { field, fill, h, toast } from "./dom.js";
import { count } from "./format.js";
import { textOf } from "./record.js";
import { HEADS, recordRow } from "./records.js";

const SHOWN_MAX = 500;
const CREDIT = 1000;
const RETRY_MS = 2000;

export function livePanel({ topic }) {
  const key = h("input", { autocomplete: "off" });
  const tag = h("input", { autocomplete: "off" });
  const text = h("input", { autocomplete: "off", placeholder: "in key, value, tag, headers" });
  const start = h("button", { class: "primary", onclick: begin }, "Start");
  const stop = h("button", { hidden: true, onclick: () => end("Stopped.") }, "Stop");
  const clear = h("button", { class: "quiet", onclick: () => fill(list) }, "Clear");
  const status = h("p", { class: "muted", role: "status" }, "Nothing is read yet.");
  const list = h("tbody");
  let socket = null;
  let token = null;
  let isWanted = false;
  let received = 0;
  let passed = 0;
  let drawing = 0;
  let waiting = [];

  async function begin() {
    isWanted = true;
    token = null;
    received = passed = 0;
    lock(true);
    await connect();
  }

  function lock(isLive) {
    for (const control of [key, tag, text]) control.disabled = isLive;
    start.hidden = isLive;
    stop.hidden = !isLive;
  }

  async function connect() {
    status.textContent = "Connecting…";
    try {
      const opened = await api.openSocket();
      if (!isWanted) return opened.close();
      socket = opened;
    } catch (error) {
      return again(error.message);
    }
    socket.onmessage = ({ data }) => take(JSON.parse(data));
    socket.onclose = () => isWanted && again("The connection was lost.");
    const sub = { sid: 1, topic: topic.name, from: "latest", credit: { records: CREDIT, bytes: 8_000_000 } };
    if (key.value) sub.key = key.value;
    if (tag.value) sub.tag = tag.value;
    if (token) sub.resume_token = token;
    socket.send(JSON.stringify({ id: 1, sub }));
    return undefined;
  }

  function again(why) {
    socket = null;
    if (!isWanted) return;
    status.textContent = `${why} Trying again…`;
    setTimeout(() => isWanted && !socket && connect(), RETRY_MS);
  }

  function take(told) {
    if (told.error || told.end) {
      const error = told.error || told.end.error;
      end((error && error.detail) || "The subscription ended.");
      toast((error && error.detail) || "The subscription ended.", "failed");
      return;
    }
    const said = told.ok || told.batch;
    if (!said) return;
    if (said.resume_token) token = said.resume_token;
    if (told.ok) status.textContent = "Live: waiting for records.";
    if (!told.batch || !said.records.length) return;
    received += said.records.length;
    const word = text.value.toLowerCase();
    const rows = said.records.filter((record) => !word || textOf(record).toLowerCase().includes(word));
    waiting.push(...rows.map((record) => [said.partition, record]));
    if (waiting.length > SHOWN_MAX) {
      passed += waiting.length - SHOWN_MAX;
      waiting = waiting.slice(-SHOWN_MAX);
    }
    const size = said.records.reduce((sum, record) => sum + (record.value || "").length + (record.key || "").length, 0);
    if (!drawing) drawing = requestAnimationFrame(draw);
    // Credit is given back once the records are taken: a slow browser is sent no more than it can show.
    socket.send(JSON.stringify({ credit: { sid: 1, records: said.records.length, bytes: Math.max(1, size) } }));
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
    status.textContent = `Live: ${count(received)} received${left}.`;
  }

  function end(why) {
    isWanted = false;
    lock(false);
    if (socket) {
      socket.onclose = null;
      socket.close();
      socket = null;
    }
    status.textContent = `${why} ${count(received)} received.`;
  }

  return {
    element: h(
      "div",
      {},
      h("div", { class: "tools-row" }, field("Key", key), field("Tag", tag), field("Text", text), h("div", { class: "buttons" }, start, stop, clear)),
      status,
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Records as they arrive" }, h("table", { class: "records" }, h("thead", {}, h("tr", {}, HEADS.map(([each, kind]) => h("th", { scope: "col", class: kind }, each)))), list)),
    ),
    dispose: () => isWanted && end("Left."),
  };
}
