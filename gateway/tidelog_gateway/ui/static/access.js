// API keys and rules, for callers who may change them.

import * as api from "./api.js";
import { dialog, field, h, select, toast } from "./dom.js";
import { time } from "./format.js";
import { quotasPart } from "./quotas.js";
import { OPERATIONS, resourceOf, testRule } from "./rule_test.js";
import { table } from "./table.js";

export async function accessView({ me }) {
  if (me.auth === "none") {
    const text = "This gateway authenticates no callers (auth = none): all requests have the permissions of the gateway’s own key. Change keys and rules with the command “tidelog”.";
    return { title: "Access", element: h("div", {}, h("h1", {}, "Access"), h("div", { class: "card" }, h("p", {}, text))) };
  }
  let standing = [];
  const mayChange = me.ui !== "read_only";
  const rules = table({
    label: "Rules",
    filter: "Filter rules",
    text: (row) => `${row.principal} ${row.resource} ${row.name} ${row.operations.join(" ")}`,
    empty: "There are no rules: administrators alone have permissions.",
    columns: [
      { key: "principal", label: "Who", value: (row) => row.principal },
      { key: "verdict", label: "May", value: (row) => (row.deny ? "may not" : "may"), cell: (row) => (row.deny ? "✕ may not" : "✓ may") },
      { key: "operations", label: "Do", value: (row) => row.operations.join(", ") },
      { key: "resource", label: "On", value: resourceOf },
      { key: "id", label: "", value: () => null, cell: (row) => mayChange && h("button", { class: "quiet danger", onclick: () => drop(`/v1/rules/${row.rule_id}`, "Remove this rule?") }, "Remove") },
    ],
  });
  const keys = table({
    label: "API keys",
    filter: "Filter keys",
    text: (row) => `${row.principal} ${row.note}`,
    empty: "There are no API keys.",
    columns: [
      { key: "principal", label: "Principal", value: (row) => row.principal },
      { key: "roles", label: "Roles", value: (row) => row.roles.join(", ") || null },
      { key: "note", label: "Note", value: (row) => row.note || null },
      { key: "created", label: "Created", value: (row) => row.created_ms, cell: (row) => time(row.created_ms).slice(0, 16) },
      { key: "expires", label: "Expires", value: (row) => row.expires_ms, cell: (row) => (row.expires_ms ? time(row.expires_ms).slice(0, 16) : "never") },
      { key: "id", label: "", value: () => null, cell: (row) => mayChange && h("button", { class: "quiet danger", onclick: () => drop(`/v1/api-keys/${row.key_id}`, "Revoke this key? Callers that use it are refused within seconds.") }, "Revoke") },
    ],
  });
  const quotas = quotasPart({ mayChange });
  const change = mayChange && [h("button", { onclick: addRule }, "Add a rule"), h("button", { onclick: quotas.set }, "Set a quota"), h("button", { class: "primary", onclick: addKey }, "Create a key")];
  const element = h(
    "div",
    {},
    h("div", { class: "title" }, h("h1", {}, "Access"), h("div", { class: "buttons" }, h("button", { onclick: () => testRule(() => standing) }, "Test a rule"), change)),
    h("h2", {}, "Rules"),
    rules.element,
    h("h2", {}, "API keys"),
    keys.element,
    h("h2", {}, "Quotas"),
    quotas.element,
  );

  async function refresh() {
    const [ruled, keyed] = await Promise.all([
      api.all("/v1/rules", "rules", { limit: null }),
      api.all("/v1/api-keys", "api_keys", { limit: null }),
      quotas.refresh(),
    ]);
    standing = ruled.rules;
    rules.update(standing);
    keys.update(keyed.api_keys);
  }

  async function drop(path, question) {
    const done = await dialog("Are you sure?", h("p", {}, question), {
      action: "Remove",
      danger: true,
      submit: async () => {
        await api.remove(path);
        return true;
      },
    });
    if (done) refresh();
  }

  async function addRule() {
    const principal = h("input", { required: true, placeholder: "ada, role:readers, or * for all principals" });
    const operation = select(OPERATIONS.map((each) => [each, each]), "consume");
    const resource = select([["topic", "topic"], ["group", "group"], ["cluster", "cluster"]], "topic");
    const on = h("input", { placeholder: "visits, or web-* for all names with this prefix" });
    const deny = h("input", { type: "checkbox" });
    const body = h("div", {}, field("Who", principal), field("May", operation), field("On a", resource), field("Named", on), h("label", { class: "check" }, deny, " deny it instead; a denial overrides all rules that allow it"));
    const done = await dialog("Add a rule", body, {
      action: "Add",
      submit: async () => {
        const prefix = on.value.endsWith("*");
        const name = resource.value === "cluster" ? "" : prefix ? on.value.slice(0, -1) : on.value;
        await api.post("/v1/rules", { principal: principal.value, operations: [operation.value], resource: resource.value, name, prefix: resource.value !== "cluster" && prefix, deny: deny.checked });
        return true;
      },
    });
    if (done) refresh();
  }

  async function addKey() {
    const principal = h("input", { required: true });
    const note = h("input", { maxlength: 200 });
    const days = h("input", { type: "number", min: 1, placeholder: "never" });
    const body = h("div", {}, field("Principal", principal, "The principal that the key authenticates. Rules say what it may do."), field("Note", note), field("Expires after (days)", days, "Empty: never."));
    const made = await dialog("Create an API key", body, {
      action: "Create",
      submit: async () => {
        const wanted = { principal: principal.value, note: note.value };
        if (days.value) wanted.expires_ms = Date.now() + Number(days.value) * 86_400_000;
        return api.post("/v1/api-keys", wanted);
      },
    });
    if (!made) return;
    const secret = h("input", { readonly: true, value: made.api_key, "aria-label": "The key", onfocus: (event) => event.target.select() });
    const copy = h("button", { type: "button", onclick: async () => (await navigator.clipboard.writeText(made.api_key), toast("The key is in the clipboard")) }, "Copy");
    await dialog("The new key", h("div", {}, h("p", {}, "Store the key now: it is not shown again."), secret, copy));
    refresh();
  }

  await refresh();
  return { title: "Access", element, refresh };
}
