// Publishing records: one by hand, or a file with one a line.

import * as api from "./api.js";
import { field, fill, h, select, toast } from "./dom.js";
import { count } from "./format.js";
import { parseJson } from "./json_tree.js";

const LINES_PER_REQUEST = 1000;
const BYTES_PER_REQUEST = 1_000_000;

export function publishPanel({ topic }) {
  const key = h("input", { autocomplete: "off", placeholder: "none" });
  const kind = select([["utf8", "text"], ["json", "JSON"], ["base64", "base64"], ["tombstone", "tombstone (deletes the key)"]], "utf8");
  const value = h("textarea", { rows: 8, spellcheck: "false" });
  const headers = h("textarea", { rows: 2, spellcheck: "false", placeholder: "name: value" });
  const tag = h("input", { autocomplete: "off" });
  const partition = select([["", "by key"], ...topic.partition_states.map((one) => [String(one.partition), String(one.partition)])], "");
  const go = h("button", { class: "primary", type: "submit" }, "Publish");
  const file = h("input", { type: "file" });
  const progress = h("progress", { hidden: true, max: 1, "aria-label": "Published" });
  const result = h("div", { role: "status" });
  const valueField = field("Value", value);
  const adapt = () => (valueField.hidden = kind.value === "tombstone");
  kind.addEventListener("change", adapt);

  /** Returns a record as JSON text: a JSON value stands in it as it was written, so that no number is rounded. */
  function recordText(text) {
    const parts = [];
    const put = (name, what) => parts.push(`${JSON.stringify(name)}:${what}`);
    if (key.value) put("key", JSON.stringify(key.value));
    if (tag.value) put("tag", JSON.stringify(tag.value));
    if (partition.value) put("partition", partition.value);
    const lines = headers.value.split("\n").filter((line) => line.trim());
    const pairs = lines.map((line) => {
      const at = line.indexOf(":");
      if (at < 1) throw new Error(`a header is “name: value”, not “${line}”`);
      return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
    });
    if (pairs.length) put("headers", JSON.stringify(pairs));
    if (kind.value === "tombstone") {
      if (!key.value) throw new Error("a tombstone needs the key that it deletes");
      put("value", "null");
    } else if (kind.value === "json") {
      if (!parseJson(text)) throw new Error("the value is not JSON");
      put("value_encoding", '"json"');
      put("value", text);
    } else {
      put("value_encoding", JSON.stringify(kind.value));
      put("value", JSON.stringify(text));
    }
    return `{${parts.join(",")}}`;
  }

  async function publish(event) {
    event.preventDefault();
    go.disabled = true;
    try {
      const told = await api.post(api.topicPath(topic.name, "/records"), `{"records":[${recordText(value.value)}]}`);
      const [first] = told.results;
      if (first.error) throw new Error(first.error.detail);
      const link = `#/topic/${encodeURIComponent(topic.name)}?tab=records&partition=${first.partition}&offset=${first.offset}&one=1`;
      fill(result, h("p", { class: "good" }, `✓ Stored at offset ${first.offset} of partition ${first.partition}. `, h("a", { href: link }, "Show it")));
    } catch (error) {
      fill(result, h("p", { class: "fault" }, error.message));
    } finally {
      go.disabled = false;
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
          const text = recordText(lines[done + records.length]);
          size += text.length;
          records.push(text);
        }
        const told = await api.post(api.topicPath(topic.name, "/records"), `{"records":[${records.join(",")}]}`);
        const failed = told.results.findIndex((one) => one.error);
        if (failed >= 0) throw new Error(`line ${done + failed + 1}: ${told.results[failed].error.detail}`);
        done += records.length;
        progress.value = done / lines.length;
      }
      toast(`${count(done)} records are stored`);
      fill(result, h("p", { class: "good" }, `✓ ${count(done)} records are stored.`));
    } catch (error) {
      fill(result, h("p", { class: "fault" }, `${count(done)} lines are stored; then: ${error.message}`));
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
        field("Headers (one a line)", headers),
        h("div", { class: "buttons" }, go),
      ),
      h("div", { class: "card" }, field("Or a file, one record a line", file, "With the key, tag, headers and kind of value from above.")),
      progress,
      result,
    ),
  };
}
