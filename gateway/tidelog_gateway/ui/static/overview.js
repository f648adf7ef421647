// The overview: present faults, and the load of the cluster.

import * as api from "./api.js";
import { chart } from "./chart.js";
import { fill, h, sentence } from "./dom.js";
import { ago, bytes, count, NONE, plural, rate } from "./format.js";
import { faultsOf, unsampledReason } from "./health.js";

export async function overviewView({ me }) {
  const state = h("section", { class: "card", "aria-label": "State" });
  const tiles = h("div", { class: "tiles" });
  const growth = chart({ title: "Offsets stored", series: [{ label: "offsets/s" }], format: (value) => rate(value) });
  const stored = chart({ title: "Bytes stored (one copy)", series: [{ label: "size" }], format: bytes, isBytes: true });
  const through = chart({
    title: "Through this gateway",
    series: [{ label: "published" }, { label: "delivered" }],
    format: (value) => rate(value),
  });
  const latency = chart({
    title: "HTTP publishes through this gateway",
    series: [{ label: "p50" }, { label: "p99" }],
    format: (value) => `≤ ${value < 10 ? value.toFixed(1) : Math.round(value)} ms`,
  });
  const note = h("p", { class: "muted" });
  let groupsTile = tile("Groups", NONE, "asking…", "#/groups");
  let asksGroups = false;
  const charts = h("div", { class: "charts" }, growth.element, stored.element, through.element, latency.element);
  const refusedCharts = h("section", { class: "card", "aria-label": "Charts", hidden: true });
  const element = h(
    "div",
    {},
    h("h1", {}, "Overview"),
    state,
    tiles,
    charts,
    refusedCharts,
    note,
  );

  /** Requests the groups separately: without a quorum their coordinators answer late or not at all. */
  async function askGroups() {
    if (asksGroups) return;
    asksGroups = true;
    const groups = await api.get("/v1/groups", { limit: 1000 }).catch((error) => ({ fault: error }));
    asksGroups = false;
    const isKnown = Boolean(groups.groups);
    const visible = me.auth === "none" ? "" : "visible to you, ";
    const unit = isKnown ? `${visible}of consumers` : groups.fault.status === 403 ? "not permitted" : "not known: no answer";
    const drawn = tile("Groups", isKnown ? `${count(groups.groups.length)}${groups.next_cursor ? "+" : ""}` : NONE, unit, "#/groups");
    if (!isKnown) drawn.title = sentence(groups.fault.message);
    groupsTile.replaceWith(drawn);
    groupsTile = drawn;
  }

  async function refresh() {
    askGroups();
    const [nodes, topics, figures] = await Promise.all([
      api.get("/v1/cluster").catch(refusal),
      api.all("/v1/topics", "topics", { figures: true }),
      api.get("/v1/history").catch(refusal),
    ]);
    const faults = faultsOf(nodes.nodes || [], topics.topics);
    const unsampled = topics.topics.filter((topic) => !topic.figures).length;
    const sampledTopics = topics.topics.length - unsampled;
    const unchecked = [
      nodes.refused && `Nodes are not checked: ${nodes.refused}`,
      unsampled > 0 && `Topics that are not checked, because this gateway has no sample of them: ${count(unsampled)} of ${count(topics.topics.length)}.`,
      unsampledReason(me, topics.topics),
    ].filter(Boolean);
    fill(state, verdict(faults, unchecked, nodes.refused && !sampledTopics), unchecked.map((text) => h("p", { class: "muted" }, text)));
    const sums = { records: 0, size: 0, partitions: 0 };
    for (const topic of topics.topics) {
      sums.partitions += topic.partitions;
      sums.records += topic.figures ? topic.figures.records : 0;
      sums.size += topic.figures ? topic.figures.size_bytes : 0;
    }
    const visible = me.auth === "none" ? "" : "visible to you, ";
    const summed = (value, shownAs) => (sampledTopics || !unsampled ? `${unsampled ? "≥ " : ""}${shownAs(value)}` : NONE);
    const alive = (nodes.nodes || []).filter((node) => node.alive).length;
    fill(
      tiles,
      tile("Nodes", nodes.nodes ? `${alive} / ${nodes.nodes.length}` : NONE, nodes.nodes ? "alive" : "not permitted", "#/nodes"),
      tile("Topics", count(topics.topics.length), `${visible}${plural(sums.partitions, "partition")}`, "#/topics"),
      tile("Offsets", summed(sums.records, count), "upper bound of the records", "#/topics"),
      tile("Stored", summed(sums.size, bytes), "one copy of each", "#/topics"),
      groupsTile,
    );
    charts.hidden = Boolean(figures.refused);
    refusedCharts.hidden = !figures.refused;
    if (figures.refused) fill(refusedCharts, h("h2", {}, "Charts are not shown"), h("p", {}, figures.refused));
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
        ? `Figures of topics were sampled ${ago(sampled)}${unsampled ? `, without ${plural(unsampled, "topic")} that the gateway does not sample` : ""}.${nodes.nodes ? " Those of nodes are current." : ""}`
        : "This gateway has taken no sample of the topics yet.";
  }

  await refresh();
  return { title: "Overview", element, refresh };
}

function refusal(error) {
  if (error.status === 403) return { refused: error.message };
  throw error;
}

function verdict(faults, unchecked, isNothingChecked) {
  if (faults.length) return [h("h2", { class: "bad" }, `▲ ${plural(faults.length, "fault")}`), h("ul", { class: "faults" }, faults.map(shown))];
  if (isNothingChecked) return h("h2", {}, "Nothing was checked");
  return unchecked.length ? h("h2", {}, "No faults in what was checked") : h("h2", { class: "good" }, "✓ No faults are known");
}

function shown(fault) {
  return h("li", {}, h("strong", {}, fault.what), " ", fault.detail, fault.remedy && h("span", { class: "remedy" }, " → ", fault.remedy));
}

function tile(label, value, unit, href) {
  return h("a", { class: "tile", href }, h("span", { class: "tile-label" }, label), h("span", { class: "tile-value" }, value), h("span", { class: "muted" }, unit));
}

