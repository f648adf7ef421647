// All topics with their sizes and rates; creating one.

import * as api from "./api.js";
import { dialog, field, fill, h, select, toast } from "./dom.js";
import { ago, bytes, count, duration, rate } from "./format.js";
import { unsampledReason } from "./health.js";
import { reasonNote, reasonOf, verdictOf } from "./permissions.js";
import { table } from "./table.js";

export async function topicsView({ query, me, setQuery }) {
  const maySend = me.ui !== "read_only";
  const note = h("p", { class: "muted" });
  const of = (row, name) => (row.figures ? row.figures[name] : null);
  const list = table({
    label: "Topics",
    filter: "Filter topics by name",
    initial: query.get("filter") || "",
    onfilter: (filter) => setQuery({ filter }),
    empty: me.auth === "none" ? h("p", {}, "There are no topics yet. Create one here, or with ", h("code", {}, "tidelog topic create NAME"), ".") : h("p", {}, "There are no topics that you may see. A topic is created here, or with ", h("code", {}, "tidelog topic create NAME"), "; to see one, you need a permission on it."),
    columns: [
      { key: "name", label: "Topic", value: (row) => row.name, cell: (row) => h("a", { href: `#/topic/${encodeURIComponent(row.name)}` }, row.name) },
      { key: "partitions", label: "Partitions", number: true, value: (row) => row.partitions },
      { key: "records", label: "Offsets", number: true, value: (row) => of(row, "records"), cell: (row) => `${of(row, "idle") ? "≥ " : ""}${count(of(row, "records"))}` },
      { key: "size", label: "Size", number: true, value: (row) => of(row, "size_bytes"), cell: (row) => `${of(row, "idle") ? "≥ " : ""}${bytes(of(row, "size_bytes"))}` },
      { key: "rate", label: "Offsets/s", number: true, value: (row) => of(row, "records_per_s"), cell: (row) => rate(of(row, "records_per_s")) },
      { key: "copies", label: "Copies", number: true, value: (row) => row.replication_factor },
      { key: "keeps", label: "Keeps", value: keeps },
      { key: "storage", label: "Storage", value: storage },
      { key: "state", label: "State", value: state, cell: (row) => pill(state(row)) },
    ],
  });
  const element = h(
    "div",
    {},
    h("div", { class: "title" }, h("h1", {}, "Topics"), maySend && h("button", { class: "primary", onclick: create }, "Create a topic")),
    list.element,
    note,
  );

  async function refresh() {
    const { topics, last } = await api.all("/v1/topics", "topics", { figures: true });
    list.update(topics);
    const idle = topics.some((topic) => of(topic, "idle"));
    note.textContent = `${last.figures_ms ? `Figures of ${ago(last.figures_ms)}.` : "No figures yet."}${idle ? " “≥”: some partitions have not been opened since their node started, and are not counted." : ""} Offsets count stored offsets, which may be more than the records. ${unsampledReason(me, topics)}`;
  }

  async function create() {
    const name = await createTopic(me);
    if (name) location.hash = `#/topic/${encodeURIComponent(name)}`;
  }

  await refresh();
  return { title: "Topics", element, refresh };
}

/** Asks for a new topic's settings and creates the topic; returns its name, or null if the dialog was closed. */
async function createTopic(me) {
  const name = h("input", { required: true, pattern: "[A-Za-z0-9._\\-]+", maxlength: 249, autocomplete: "off" });
  const reason = reasonNote();
  name.addEventListener("change", async () => {
    const asked = name.value;
    const { allowed } = asked && name.validity.valid ? await verdictOf(me, "create", "topic", asked) : { allowed: true };
    if (asked !== name.value) return;
    fill(reason, allowed ? [] : h("strong", {}, "Create: "), allowed ? [] : reasonOf(me, "create", "topic", asked));
    reason.hidden = allowed;
  });
  const partitions = h("input", { type: "number", min: 1, max: 100000, value: 1, required: true });
  const copies = h("input", { type: "number", min: 1, max: 15, placeholder: "the node's default" });
  const hours = h("input", { type: "number", min: 0, step: "any", placeholder: "for ever" });
  const cleanup = select([["delete", "delete the oldest"], ["compact", "keep the newest of each key"]], "delete");
  const body = h(
    "div",
    {},
    field("Name", name, "Letters, digits, dots, dashes and underscores."),
    reason,
    field("Partitions", partitions, "Records with equal keys stay in one partition. More can be added later, but keys then move."),
    field("Copies", copies, "On how many nodes each partition is stored."),
    field("Keep records for (hours)", hours),
    field("When they are old", cleanup),
  );
  return dialog("Create a topic", body, {
    action: "Create",
    submit: async () => {
      const wanted = { name: name.value, partitions: Number(partitions.value) };
      if (copies.value) wanted.replication_factor = Number(copies.value);
      if (hours.value) wanted.retention_ms = Math.round(Number(hours.value) * 3_600_000);
      if (cleanup.value !== "delete") wanted.cleanup = cleanup.value;
      await api.post("/v1/topics", wanted);
      toast(`Topic ${name.value} is created`);
      return name.value;
    },
  });
}

export function keeps(topic) {
  if (topic.hold) return "everything (on hold)";
  const parts = [];
  if (topic.cleanup !== "delete") parts.push("newest of each key");
  if (topic.retention_ms) parts.push(duration(topic.retention_ms));
  if (topic.retention_bytes) parts.push(`${bytes(topic.retention_bytes)} per partition`);
  return parts.join(", ") || "everything";
}

/** Returns where the next epochs of a topic are stored: the engine, and the file model if it is not the usual one. */
export function storage(topic) {
  return storageName(topic.file_model === "shared" ? "segment-shared" : topic.flush === "async" ? "memory-async" : topic.engine);
}

/** Returns the text for the engine of an epoch. */
export function storageName(engine) {
  return { "segment-shared": "segment, shared files", "memory-async": "memory, written later" }[engine] || engine;
}

function state(topic) {
  const figures = topic.figures;
  if (!figures) return "not sampled";
  if (figures.unavailable) return `${figures.unavailable} unavailable`;
  if (figures.under_replicated) return `${figures.under_replicated} with copies missing`;
  return "ok";
}

export function pill(text) {
  const kind = text === "ok" || text === "active" || text === "alive" || text === "running" || text === "stable" ? "good" : /unavailable|quorum|limbo|failed|no owner|dead|no answer|disk full/i.test(text) ? "bad" : /missing|behind|suspect|draining|starting|stopping|rebalancing/.test(text) ? "warn" : "plain";
  return h("span", { class: `pill ${kind}` }, `${{ good: "✓ ", bad: "▲ ", warn: "! ", plain: "" }[kind]}${text}`);
}
