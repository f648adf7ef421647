// Groups of consumers: members, lag, and moving their positions.

import * as api from "./api.js";
import { crumbs, dialog, field, fill, h, select, sentence, toast } from "./dom.js";
import { ago, count, plural } from "./format.js";
import { reasonNote, restrict } from "./permissions.js";
import { table } from "./table.js";
import { pill } from "./topics.js";

const LAGS_SHOWN = 20;
const LAG_AGE_MS = 30_000;
export const OFFSETS_NOTE = "Lag counts offsets, which may be more than the records left to read: requests with an Idempotency-Key and records that compaction removed have offsets, too.";

/** Returns {of(group), ask(groups), stop()}: lags of groups, one request at a time, each at most every `LAG_AGE_MS`. */
function lagsOf(changed) {
  const known = new Map();
  const stopped = new AbortController();
  let wanted = [];
  let asking = false;

  async function ask(groups) {
    wanted = groups.slice(0, LAGS_SHOWN).map((group) => group.name);
    if (asking) return;
    asking = true;
    const due = (name) => !known.has(name) || Date.now() - known.get(name).at > LAG_AGE_MS;
    for (let name = wanted.find(due); name !== undefined && !stopped.signal.aborted; name = wanted.find(due)) {
      let told;
      try {
        told = { lag: (await api.get(api.groupPath(name, "/lag"), {}, stopped.signal)).lag };
      } catch (error) {
        told = { lag: null, fault: error.message };
      }
      known.set(name, { ...told, at: Date.now() });
      if (!stopped.signal.aborted) changed();
    }
    asking = false;
  }

  return { of: (name) => known.get(name) || { lag: null }, ask, stop: () => stopped.abort() };
}

export async function groupsView({ query, me, setQuery }) {
  const lags = lagsOf(() => list.draw());
  const lagCell = ({ lag, fault }) => (fault ? h("span", { class: "muted", title: fault }, "not known") : count(lag));
  const list = table({
    label: "Groups",
    filter: "Filter groups by name",
    initial: query.get("filter") || "",
    onfilter: (filter) => {
      setQuery({ filter });
      lags.ask(list.drawn());
    },
    empty: h("p", {}, me.auth === "none" ? "There are no groups yet." : "There are no groups that you may see: to see one, you need a permission on it.", " A group is created when a consumer commits a position: ", h("code", {}, "tidelog consume TOPIC --group NAME"), "."),
    columns: [
      { key: "name", label: "Group", value: (row) => row.name, cell: (row) => h("a", { href: `#/group/${encodeURIComponent(row.name)}` }, row.name) },
      { key: "state", label: "State", value: (row) => row.state, cell: (row) => pill(row.state) },
      { key: "members", label: "Members", number: true, value: (row) => row.members },
      { key: "positions", label: "Positions", number: true, value: (row) => row.positions },
      { key: "lag", label: "Lag (offsets)", number: true, value: (row) => lags.of(row.name).lag, cell: (row) => lagCell(lags.of(row.name)) },
      { key: "commit", label: "Last commit", number: true, value: (row) => row.last_commit_ms, cell: (row) => ago(row.last_commit_ms) },
      { key: "coordinator", label: "Coordinator", value: (row) => row.coordinator },
    ],
  });
  const note = h("p", { class: "muted" }, OFFSETS_NOTE);
  const bound = h("p", { class: "muted" }, `The lag of the first ${LAGS_SHOWN} groups of the table is shown: filter the table to see that of others.`);
  async function refresh() {
    const { groups } = await api.all("/v1/groups", "groups");
    list.update(groups);
    note.hidden = !groups.length;
    bound.hidden = groups.length <= LAGS_SHOWN;
    lags.ask(list.drawn());
  }
  await refresh();
  return { title: "Groups", element: h("div", {}, h("h1", {}, "Groups"), list.element, note, bound), refresh, dispose: lags.stop };
}

export async function groupView({ name, me }) {
  const mayChange = me.ui !== "read_only";
  const facts = h("dl", { class: "facts" });
  const members = table({
    label: "Members",
    empty: "The group has no members now.",
    columns: [
      { key: "member", label: "Member", value: (row) => row.instance_id || row.member_id },
      { key: "client", label: "Client", value: (row) => row.client_id },
      { key: "host", label: "Host", value: (row) => row.host },
      { key: "reads", label: "Reads", value: (row) => places(row.reads) },
      { key: "next", label: "Target assignment", value: (row) => places(row.is_to_read) },
    ],
  });
  const lag = table({
    label: "Lag",
    filter: "Filter topics",
    text: (row) => row.topic,
    sort: { key: "lag", down: true },
    empty: "The group has no positions.",
    columns: [
      { key: "topic", label: "Topic", value: (row) => row.topic, cell: (row) => h("a", { href: `#/topic/${encodeURIComponent(row.topic)}` }, row.topic) },
      { key: "partition", label: "Partition", number: true, value: (row) => row.partition },
      { key: "lag", label: "Lag (offsets)", number: true, value: (row) => row.lag, cell: (row) => count(row.lag) },
      { key: "next", label: "Next to read", number: true, value: (row) => row.next_offset, cell: (row) => (row.next_offset === null ? "none" : count(row.next_offset)) },
      { key: "end", label: "End", number: true, value: (row) => row.high_watermark, cell: (row) => count(row.high_watermark) },
      { key: "commit", label: "Committed", number: true, value: (row) => row.commit_timestamp_ms, cell: (row) => ago(row.commit_timestamp_ms) },
      { key: "note", label: "Note", value: (row) => row.note || null },
    ],
  });
  const reset = h("button", { onclick: move }, "Move positions…");
  const drop = h("button", { class: "danger", onclick: deleteIt }, "Delete…");
  const why = h("p", { class: "muted" });
  const [resetReason, dropReason] = [reasonNote(), reasonNote()];
  const may = { reset: true, drop: true };
  const element = h(
    "div",
    {},
    crumbs("Groups", "#/groups", name),
    h("div", { class: "title" }, h("h1", {}, name), mayChange && h("div", { class: "buttons" }, reset, drop)),
    why,
    mayChange && [resetReason, dropReason],
    facts,
    h("h2", {}, "Members"),
    members.element,
    h("h2", {}, "Lag"),
    h("p", { class: "muted" }, OFFSETS_NOTE),
    lag.element,
  );

  async function refresh() {
    const [info, lags] = await Promise.all([api.get(api.groupPath(name)), api.get(api.groupPath(name, "/lag"))]);
    const busy = info.members > 0;
    reset.disabled = busy || !may.reset;
    drop.disabled = busy || !may.drop;
    why.textContent = mayChange && busy ? "Positions can be moved, and the group deleted, only while it has no members: stop its consumers first." : "";
    fill(facts, fact("State", pill(info.state)), fact("Lag", plural(lags.lag, "offset")), fact("Members", count(info.members)), fact("Generation", count(info.generation)), fact("Assignor", info.assignor || "–"), fact("Coordinator", info.coordinator), fact("Last commit", ago(info.last_commit_ms)));
    members.update(info.member_list);
    lag.update(lags.partitions);
  }

  async function move() {
    const to = select([["latest", "the end (skip everything)"], ["earliest", "the beginning (read everything again)"], ["time", "a time"], ["offset", "an offset"]], "latest");
    const at = h("input", { type: "datetime-local", step: 1 });
    const offset = h("input", { type: "number", min: 0 });
    const topic = h("input", { placeholder: "all topics of the group" });
    const result = h("div", { class: "preview", "aria-live": "polite" });
    const [atField, offsetField] = [field("Time (your zone)", at), field("Offset", offset)];
    const adapt = () => {
      atField.hidden = to.value !== "time";
      offsetField.hidden = to.value !== "offset";
      fill(result);
    };
    to.addEventListener("change", adapt);
    adapt();
    const wanted = (dryRun) => {
      const body = { dry_run: dryRun };
      if (to.value === "time") {
        if (!at.value) throw new Error("enter the time");
        body.timestamp = String(new Date(at.value).getTime());
      } else if (to.value === "offset") {
        if (offset.value === "") throw new Error("enter the offset");
        body.offset = Number(offset.value);
      } else body.to = to.value;
      if (topic.value) body.topic = topic.value;
      return body;
    };
    const preview = async () => {
      try {
        const moved = await api.post(api.groupPath(name, "/offsets:reset"), wanted(true));
        fill(result, h("p", {}, `The group would be ${plural(moved.lag, "offset")} behind, in ${plural(moved.partitions.length, "partition")}:`), h("ul", {}, moved.partitions.slice(0, 20).map((row) => h("li", {}, `${row.topic}/${row.partition}: next ${count(row.next_offset)}, lag ${count(row.lag)}`))));
      } catch (error) {
        fill(result, h("p", { class: "fault" }, sentence(error.message)));
      }
    };
    const body = h("div", {}, field("To", to), atField, offsetField, field("Topic", topic), h("button", { type: "button", onclick: preview }, "Try it (nothing changes)"), result);
    const moved = await dialog(`Move the positions of ${name}`, body, {
      action: "Move",
      danger: true,
      submit: async () => api.post(api.groupPath(name, "/offsets:reset"), wanted(false)),
    });
    if (moved) {
      toast(`${name} is now ${plural(moved.lag, "offset")} behind`);
      refresh();
    }
  }

  async function deleteIt() {
    const done = await dialog(`Delete ${name}?`, h("p", {}, "The group and all its committed offsets are deleted. Consumers that join it later begin without offsets."), {
      action: "Delete",
      danger: true,
      submit: async () => {
        await api.remove(api.groupPath(name));
        return true;
      },
    });
    if (done) {
      toast(`Group ${name} is deleted`);
      location.hash = "#/groups";
    }
  }

  await refresh();
  if (mayChange) {
    [may.reset, may.drop] = await Promise.all([
      restrict([reset], resetReason, me, "group", "group", name),
      restrict([drop], dropReason, me, "delete", "group", name),
    ]);
  }
  return { title: name, element, refresh };
}

function places(rows) {
  return rows.map((row) => `${row.topic}/${row.partition}`).join(", ") || null;
}

export function fact(label, value) {
  return h("div", {}, h("dt", {}, label), h("dd", {}, value));
}
