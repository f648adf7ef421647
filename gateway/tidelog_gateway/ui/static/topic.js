// One topic: its figures and partitions, stored records, arriving records, groups, publishing, settings.

import * as api from "./api.js";
import { chart } from "./chart.js";
import { crumbs, dialog, field, fill, h, select, sentence, toast } from "./dom.js";
import { ago, bytes, count, duration, plural, rate, time } from "./format.js";
import { fact } from "./groups.js";
import { livePanel } from "./live.js";
import { reasonNote, restrict } from "./permissions.js";
import { publishPanel } from "./publish.js";
import { readersPanel } from "./readers.js";
import { recordsPanel } from "./records.js";
import { table } from "./table.js";
import { keeps, pill, storage, storageName } from "./topics.js";

const TABS = [
  ["partitions", "Partitions"],
  ["records", "Records"],
  ["live", "Live"],
  ["groups", "Groups"],
  ["publish", "Publish"],
  ["settings", "Settings"],
];

export async function topicView({ name, query, me, setQuery }) {
  let topic = await api.get(api.topicPath(name));
  const maySend = me.ui !== "read_only";
  const tabs = TABS.filter(([key]) => maySend || key !== "publish");
  const panel = h("div", { role: "tabpanel", id: "panel", tabindex: 0 });
  const bar = h("div", { role: "tablist", "aria-label": "Parts of the topic", class: "tabs" });
  const makers = { partitions: partitionsPanel, records: recordsPanel, live: livePanel, groups: readersPanel, publish: publishPanel, settings: settingsPanel };
  let shown = null;
  let current = tabs.some(([key]) => key === query.get("tab")) ? query.get("tab") : "partitions";

  function choose(key, focus = false) {
    if (shown && shown.dispose) shown.dispose();
    if (key !== current) {
      const cleared = Object.fromEntries([...query.keys(), "partition", "offset", "from", "time", "text", "key", "tag", "one"].map((each) => [each, null]));
      for (const each of Object.keys(cleared)) query.delete(each); // the parameters of the link apply only to its own tab
      setQuery({ ...cleared, tab: key });
    }
    current = key;
    fill(
      bar,
      tabs.map(([each, text]) =>
        h("button", { role: "tab", "aria-selected": String(each === key), "aria-controls": "panel", tabindex: each === key ? 0 : -1, onclick: () => choose(each), onkeydown: (event) => turn(event, each) }, text),
      ),
    );
    shown = makers[key]({ topic, me, query, setQuery });
    fill(panel, shown.element);
    // Figures that cannot be read now are read again by the next refresh.
    if (shown.update) shown.update(topic).catch(() => document.body.classList.add("stale"));
    const selected = bar.querySelector("[aria-selected=true]");
    bar.scrollLeft = Math.max(0, selected.offsetLeft + selected.offsetWidth - bar.clientWidth);
    if (focus) selected.focus();
  }

  function turn(event, key) {
    const at = tabs.findIndex(([each]) => each === key);
    const next = { ArrowRight: at + 1, ArrowLeft: at - 1 + tabs.length, Home: 0, End: tabs.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    choose(tabs[next % tabs.length][0], true);
  }

  async function refresh() {
    topic = await api.get(api.topicPath(name));
    if (shown && shown.update) await shown.update(topic);
  }

  choose(current);
  return {
    title: name,
    element: h("div", {}, crumbs("Topics", "#/topics", name), h("h1", {}, name), bar, panel),
    refresh,
    dispose: () => shown && shown.dispose && shown.dispose(),
  };
}

function partitionsPanel({ topic: first }) {
  const facts = h("dl", { class: "facts" });
  const growth = chart({ title: "Offsets stored", series: [{ label: "offsets/s" }], format: (value) => rate(value) });
  const size = chart({ title: "Bytes stored (one copy)", series: [{ label: "size" }], format: bytes, isBytes: true });
  const list = table({
    label: "Partitions",
    columns: [
      { key: "partition", label: "Partition", number: true, value: (row) => row.partition },
      { key: "state", label: "State", value: (row) => row.state || "active", cell: (row) => pill(row.state || "active") },
      { key: "owner", label: "Owner", value: (row) => row.owner || null },
      { key: "copies", label: "Copies on", value: (row) => copiesOf(row).map(([node, fault]) => (fault ? `${node} (${fault})` : node)).join(", "), cell: (row) => copiesOf(row).map(([node, fault], at) => [at ? ", " : "", node, fault && [" ", pill(fault)]]) },
      { key: "epoch", label: "Epoch", number: true, value: (row) => row.epoch, cell: (row) => String(row.epoch) },
      { key: "start", label: "First offset", number: true, value: (row) => row.log_start_offset, cell: (row) => count(row.log_start_offset) },
      { key: "end", label: "End", number: true, value: (row) => row.high_watermark, cell: (row) => count(row.high_watermark) },
      { key: "size", label: "Size", number: true, value: (row) => row.size_bytes, cell: (row) => bytes(row.size_bytes) },
      { key: "stored", label: "Stored in", value: storedIn },
      { key: "newest", label: "Newest", number: true, value: (row) => row.newest_append_ms, cell: (row) => ago(row.newest_append_ms) },
      { key: "deletes", label: "Deletes next", value: (row) => (row.next_deletion ? row.next_deletion.below : null), cell: (row) => deletion(row.next_deletion) },
      { key: "read", label: "", value: () => null, cell: (row) => h("a", { href: `#/topic/${encodeURIComponent(first.name)}?tab=records&partition=${row.partition}` }, "records") },
    ],
  });
  const missing = h("p", { class: "bad", role: "status", hidden: true });
  const element = h("div", {}, facts, h("div", { class: "charts" }, growth.element, size.element), missing, list.element);
  let down = new Map(); // node -> its state, of nodes that are not alive

  function copiesOf(row) {
    return (row.placement.length ? row.placement : [row.owner]).map((node) => [node, down.has(node) ? `missing: node ${down.get(node)}` : null]);
  }

  /** Stores the nodes that are not alive; a caller that may not describe the cluster sees only the placement. */
  async function askNodes(topic) {
    const { nodes } = await api.get("/v1/cluster").catch(() => ({ nodes: [] }));
    down = new Map(nodes.filter((node) => !node.alive).map((node) => [node.node_id, node.membership || "dead"]));
    const lacking = topic.partition_states.filter((row) => row.placement.some((node) => down.has(node)));
    missing.hidden = !lacking.length;
    const names = [...down.keys()].filter((node) => lacking.some((row) => row.placement.includes(node))).join(", ");
    missing.textContent = lacking.length ? `${plural(lacking.length, "partition")} with a missing copy: start ${names}, or replace a node whose disk is lost.` : "";
  }

  async function update(topic) {
    await askNodes(topic);
    const sums = topic.partition_states.reduce(
      (sum, one) => ({ records: sum.records + one.high_watermark - one.log_start_offset, size: sum.size + one.size_bytes }),
      { records: 0, size: 0 },
    );
    fill(facts, fact("Offsets stored", h("span", { title: "May be more than the records: requests with an Idempotency-Key and records that compaction removed have offsets, too." }, count(sums.records))), fact("Size (one copy)", bytes(sums.size)), fact("Partitions", count(topic.partitions)), fact("Copies", `${topic.replication_factor}, acknowledged by ${topic.ack_quorum || "a majority"}`), fact("Keeps", keeps(topic)), fact("Flush", topic.flush === "interval" ? `each ${topic.flush_interval_ms} ms` : topic.flush), fact("Storage", storage(topic)));
    list.update(topic.partition_states);
    const figures = await api.get("/v1/history", { topic: topic.name }).catch((error) => ({ fault: sentence(error.message) }));
    if (!figures.times_ms) {
      growth.refuse(figures.fault);
      size.refuse(figures.fault);
      return;
    }
    growth.update(figures.times_ms, [figures.records_per_s]);
    size.update(figures.times_ms, [figures.size_bytes]);
  }

  return { element, update };
}

/** Returns how the epochs of a partition are stored: one name, or one with its epochs for each change. */
function storedIn(row) {
  if (!row.stored.length) return null;
  if (row.stored.length === 1) return storageName(row.stored[0].engine);
  return row.stored.map((one) => `${one.first === one.last ? `epoch ${one.first}` : `epochs ${one.first} to ${one.last}`}: ${storageName(one.engine)}`).join("; ");
}

function deletion(next) {
  if (!next) return "nothing";
  const when = next.at_ms ? (next.at_ms <= Date.now() ? "now" : `in ${duration(next.at_ms - Date.now())}`) : `${bytes(next.bytes_more)} more`;
  return h("span", { title: next.at_ms ? time(next.at_ms) : "" }, `below ${count(next.below)} (${bytes(next.size_bytes)}), ${when}`);
}

const EDITED = ["retention_ms", "retention_bytes", "cleanup", "hold", "flush", "partitions", "replication_factor"];

function settingsPanel({ topic: first, me }) {
  const rows = h("dl", { class: "facts wide" });
  const mayChange = me.ui !== "read_only";
  let topic = first;
  const change = h("button", { class: "primary", onclick: edit }, "Change…");
  const drop = h("button", { class: "danger", onclick: deleteIt }, "Delete the topic…");
  const [changeReason, dropReason] = [reasonNote(), reasonNote()];
  if (mayChange) {
    restrict([change], changeReason, me, "alter", "topic", first.name);
    restrict([drop], dropReason, me, "delete", "topic", first.name);
  }
  const element = h(
    "div",
    {},
    mayChange && [h("div", { class: "buttons" }, change, drop), changeReason, dropReason],
    rows,
  );

  async function update(changed) {
    topic = changed;
    const told = Object.entries(topic).filter(([key]) => key !== "partition_states");
    fill(rows, told.map(([key, value]) => fact(key, explained(key, value, topic))));
  }

  async function edit() {
    const controls = {
      retention_ms: h("input", { type: "number", min: 0, value: topic.retention_ms }),
      retention_bytes: h("input", { type: "number", min: 0, value: topic.retention_bytes }),
      cleanup: select(["delete", "compact", "compact_delete"].map((each) => [each, each]), topic.cleanup),
      hold: select([["false", "no"], ["true", "yes: delete and compact nothing"]], String(topic.hold)),
      flush: select(["always", "interval", "never", "async"].map((each) => [each, each]), topic.flush),
      partitions: h("input", { type: "number", min: topic.partitions, max: 100000, value: topic.partitions }),
      replication_factor: h("input", { type: "number", min: 1, max: 15, value: topic.replication_factor }),
    };
    const hints = {
      retention_ms: "0 keeps records forever. Whole segments are deleted, the oldest first; the tab Partitions shows the next one.",
      retention_bytes: "Per partition; 0: no limit.",
      partitions: "Can only be raised. Records with a key may then go to another partition than before, so the order of a key is lost across the change.",
      replication_factor: "Copies are created or removed gradually.",
    };
    const body = h("div", {}, EDITED.map((key) => field(key, controls[key], hints[key])));
    const changed = await dialog(`Change ${topic.name}`, body, {
      action: "Change",
      submit: async () => {
        const wanted = {};
        for (const key of EDITED) {
          const kind = typeof topic[key];
          const value = kind === "number" ? Number(controls[key].value) : kind === "boolean" ? controls[key].value === "true" : controls[key].value;
          if (value !== topic[key]) wanted[key] = value;
        }
        if (!Object.keys(wanted).length) throw new Error("no setting is changed: change one, or close the dialog");
        return api.patch(api.topicPath(topic.name), wanted);
      },
    });
    if (changed) {
      toast(`${topic.name} is changed`);
      update(changed);
    }
  }

  async function deleteIt() {
    const typed = h("input", { autocomplete: "off" });
    const done = await dialog(`Delete ${topic.name}?`, h("div", {}, h("p", {}, "All its records are deleted permanently."), field("Type the topic's name", typed)), {
      action: "Delete",
      danger: true,
      submit: async () => {
        if (typed.value !== topic.name) throw new Error(`the name does not match; type ${topic.name}`);
        await api.remove(api.topicPath(topic.name));
        return true;
      },
    });
    if (done) {
      toast(`Topic ${topic.name} is deleted`);
      location.hash = "#/topics";
    }
  }

  return { element, update };
}

function explained(key, value, topic) {
  if (/_ms$/.test(key) && value) return value < 1000 ? `${count(value)} ms` : `${count(value)} ms (${duration(value)})`;
  if (/_bytes$/.test(key) && value) return `${count(value)} (${bytes(value)})`;
  if (/^deduplicate/.test(key) && !topic.deduplicate_s && !topic.deduplicate_records) return "0 (off)";
  if (/^retention|^deduplicate/.test(key) && value === 0) return "0 (no limit)";
  if (key === "ack_quorum" && value === 0) return "0 (a majority)";
  return String(value);
}
