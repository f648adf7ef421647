// A dialog that tests whether a principal may perform an operation, and shows the rule that decides.

import * as api from "./api.js";
import { announce, dialog, field, fill, h, select } from "./dom.js";

export const OPERATIONS = ["produce", "consume", "create", "alter", "delete", "describe", "group", "cluster", "impersonate", "all"];

/** Returns the resource of a rule, in one line. */
export const resourceOf = (rule) => (rule.resource === "cluster" ? "cluster" : `${rule.resource}:${rule.name}${rule.prefix ? "*" : ""}`);

/** Opens the dialog. `rules` returns the existing rules, so that the dialog can show the deciding one in words. */
export function testRule(rules) {
  const principal = h("input", { placeholder: "yourself" });
  const roles = h("input", { placeholder: "none; several with commas" });
  const operation = select(OPERATIONS.filter((each) => each !== "all").map((each) => [each, each]), "consume");
  const resource = select([["topic", "topic"], ["group", "group"], ["cluster", "cluster"]], "topic");
  const name = h("input", { placeholder: "visits" });
  const verdict = h("p", { class: "verdict", role: "status" });
  const body = h("div", {}, field("May", principal), field("With roles", roles), field("Do", operation), field("On a", resource), field("Named", name), verdict);
  resource.addEventListener("change", () => (name.disabled = resource.value === "cluster"));
  return dialog("Test a rule", body, {
    action: "Test",
    submit: async () => {
      fill(verdict);
      const listed = roles.value.split(",").map((each) => each.trim()).filter(Boolean);
      const asked = { operation: operation.value, resource: resource.value, principal: principal.value.trim(), roles: listed };
      if (resource.value !== "cluster") asked.name = name.value;
      const { allowed, because } = await api.post("/v1/rules:test", asked);
      const rule = rules().find((each) => because.endsWith(each.rule_id));
      const words = rule && h("span", { class: "rule" }, `Rule: ${rule.principal} ${rule.deny ? "may not" : "may"} ${rule.operations.join(", ")} on ${resourceOf(rule)}`);
      fill(verdict, h("strong", {}, allowed ? "✓ allowed" : "✕ not allowed"), ` – ${because}`, words);
      announce(`${allowed ? "Allowed" : "Not allowed"}: ${because}`);
      return undefined;
    },
    stays: true,
  });
}
