// Publishing records: one by hand, or a file with one record per line.

import * as api from "./api.js";
import { field, fill, h, select, sentence, toast } from "./dom.js";
import { count, octetsOf } from "./format.js";
import { parseJson } from "./json_tree.js";
import { reasonNote, restrict } from "./permissions.js";

const LINES_PER_REQUEST = 1000;
const BYTES_PER_REQUEST = 1_000_000;

function octetsOfBase64(text) {
  try {
    return octetsOf(text, "base64");
  } catch {
    throw new Error("the value is not base64: it has the characters A to Z, a to z, 0 to 9, + and /, and = at its end");
  }
}

export function publishPanel({ topic, me }) {
  const key = h("input", { autocomplete: "off", placeholder: "none" });
  const kind = select([["utf8", "text"], ["json", "JSON"], ["base64", "base64"], ["tombstone", "tombstone (deletes the key)"]], "utf8");
  const value = h("textarea", { rows: 8, spellcheck: "false" });
  const headers = h("textarea", { rows: 2, spellcheck: "false", placeholder: "name: value" });
  const tag = h("input", { autocomplete: "off" });
  const partition = select([["", "by key"], ...topic.partition_states.map((one) => [String(one.partition), String(one.partition)])], "");
  const go = h("button", { class: "primary", type: "submit" }, "Publish");
  const file = h("input", { type: "file" });
  const progress = h("progress", { hidden: true, max: 1, "aria-label": "Published" });
  const [result, fileResult] = [h("div", { role: "status" }), h("div", { role: "status" })];
  const reason = reasonNote();
  let isPermitted = true;
  restrict([go, file], reason, me, "produce", "topic", topic.name).then((allowed) => (isPermitted = allowed));
  const valueField = field("Value", value);
  const adapt = () => (valueField.hidden = kind.value === "tombstone");
  kind.addEventListener("change", adapt);

  /** Returns a record in the form that the client accepts; a JSON value keeps its text, so that no number is rounded. */
  function recordOf(text) {
    const record = {};
    if (key.value) record.key = key.value;
    if (tag.value) record.tag = tag.value;
    if (partition.value) record.partition = Number(partition.value);
    const lines = headers.value.split("\n").filter((line) => line.trim());
    if (lines.length) {
      record.headers = lines.map((line) => {
        const at = line.indexOf(":");
        if (at < 1) throw new Error(`a header must be “name: value”, got “${line}”`);
        return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
      });
    }
    if (kind.value === "tombstone") {
      if (!key.value) throw new Error("a tombstone needs the key that it deletes");
      return { ...record, value: null };
    }
    if (kind.value === "json") {
      if (!parseJson(text)) throw new Error("the value is not JSON; correct it, or choose another kind of value");
      return { ...record, valueText: text };
    }
    if (kind.value === "base64") return { ...record, value: octetsOfBase64(text) };
    return { ...record, value: text };
  }

  async function publish(event) {
    event.preventDefault();
    go.disabled = true;
    try {
      const first = await api.client().publish(topic.name, recordOf(value.value));
      if (first.isDuplicate) {
        fill(result, h("p", {}, "The topic has this content already, and drops duplicates: nothing was stored."));
        return;
      }
      const link = `#/topic/${encodeURIComponent(topic.name)}?tab=records&partition=${first.partition}&offset=${first.offset}&one=1`;
      fill(result, h("p", { class: "good" }, `✓ Stored at offset ${first.offset} of partition ${first.partition}. `, h("a", { href: link }, "Show it")));
    } catch (error) {
      fill(result, h("p", { class: "fault" }, sentence(error.message)));
    } finally {
      go.disabled = !isPermitted;
    }
  }

  async function publishFile() {
    if (!file.files.length) return;
    const lines = (await file.files[0].text()).split("\n").map((line) => line.replace(/\r$/, "")).filter((line) => line);
    let done = 0;
    progress.hidden = false;
    try {
      while (done < lines.length) {
        const records = [];
        let size = 0;
        while (done + records.length < lines.length && records.length < LINES_PER_REQUEST && size < BYTES_PER_REQUEST) {
          const line = lines[done + records.length];
          size += line.length;
          records.push(recordOf(line));
        }
        await api.client().publishMany(topic.name, records);
        done += records.length;
        progress.value = done / lines.length;
      }
      toast(`${count(done)} records are stored`);
      fill(fileResult, h("p", { class: "good" }, `✓ ${count(done)} records are stored.`));
    } catch (error) {
      fill(fileResult, h("p", { class: "fault" }, `${count(done)} lines are stored; the next request failed, and some of its lines may be stored: ${error.message}`));
    } finally {
      progress.hidden = true;
      file.value = "";
    }
  }

  file.addEventListener("change", publishFile);
  return {
    element: h(
      "div",
      {},
      h(
        "form",
        { class: "publish", onsubmit: publish },
        h("div", { class: "tools-row" }, field("Key", key), field("Value is", kind), field("Partition", partition), field("Tag", tag)),
        valueField,
        field("Headers (one per line)", headers),
        h("div", { class: "buttons" }, go, result),
        reason,
      ),
      h("div", { class: "card" }, field("Or a file, one record per line", file, "With the key, tag, headers and kind of value from above."), progress),
      fileResult,
    ),
  };
}
