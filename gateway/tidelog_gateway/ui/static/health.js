// The current faults of nodes, then of topics, each with its remedy.

import { bytes, duration, plural } from "./format.js";

const DISK_FREE_LOW = 5 * 1024 ** 3;
const CERTIFICATE_LOW_MS = 14 * 86_400_000;

/** Returns why a gateway that authenticates its callers lacks samples of topics, with the remedy; "" if it lacks none. */
export function unsampledReason(me, topics) {
  if (me.auth === "none" || topics.every((topic) => topic.figures)) return "";
  return "The gateway samples topics with its own key, which needs “describe” on the cluster and on the topics: tidelog acl grant GATEWAY describe cluster, and tidelog acl grant GATEWAY describe 'topic:*'. A new topic is sampled within seconds.";
}

/** Returns [{what, detail, remedy}] from the nodes and the listed topics with their figures. */
export function faultsOf(nodes, topics) {
  const faults = [];
  for (const node of nodes) {
    if (!node.alive) {
      faults.push({ what: `Node ${node.node_id} does not answer.`, detail: `Its membership is ${node.membership || "unknown"}.`, remedy: "start the node again, or replace it: see “tidelog cluster”" });
    } else if (node.state === "failed") {
      faults.push({ what: `Node ${node.node_id} has failed.`, detail: "Most likely its disk has failed.", remedy: "find the cause in the node's log" });
    }
    if (node.alive && node.state === "disk_full") {
      faults.push({ what: `The disk of node ${node.node_id} is full.`, detail: "It refuses publishes and copies no records.", remedy: "shorten retention, delete topics, or add a disk" });
    } else if (node.alive && node.disk_free_bytes > 0 && node.disk_free_bytes < DISK_FREE_LOW) {
      faults.push({ what: `Node ${node.node_id} has little free disk space.`, detail: `${bytes(node.disk_free_bytes)} are free.`, remedy: "shorten retention, add a disk, or drain the node" });
    }
    const ends = Math.min(node.certificate_ends_ms || Infinity, node.ca_ends_ms || Infinity);
    if (ends - Date.now() < CERTIFICATE_LOW_MS) {
      const left = ends - Date.now();
      faults.push({ what: `The certificate of node ${node.node_id}, or its CA, expires.`, detail: left > 0 ? `It expires in ${duration(left)}.` : "It has expired.", remedy: "tidelog certs issue --replace; to replace a CA, see docs/tls.md" });
    }
  }
  for (const topic of topics) {
    const figures = topic.figures;
    if (figures && figures.unavailable) {
      faults.push({ what: `Topic ${topic.name} accepts no records in ${plural(figures.unavailable, "partition")}.`, detail: "They have no quorum, no owner, or a failed disk.", remedy: "start their nodes again" });
    }
  }
  const behind = topics.filter((topic) => topic.figures && topic.figures.under_replicated);
  if (behind.length) {
    const names = behind.slice(0, 3).map((topic) => topic.name).join(", ");
    faults.push({ what: `${plural(behind.length, "topic")} with copies that are missing or lack records.`, detail: `${names}${behind.length > 3 ? ", …" : ""}. Partitions that accept records have them in their other copies.`, remedy: "wait for the copies, or start their nodes again" });
  }
  return faults;
}
