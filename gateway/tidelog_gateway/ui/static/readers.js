// The consumer groups that read a topic, with their lag in it.

import * as api from "./api.js";
import { fill, h } from "./dom.js";
import { ago, count, plural } from "./format.js";
import { OFFSETS_NOTE } from "./groups.js";
import { table } from "./table.js";
import { pill } from "./topics.js";

const GROUPS_ASKED = 100;
const ASK_AGAIN_MS = 30_000;

/** Returns a table of the groups with a position in the topic. The lag of each group is requested, one request at a time. */
export function readersPanel({ topic }) {
  const stopped = new AbortController();
  let found = [];
  let askedAt = 0;
  const list = table({
    label: "Groups",
    sort: { key: "lag", down: true },
    empty: "No group that you may see has a position in this topic.",
    columns: [
      { key: "name", label: "Group", value: (row) => row.name, cell: (row) => h("a", { href: `#/group/${encodeURIComponent(row.name)}` }, row.name) },
      { key: "state", label: "State", value: (row) => row.state, cell: (row) => pill(row.state) },
      { key: "members", label: "Members", number: true, value: (row) => row.members },
      { key: "lag", label: "Lag (offsets)", number: true, value: (row) => row.lag, cell: (row) => count(row.lag) },
      { key: "partitions", label: "Partitions with a position", number: true, value: (row) => row.positions },
      { key: "commit", label: "Last commit here", number: true, value: (row) => row.commit, cell: (row) => ago(row.commit) },
    ],
  });
  const told = h("p", { class: "muted", "aria-live": "polite" });
  const element = h("div", {}, list.element, told, h("p", { class: "muted" }, OFFSETS_NOTE));

  async function readerOf(group) {
    const { partitions } = await api.get(api.groupPath(group.name, "/lag"), { topic: topic.name }, stopped.signal);
    const read = partitions.filter((one) => one.next_offset !== null);
    if (!read.length) return null;
    const sum = partitions.reduce((lag, one) => lag + one.lag, 0);
    return { ...group, lag: sum, positions: read.length, commit: Math.max(...read.map((one) => one.commit_timestamp_ms)) };
  }

  async function update() {
    if (Date.now() - askedAt < ASK_AGAIN_MS) return;
    askedAt = Date.now();
    const { groups } = await api.all("/v1/groups", "groups", {}, stopped.signal);
    const asked = groups.slice(0, GROUPS_ASKED);
    const readers = [];
    let unknown = 0;
    for (const [at, group] of asked.entries()) {
      fill(told, `Lag known of ${at} of ${plural(asked.length, "group")}…`);
      try {
        const reader = await readerOf(group);
        if (reader) readers.push(reader);
      } catch (error) {
        unknown += 1; // The lag of a group may be forbidden, or its coordinator may not answer.
      }
      if (stopped.signal.aborted) return;
      found = readers.length > found.length ? readers : found;
      list.update(found);
    }
    found = readers;
    list.update(found);
    const more = groups.length > asked.length ? ` Only the lag of the first ${GROUPS_ASKED} of ${count(groups.length)} groups was requested.` : "";
    fill(told, (unknown ? `The lag of ${plural(unknown, "group")} is not known.` : "") + more);
  }

  return { element, update, dispose: () => stopped.abort() };
}
