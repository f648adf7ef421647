// Quotas, and their usage by callers.

import * as api from "./api.js";
import { dialog, field, h } from "./dom.js";
import { bytes, count, NONE, rate } from "./format.js";
import { table } from "./table.js";

// [field, label, what it counts, how a number is shown]
const LIMITS = [
  ["produce_bytes", "Written", "bytes per second, at each node", (value) => `${bytes(value)}/s`],
  ["consume_bytes", "Read", "bytes per second, at each node", (value) => `${bytes(value)}/s`],
  ["requests", "Requests", "per second, at each node", (value) => rate(value)],
  ["connections", "Connections", "to each node", count],
  ["in_flight_bytes", "In flight", "bytes of requests that a node works on", bytes],
  ["topics", "Topics", "created by the caller", count],
  ["partitions", "Partitions", "of these topics", count],
  ["groups", "Groups", "created by the caller", count],
];

const pathOf = (subject) => `/v1/quotas/${encodeURIComponent(subject)}`;

/** Returns {element, refresh(), set()}: two tables, and a dialog. */
export function quotasPart({ mayChange }) {
  const quotas = table({
    label: "Quotas",
    filter: "Filter quotas",
    text: (row) => row.subject,
    empty: "There are no quotas: only the settings of the nodes limit callers.",
    columns: [
      { key: "subject", label: "Who", value: (row) => row.subject },
      ...LIMITS.map(([name, label, , shown]) => ({
        key: name,
        label,
        number: true,
        value: (row) => (row[name] === "unlimited" ? Infinity : row[name]),
        cell: (row) => (row[name] === null ? NONE : row[name] === "unlimited" ? "unlimited" : shown(row[name])),
      })),
      {
        key: "id",
        label: "",
        value: () => null,
        cell: (row) =>
          mayChange && [
            h("button", { class: "quiet", "aria-label": `Change the quota of ${row.subject}`, onclick: () => set(row) }, "Change"),
            h("button", { class: "quiet danger", "aria-label": `Remove the quota of ${row.subject}`, onclick: () => drop(row.subject) }, "Remove"),
          ],
      },
    ],
  });
  const usages = table({
    label: "Use of quotas",
    empty: "No caller with a quota is connected.",
    columns: [
      { key: "caller", label: "Caller", value: (row) => row.caller },
      { key: "node", label: "Node", value: (row) => row.node },
      { key: "connections", label: "Connections", number: true, value: (row) => row.connections },
      { key: "waiting", label: "Throttled connections", number: true, value: (row) => row.waiting },
      { key: "in_flight", label: "In flight", number: true, value: (row) => row.in_flight_bytes, cell: (row) => bytes(row.in_flight_bytes) },
      { key: "throttled", label: "Throttled in total", number: true, value: (row) => row.throttled_s, cell: (row) => `${row.throttled_s.toFixed(1)} s` },
    ],
  });

  async function refresh() {
    const [listed, used] = await Promise.all([api.get("/v1/quotas"), api.get("/v1/quotas:usage")]);
    quotas.update(listed.quotas);
    usages.update(used.usages);
  }

  async function drop(subject) {
    const done = await dialog("Are you sure?", h("p", {}, `Remove the quota of ${subject}? Requests that it throttles continue at once.`), {
      action: "Remove",
      danger: true,
      submit: async () => {
        await api.remove(pathOf(subject));
        return true;
      },
    });
    if (done) await refresh();
  }

  async function set(row = null) {
    const standing = row && row.subject ? row : null;
    const subject = h("input", { required: true, readonly: Boolean(standing), value: standing ? standing.subject : "", placeholder: "ada, role:batch, *, address:10.0.0.0/8 or default" });
    const limits = LIMITS.map(([name, label, counts]) => {
      const given = standing && standing[name] !== null ? String(standing[name]) : "";
      return [name, h("input", { value: given, placeholder: "not limited here", pattern: "[0-9]+|unlimited" }), label, counts];
    });
    const body = h("div", {}, field("Who", subject), limits.map(([, input, label, counts]) => field(label, input, counts)));
    const done = await dialog("Set a quota", body, {
      action: "Set",
      submit: async () => {
        const wanted = {};
        for (const [name, input] of limits) if (input.value) wanted[name] = input.value === "unlimited" ? "unlimited" : Number(input.value);
        if (!Object.keys(wanted).length) throw new Error("enter at least one limit: a number, or “unlimited”");
        await api.put(pathOf(subject.value), wanted);
        return true;
      },
    });
    if (done) await refresh();
  }

  return { element: h("div", {}, quotas.element, h("h3", {}, "Use"), usages.element), refresh, set: () => set() };
}
