// The overview: present faults, and the load of the cluster.

import * as api from "./api.js";
import { chart } from "./chart.js";
import { fill, h } from "./dom.js";
import { ago, bytes, count, plural, rate } from "./format.js";
import { faultsOf } from "./health.js";

export async function overviewView() {
  const state = h("section", { class: "card", "aria-label": "State" });
  const tiles = h("div", { class: "tiles" });
  const growth = chart({ title: "Records stored", series: [{ label: "records/s" }], format: (value) => rate(value) });
  const stored = chart({ title: "Bytes stored (one copy)", series: [{ label: "size" }], format: bytes, isBytes: true });
  const through = chart({
    title: "Through this gateway",
    series: [{ label: "published" }, { label: "delivered" }],
    format: (value) => rate(value),
  });
  const latency = chart({
    title: "HTTP publishes through this gateway",
    series: [{ label: "p50 ≤" }, { label: "p99 ≤" }],
    format: (value) => `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`,
  });
  const note = h("p", { class: "muted" });
  const element = h(
    "div",
    {},
    h("h1", {}, "Overview"),
    state,
    tiles,
    h("div", { class: "charts" }, growth.element, stored.element, through.element, latency.element),
    note,
  );

  async function refresh() {
    const [nodes, topics, groups, figures] = await Promise.all([
      api.get("/v1/cluster").catch(refusal),
      api.all("/v1/topics", "topics", { figures: true }),
      api.get("/v1/groups", { limit: 1000 }).catch(refusal),
      api.get("/v1/history").catch(refusal),
    ]);
    const faults = faultsOf(nodes.nodes || [], topics.topics);
    fill(
      state,
      faults.length
        ? [h("h2", { class: "bad" }, `▲ ${plural(faults.length, "fault")}`), h("ul", { class: "faults" }, faults.map(shown))]
        : h("h2", { class: "good" }, "✓ No faults are known"),
      nodes.refused && h("p", { class: "muted" }, `Nodes are not shown: ${nodes.refused}`),
    );
    const sums = { records: 0, size: 0, partitions: 0 };
    for (const topic of topics.topics) {
      sums.partitions += topic.partitions;
      sums.records += topic.figures ? topic.figures.records : 0;
      sums.size += topic.figures ? topic.figures.size_bytes : 0;
    }
    const alive = (nodes.nodes || []).filter((node) => node.alive).length;
    fill(
      tiles,
      tile("Nodes", nodes.nodes ? `${alive} / ${nodes.nodes.length}` : "–", "alive", "#/nodes"),
      tile("Topics", count(topics.topics.length), plural(sums.partitions, "partition"), "#/topics"),
      tile("Records", count(sums.records), "readable", "#/topics"),
      tile("Stored", bytes(sums.size), "one copy of each", "#/topics"),
      tile("Groups", groups.groups ? `${count(groups.groups.length)}${groups.next_cursor ? "+" : ""}` : "–", "of consumers", "#/groups"),
    );
    if (figures.times_ms) {
      growth.update(figures.times_ms, [figures.records_per_s]);
      stored.update(figures.times_ms, [figures.size_bytes]);
      through.update(figures.times_ms, [figures.published_per_s, figures.delivered_per_s]);
      latency.update(figures.times_ms, [figures.publish_p50_ms, figures.publish_p99_ms]);
    }
    const sampled = topics.last.figures_ms;
    note.textContent = figures.fault
      ? `The figures are not up to date: ${figures.fault}`
      : sampled
        ? `Figures of topics were sampled ${ago(sampled)}. Those of nodes are of now.`
        : "This gateway has taken no sample of the topics yet.";
  }

  await refresh();
  return { title: "Overview", element, refresh };
}

function refusal(error) {
  if (error.status === 403) return { refused: error.message };
  throw error;
}

function shown(fault) {
  return h("li", {}, h("strong", {}, fault.what), " ", fault.detail, fault.remedy && h("span", { class: "remedy" }, " → ", fault.remedy));
}

function tile(label, value, unit, href) {
  return h("a", { class: "tile", href }, h("span", { class: "tile-label" }, label), h("span", { class: "tile-value" }, value), h("span", { class: "muted" }, unit));
}

