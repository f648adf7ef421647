// Creates elements. Text always becomes a text node, so records cannot add markup.

const SVG = "http://www.w3.org/2000/svg";

/** Returns an element. `attributes`: `onclick` and the like are listeners; true sets an attribute, false and null leave it out. */
export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** Returns an SVG element; see `h`. */
export function s(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" && element.tagName !== "OPTION" && element.tagName !== "LI") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Replaces the content of an element. */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

/** Returns a message as a sentence: messages of the API begin in lower case. A first word that is a name stays as it is. */
export function sentence(text) {
  return /^[a-z]+[ ,:;]/.test(text) ? text[0].toUpperCase() + text.slice(1) : text;
}

/** Announces a text to users of screen readers. */
export function announce(text) {
  document.getElementById("announce").textContent = text;
}

/** Shows a message for some seconds; a failure until it is closed. */
export function toast(text, kind = "done") {
  const box = h(
    "div",
    { class: `toast ${kind}`, role: kind === "failed" ? "alert" : "status" },
    h("span", {}, text),
    h("button", { class: "quiet", "aria-label": "Close message", onclick: () => box.remove() }, "×"),
  );
  document.getElementById("toasts").append(box);
  if (kind !== "failed") setTimeout(() => box.remove(), 6000);
}

let fields = 0;

/** Returns a labelled field: a label, the control, and a hint below it. */
export function field(label, control, hint = null) {
  const id = `field-${(fields += 1)}`;
  control.id = id;
  if (hint) control.setAttribute("aria-describedby", `${id}-hint`);
  return h(
    "div",
    { class: "field" },
    h("label", { for: id }, label),
    control,
    hint && h("small", { id: `${id}-hint` }, hint),
  );
}

/** Returns the breadcrumb of a view: a link to its section, and its name. */
export function crumbs(section, href, name) {
  return h("nav", { class: "crumbs", "aria-label": "Breadcrumb" }, h("a", { href }, section), " / ", h("span", { "aria-current": "page" }, name));
}

/** Returns a select. `options`: [value, text] pairs. */
export function select(options, value, attributes = {}) {
  const control = h("select", attributes);
  for (const [key, text] of options) control.append(h("option", { value: key, selected: key === value }, text));
  return control;
}

/** Opens a dialog with a form; resolves with the result of `submit`, or null if it was closed before. With `stays` only the user closes it. */
export function dialog(title, body, { submit = null, action = "Save", danger = false, stays = false } = {}) {
  return new Promise((resolve) => {
    let result = null;
    const fault = h("p", { class: "fault", role: "alert", hidden: true });
    const go = submit && h("button", { type: "submit", class: danger ? "danger" : "primary" }, action);
    const close = h("button", { type: "button", onclick: () => box.close() }, submit && !stays ? "Cancel" : "Close");
    const form = h("form", { method: "dialog" }, body, fault, h("div", { class: "buttons" }, close, go));
    const box = h("dialog", { "aria-label": title }, h("h2", {}, title), form);
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (!submit) return box.close();
      go.disabled = true;
      fault.hidden = true;
      try {
        result = await submit();
        if (!stays) box.close();
      } catch (error) {
        fault.textContent = sentence(error.message);
        fault.hidden = false;
      } finally {
        go.disabled = false;
      }
      return undefined;
    });
    box.addEventListener("close", () => {
      box.remove();
      resolve(result);
    });
    document.body.append(box);
    box.showModal();
  });
}
