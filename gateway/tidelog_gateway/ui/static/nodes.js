// The nodes: their states, disks and connections.

import * as api from "./api.js";
import { dialog, fill, h, toast } from "./dom.js";
import { bytes, count, duration, time } from "./format.js";
import { reasonNote, reasonOf, verdictOf } from "./permissions.js";
import { table } from "./table.js";
import { pill } from "./topics.js";

export async function nodesView({ me }) {
  const mayChange = me.ui !== "read_only";
  const reason = reasonNote();
  const { allowed: mayDrain } = mayChange ? await verdictOf(me, "cluster", "cluster") : { allowed: false };
  if (mayChange && !mayDrain) {
    fill(reason, h("strong", {}, "Drain: "), reasonOf(me, "cluster", "cluster"));
    reason.hidden = false;
  }
  const list = table({
    label: "Nodes",
    filter: "Filter nodes",
    text: (row) => `${row.node_id} ${row.host} ${row.zone} ${row.state}`,
    columns: [
      { key: "node", label: "Node", value: (row) => row.node_id },
      { key: "state", label: "State", value: stateOf, cell: (row) => pill(stateOf(row)) },
      { key: "address", label: "Address", value: (row) => `${row.host}:${row.port}` },
      { key: "zone", label: "Zone", value: (row) => row.zone || null },
      { key: "free", label: "Disk free", number: true, value: (row) => (row.alive ? row.disk_free_bytes : null), cell: (row) => (row.alive ? bytes(row.disk_free_bytes) : "–") },
      { key: "data", label: "Data", number: true, value: (row) => (row.alive ? row.data_bytes : null), cell: (row) => (row.alive ? bytes(row.data_bytes) : "–") },
      { key: "connections", label: "Connections", number: true, value: (row) => (row.alive ? row.connections : null), cell: (row) => (row.alive ? count(row.connections) : "–") },
      { key: "quorum", label: "Without quorum", number: true, value: (row) => row.no_quorum, cell: (row) => (row.no_quorum ? pill(`${row.no_quorum} no quorum`) : "0") },
      { key: "up", label: "Up", number: true, value: (row) => (row.alive ? row.uptime_ms : null), cell: (row) => (row.alive ? duration(row.uptime_ms) : "–") },
      { key: "version", label: "Version", value: (row) => (row.software || "").replace(/^tidelog-node\//, "") || null },
      { key: "certificate", label: "Certificate expires", value: (row) => row.certificate_ends_ms, cell: (row) => (row.certificate_ends_ms ? time(row.certificate_ends_ms).slice(0, 10) : "–") },
      ...(mayChange ? [{ key: "drain", label: "", value: () => null, cell: (row) => h("button", { class: "quiet", disabled: !mayDrain, onclick: () => drain(row) }, row.draining ? "Take back…" : "Drain…") }] : []),
    ],
  });
  const element = h(
    "div",
    {},
    h("h1", {}, "Nodes"),
    list.element,
    reason,
    h("p", { class: "muted" }, "A node is removed or replaced with ", h("code", {}, "tidelog cluster"), "."),
  );
  async function refresh() {
    list.update((await api.get("/v1/cluster")).nodes);
  }
  async function drain(node) {
    const draining = !node.draining;
    const what = draining
      ? "Its copies and the ownership of its partitions move to other nodes, as far as these have room. It goes on serving until then."
      : "It may have copies and own partitions again.";
    const done = await dialog(`${draining ? "Drain" : "Take back"} ${node.node_id}?`, h("p", {}, what), {
      action: draining ? "Drain" : "Take back",
      submit: () => api.patch(`/v1/cluster/nodes/${encodeURIComponent(node.node_id)}`, { draining }),
    });
    if (!done) return;
    toast(draining ? `${node.node_id} is draining; it stores ${count(done.partitions)} partitions` : `${node.node_id} may have copies again`);
    refresh();
  }

  await refresh();
  return { title: "Nodes", element, refresh };
}

function stateOf(node) {
  if (!node.alive) return node.membership && node.membership !== "alive" ? node.membership : "no answer";
  if (node.state === "disk_full") return "disk full";
  return node.draining ? "draining" : node.state || "running";
}
