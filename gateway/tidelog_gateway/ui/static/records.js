// Stored records of one partition or all: from an end of the log, an offset or a time, filtered by key, tag or text.

import * as api from "./api.js";
import { fill, field, h, select, sentence } from "./dom.js";
import { bytes, count, octetsOf, plural, time, utc } from "./format.js";
import { keyOf, preview, showRecord, textOf } from "./record.js";

export const HEADS = [["Partition", "number"], ["Offset", "number"], ["Time"], ["Key"], ["Value"], ["Size", "number"]];
const SHOWN = 50;
const PAGE_RECORDS = 1000;
const SEARCHED_MAX = 200_000;
const FOUND_MAX = 500;

export function recordsPanel({ topic, query, setQuery }) {
  const partitions = topic.partition_states.map((one) => one.partition);
  const which = select([["all", partitions.length === 1 ? "all (1)" : `all ${partitions.length}`], ...partitions.map((one) => [String(one), String(one)])], query.get("partition") || "all");
  const begins = [["latest", "the newest"], ["earliest", "the oldest"], ["time", "a time"], ["offset", "an offset"]];
  const from = select(begins, query.get("offset") ? "offset" : query.get("from") || "latest");
  const at = h("input", { type: "datetime-local", step: 1, value: query.get("time") || "" });
  const offset = h("input", { type: "number", min: 0, value: query.get("offset") || "0" });
  const key = h("input", { value: query.get("key") || "", autocomplete: "off" });
  const tag = h("input", { value: query.get("tag") || "", autocomplete: "off" });
  const text = h("input", { value: query.get("text") || "", autocomplete: "off", placeholder: "in key, value, tag, headers" });
  const go = h("button", { class: "primary", type: "submit" }, "Read");
  const stop = h("button", { type: "button", hidden: true, onclick: () => asking && asking.abort() }, "Stop");
  const status = h("p", { class: "muted", role: "status" });
  const progress = h("progress", { hidden: true, max: 1, "aria-label": "Searched" });
  const list = h("tbody");
  const more = h("button", { class: "quiet", hidden: true }, "Read on");
  const grid = h(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": "Records" },
    h("table", { class: "records" }, h("thead", {}, h("tr", {}, HEADS.map(([each, kind]) => h("th", { scope: "col", class: kind }, each)))), list),
  );
  const atField = field("Time (your zone)", at);
  const offsetField = field("Offset", offset);
  const form = h("form", { class: "tools-row", onsubmit: (event) => (event.preventDefault(), read()) }, field("Partition", which), field("From", from), atField, offsetField, field("Key", key), field("Tag", tag), field("Text", text), h("div", { class: "buttons" }, go, stop));
  const faults = new Map(); // partition -> why it could not be read
  let asking = null;
  let positions = null;
  let unread = 0; // partitions with records that “newest” leaves out

  const adapt = () => {
    atField.hidden = from.value !== "time";
    offsetField.hidden = from.value !== "offset";
  };
  from.addEventListener("change", adapt);
  adapt();

  function chosen() {
    return which.value === "all" ? partitions : [Number(which.value)];
  }

  /** Returns the offset at which reading of each partition begins: {partition: offset}. */
  async function beginnings(signal) {
    if (from.value === "offset") return Object.fromEntries(chosen().map((one) => [one, Number(offset.value)]));
    const query = {};
    if (from.value === "time") {
      if (!at.value) throw new Error("enter the time to begin at");
      query.timestamp = String(new Date(at.value).getTime());
    }
    const wanted = (await offsets(query, signal)).filter((one) => chosen().includes(one.partition));
    const isSearch = Boolean(text.value || key.value || tag.value);
    if (from.value === "time") return Object.fromEntries(wanted.map((one) => [one.partition, one.next_offset]));
    if (from.value === "earliest" || isSearch) return Object.fromEntries(wanted.map((one) => [one.partition, one.log_start_offset]));
    const filled = wanted.filter((one) => one.high_watermark > one.log_start_offset);
    unread = Math.max(0, filled.length - SHOWN);
    return newest(unread ? await recentlyAppended(filled, signal) : filled);
  }

  /** Returns the `SHOWN` partitions with the most recent appends: they have the newest `SHOWN` records of the topic. */
  async function recentlyAppended(filled, signal) {
    const { partition_states: states } = await api.get(api.topicPath(topic.name), {}, signal);
    const appendedMs = new Map(states.map((one) => [one.partition, one.newest_append_ms || 0]));
    return filled.sort((a, b) => (appendedMs.get(b.partition) || 0) - (appendedMs.get(a.partition) || 0)).slice(0, SHOWN);
  }

  /** Returns the log bounds of all partitions. If a partition does not answer, those of the topic's description: the others can be read. */
  async function offsets(query, signal) {
    try {
      return (await api.get(api.topicPath(topic.name, "/offsets"), query, signal)).offsets;
    } catch (error) {
      if (error.status < 500 || query.timestamp) throw error;
      return (await api.get(api.topicPath(topic.name), {}, signal)).partition_states;
    }
  }

  async function read() {
    faults.clear();
    unread = 0;
    if (asking) asking.abort();
    const mine = (asking = new AbortController());
    setQuery({ partition: which.value === "all" ? null : which.value, from: from.value === "offset" ? null : from.value, offset: from.value === "offset" ? offset.value : null, time: from.value === "time" ? at.value : null, key: key.value, tag: tag.value, text: text.value, one: null });
    fill(list);
    more.hidden = true;
    busy(true);
    status.textContent = "Reading…";
    try {
      positions = await beginnings(mine.signal);
      await readOn(mine);
    } catch (error) {
      if (error.name === "AbortError") status.textContent += " Stopped.";
      else status.textContent = sentence(error.message);
    } finally {
      if (asking === mine) {
        busy(false);
        asking = null;
      }
    }
  }

  function busy(isBusy) {
    go.disabled = isBusy;
    stop.hidden = !isBusy;
    progress.hidden = !isBusy;
  }

  /** Reads from `positions` until enough records are shown, all partitions are read, or the user stops it. */
  async function readOn(mine) {
    const word = text.value.toLowerCase();
    const isSearch = Boolean(word || key.value || tag.value);
    const ends = {};
    let looked = 0;
    let found = [];
    const open = new Set(Object.keys(positions).map(Number));
    while (open.size && found.length < (isSearch ? FOUND_MAX : SHOWN) && looked < SEARCHED_MAX) {
      for (const partition of [...open]) {
        const before = positions[partition];
        const wanted = isSearch ? PAGE_RECORDS : from.value === "latest" ? SHOWN : Math.ceil(SHOWN / Object.keys(positions).length);
        let page;
        try {
          page = await api.client().read(topic.name, partition, { offset: before, maxRecords: wanted, key: key.value || undefined, tag: tag.value || undefined, signal: mine.signal });
        } catch (error) {
          if (error.name === "AbortError" || Object.keys(positions).length === 1) throw error;
          faults.set(partition, sentence(error.message)); // the other partitions can be read
          open.delete(partition);
          continue;
        }
        ends[partition] = page.highWatermark;
        positions[partition] = page.nextOffset;
        looked += page.nextOffset - before;
        const read = page.records.map((record) => record.toJSON());
        const rows = read.filter((record) => !word || textOf(record).toLowerCase().includes(word));
        found.push(...rows.map((record) => [partition, record]));
        if (page.nextOffset >= page.highWatermark || page.nextOffset === before) open.delete(partition);
        if (!isSearch && from.value !== "latest" && found.length >= SHOWN) break;
      }
      if (isSearch) {
        const left = [...open].reduce((sum, one) => sum + ends[one] - positions[one], 0);
        progress.max = looked + left || 1;
        progress.value = looked;
        status.textContent = `${count(looked)} offsets searched, ${count(found.length)} found…`;
      }
    }
    if (from.value === "latest" || isSearch) found.sort(([, a], [, b]) => b.timestamp_ms - a.timestamp_ms || b.offset - a.offset);
    found = found.slice(0, FOUND_MAX);
    list.append(...found.map(([partition, record]) => row(partition, record)));
    const bounded = open.size > 0;
    more.hidden = !bounded;
    const what = isSearch ? `${count(found.length)} found in ${count(looked)} offsets` : plural(found.length, "record");
    if (from.value === "latest" && !isSearch && found.length) {
      const of = chosen().length > 1 ? ` of ${count(Object.keys(positions).length)} partitions, ${plural(found.length, "record")} in all` : ` ${plural(found.length, "record")} of partition ${chosen()[0]}`;
      const older = unread ? ` ${plural(unread, "other partition")} with records ${unread === 1 ? "is" : "are"} not read: their newest records were appended earlier. Choose a partition to read it.` : "";
      status.textContent = `The newest${of}.${older}`;
    } else status.textContent = found.length || isSearch ? `${what}${bounded ? "; there is more." : "; that is all."}` : "No records are stored there.";
    if (faults.size) {
      const [[partition, why]] = faults;
      status.textContent += ` ${plural(faults.size, "partition")} could not be read; partition ${partition}: ${why}`;
    }
    if (query.get("one") && found.length) {
      query.delete("one");
      showRecord(topic.name, found[0][0], found[0][1]);
    }
  }

  more.addEventListener("click", async () => {
    const mine = (asking = new AbortController());
    busy(true);
    try {
      await readOn(mine);
    } catch (error) {
      if (error.name !== "AbortError") status.textContent = sentence(error.message);
    } finally {
      busy(false);
      asking = null;
    }
  });

  function row(partition, record) {
    return recordRow(topic.name, partition, record);
  }

  read();
  return {
    element: h("div", {}, form, status, progress, grid, more),
    dispose: () => asking && asking.abort(),
  };
}

/** Returns the offsets at which the newest `SHOWN` records begin: {partition: offset}, an equal number of each partition as far as it has them. `ends`: at most `SHOWN` partitions. */
function newest(ends) {
  const stored = (one) => one.high_watermark - one.log_start_offset;
  const filled = [...ends].sort((a, b) => stored(a) - stored(b));
  let left = SHOWN;
  const shares = filled.map((one, at) => {
    const share = Math.min(stored(one), Math.ceil(left / (filled.length - at)));
    left -= share;
    return [one, share];
  });
  return Object.fromEntries(shares.filter(([, share]) => share > 0).map(([one, share]) => [one.partition, one.high_watermark - share]));
}

/** Returns the row of a record, which opens it. */
export function recordRow(topic, partition, record) {
  const show = () => showRecord(topic, partition, record, element);
  const size = record.value === null ? 0 : octetsOf(record.value, record.value_encoding).length;
  const element = h(
    "tr",
    { class: "clickable", onclick: (event) => event.target.tagName !== "BUTTON" && show() },
    h("td", { class: "number" }, partition),
    h("td", { class: "number" }, h("button", { class: "link", onclick: show, "aria-label": `Show the record at offset ${record.offset} of partition ${partition}` }, String(record.offset))),
    h("td", { title: utc(record.timestamp_ms) }, time(record.timestamp_ms)),
    h("td", { class: "cut" }, keyOf(record)),
    h("td", { class: "cut" }, preview(record.value, record.value_encoding)),
    h("td", { class: "number" }, bytes(size)),
  );
  return element;
}
