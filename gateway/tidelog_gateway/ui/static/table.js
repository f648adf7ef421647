// A table that can be filtered, sorted and copied. Rows beyond `SHOWN` are shown on demand.

import { fill, h, toast } from "./dom.js";
import { count, plural } from "./format.js";

const SHOWN = 100;

/**
 * Returns {element, update(rows), draw(), drawn()}.
 *
 * columns: {key, label, value(row): the value to compare and copy, cell(row): the content to show (default: the value), number: whether values are numbers}
 * filter: placeholder of the filter's field; null for a table without a filter
 * text: returns the text that the filter searches; default: the value of the first column
 * empty: element or text that is shown without rows
 */
export function table({ label, columns, filter = null, text = null, empty = "nothing here", sort = null, onfilter = null, initial = "" }) {
  let rows = [];
  let order = sort || { key: columns[0].key, down: false };
  let shown = SHOWN;
  let part = [];
  const search = filter && h("input", { type: "search", placeholder: filter, "aria-label": filter, value: initial });
  const status = h("span", { class: "muted" });
  const copy = h("button", { class: "quiet", title: "Copy the rows as tab-separated text", onclick: copyRows }, "Copy");
  const head = h("tr");
  const body = h("tbody");
  const more = h("button", { class: "quiet", hidden: true, onclick: () => ((shown = Infinity), draw()) });
  const empties = h("div", { class: "empty", hidden: true }, empty);
  const grid = h("table", { "aria-label": label }, h("thead", {}, head), body);
  const element = h(
    "div",
    { class: "table" },
    h("div", { class: "table-tools" }, search, status, copy),
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, grid),
    more,
    empties,
  );
  const sorters = columns.map((column) => {
    if (!column.label) {
      head.append(h("td", { class: "actions" }));
      return [column, null];
    }
    const button = h("button", { class: "sort", onclick: () => sortBy(column) }, column.label);
    const cell = h("th", { scope: "col", class: column.number ? "number" : null }, button);
    head.append(cell);
    return [column, cell];
  });
  if (search) {
    search.addEventListener("input", () => {
      draw();
      if (onfilter) onfilter(search.value);
    });
  }

  function sortBy(column) {
    order = { key: column.key, down: order.key === column.key ? !order.down : Boolean(column.number) };
    draw();
  }

  function wanted() {
    const word = search ? search.value.trim().toLowerCase() : "";
    const of = text || ((row) => String(columns[0].value(row)));
    const column = columns.find((each) => each.key === order.key);
    const found = rows.filter((row) => !word || of(row).toLowerCase().includes(word));
    const keyed = found.map((row) => [column.value(row), row]);
    keyed.sort(([a], [b]) => compare(a, b, order.down));
    return keyed.map(([, row]) => row);
  }

  function draw() {
    const found = wanted();
    const place = focusIn(body);
    fill(
      body,
      found.slice(0, shown).map((row) =>
        h(
          "tr",
          {},
          columns.map((column, index) =>
            h(
              index ? "td" : "th",
              { class: column.number ? "number" : column.label ? null : "actions", scope: index ? null : "row", "data-label": column.label },
              column.cell ? column.cell(row) : String(column.value(row) ?? "–"),
            ),
          ),
        ),
      ),
    );
    if (place) focusAt(body, place);
    for (const [column, cell] of sorters.filter(([, each]) => each)) {
      cell.setAttribute("aria-sort", column.key !== order.key ? "none" : order.down ? "descending" : "ascending");
    }
    const all = plural(rows.length, "row");
    status.textContent = found.length === rows.length ? all : `${count(found.length)} of ${all}`;
    more.hidden = found.length <= shown;
    more.textContent = `Show all ${count(found.length)}`;
    empties.hidden = rows.length > 0;
    grid.hidden = rows.length === 0;
    status.hidden = copy.hidden = rows.length === 0;
    part = found.slice(0, shown);
  }

  async function copyRows() {
    const named = columns.filter((column) => column.label);
    const lines = wanted().map((row) => named.map((column) => String(column.value(row) ?? "")).join("\t"));
    await navigator.clipboard.writeText([named.map((column) => column.label).join("\t"), ...lines].join("\n"));
    toast(`${count(lines.length)} rows are in the clipboard`);
  }

  return {
    element,
    /** Draws the rows again, for cells whose values have changed. */
    draw,
    /** Returns the rows that are drawn, in their order. */
    drawn: () => part,
    update(changed) {
      rows = changed;
      if (!isSelectedIn(body)) draw(); // Text that a person selects to copy it stays selected.
    },
  };
}

/** Orders two values; missing ones are last in both directions. */
function compare(a, b, down) {
  const missing = (value) => value === null || value === undefined;
  if (missing(a) || missing(b)) return missing(a) - missing(b);
  const sign = down ? -1 : 1;
  if (typeof a === "number" && typeof b === "number") return (a - b) * sign;
  return String(a).localeCompare(String(b), "en", { numeric: true }) * sign;
}

const FOCUSABLE = "a[href], button";

/** Returns the focused control within the rows: {label of its row, at: its number in the row}; null if no row has the focus. */
function focusIn(body) {
  const row = document.activeElement && body.contains(document.activeElement) && document.activeElement.closest("tr");
  return row ? { label: row.firstChild.textContent, at: [...row.querySelectorAll(FOCUSABLE)].indexOf(document.activeElement) } : null;
}

/** Gives the focus back to a control after its row was drawn again. */
function focusAt(body, { label, at }) {
  const row = [...body.children].find((each) => each.firstChild.textContent === label);
  const control = row && row.querySelectorAll(FOCUSABLE)[at];
  if (control) control.focus({ preventScroll: true });
}

function isSelectedIn(body) {
  const selection = document.getSelection();
  return selection !== null && !selection.isCollapsed && body.contains(selection.anchorNode);
}
