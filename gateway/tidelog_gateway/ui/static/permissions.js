// Permissions of the caller: which operations the page disables, with the reason.

import * as api from "./api.js";
import { fill, h } from "./dom.js";

/** Returns whether the rules allow the caller an operation: {allowed, because}. Without an answer it counts as allowed: the request itself decides. */
export async function verdictOf(me, operation, resource, name = "") {
  if (me.auth === "none") return { allowed: true };
  try {
    return await api.post("/v1/rules:test", { operation, resource, ...(resource === "cluster" ? {} : { name }) });
  } catch {
    return { allowed: true };
  }
}

/** Returns a paragraph that is shown while an operation is not permitted. */
export function reasonNote() {
  return h("p", { class: "muted reason", role: "status", hidden: true });
}

/** Returns the reason why an operation is not permitted, with the command that permits it. */
export function reasonOf(me, operation, resource, name = "") {
  const target = resource === "cluster" ? "cluster" : `${resource}:${name}`;
  const command = [me.principal, operation, target].map((each) => (/^[\w.:@-]+$/.test(each) ? each : `'${each.replaceAll("'", "'\\''")}'`)).join(" ");
  return [`not permitted, it needs “${operation}” on ${target}. An administrator can grant it with `, h("code", {}, `tidelog acl grant ${command}`), "."];
}

let notes = 0;

/** Disables controls whose operation the caller may not do, and shows the reason in `note`; returns whether the operation is permitted. */
export async function restrict(controls, note, me, operation, resource, name = "") {
  const { allowed } = await verdictOf(me, operation, resource, name);
  if (allowed) return true;
  note.id ||= `reason-${(notes += 1)}`;
  for (const control of controls) {
    control.disabled = true;
    control.setAttribute("aria-describedby", note.id);
  }
  const action = controls[0].textContent.replace("…", "");
  fill(note, h("strong", {}, `${action}: `), reasonOf(me, operation, resource, name));
  note.hidden = false;
  return false;
}
