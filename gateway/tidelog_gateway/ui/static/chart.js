// Time series as lines, with gaps where values are unknown.

import { fill, h, s } from "./dom.js";
import { time } from "./format.js";

const WIDTH = 640; // until the chart is part of the page, which determines the width
const HEIGHT = 150;
const LEFT = 56;
const BOTTOM = 18;
const TOP = 8;

/** Returns {element, update(times, values), refuse(why)}. `series`: [{label}], drawn in different dashes, too. */
export function chart({ title, series, format, isBytes = false }) {
  const legend = h("div", { class: "legend" });
  const plot = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", class: "plot" });
  const tip = h("div", { class: "tip", hidden: true });
  const element = h("figure", { class: "chart" }, h("figcaption", {}, title, legend), h("div", { class: "plot-box" }, plot, tip));
  let width = WIDTH;
  let fault = "";
  let times = [];
  let values = [];
  new ResizeObserver(([box]) => {
    const changed = Math.round(box.contentRect.width);
    if (!changed || changed === width) return;
    width = changed;
    plot.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    draw();
  }).observe(plot);
  plot.addEventListener("pointermove", hover);
  plot.addEventListener("pointerleave", () => (tip.hidden = true));

  function x(at) {
    const [first, last] = [times[0], times[times.length - 1]];
    return LEFT + ((at - first) / Math.max(1, last - first)) * (width - LEFT - 4);
  }

  function message(text) {
    fill(plot, s("text", { x: width / 2, y: HEIGHT / 2, class: "axis", "text-anchor": "middle" }, text.length > width / 7 ? `${text.slice(0, width / 7)}…` : text));
    plot.setAttribute("aria-label", `${title}: ${text}`);
    fill(legend);
  }

  function draw() {
    if (fault) {
      message(fault);
      return;
    }
    const known = values.flat().filter((value) => value !== null && value !== undefined);
    if (times.length < 2 || !known.length) {
      message(times.length < 2 ? "No figures yet: they are sampled every few seconds" : "No figures in this hour");
      return;
    }
    const top = nice(Math.max(...known, 0), isBytes ? 1024 : 1000);
    const low = Math.min(0, ...known);
    const y = (value) => HEIGHT - BOTTOM - ((value - low) / Math.max(1e-9, top - low)) * (HEIGHT - BOTTOM - TOP);
    const grid = [0, 0.5, 1].map((share) => {
      const value = low + share * (top - low);
      return [
        s("line", { x1: LEFT, x2: width, y1: y(value), y2: y(value), class: "grid" }),
        s("text", { x: LEFT - 6, y: y(value) + 4, class: "axis", "text-anchor": "end" }, format(value)),
      ];
    });
    const ends = [
      s("text", { x: LEFT, y: HEIGHT - 3, class: "axis" }, time(times[0]).slice(11, 16)),
      s("text", { x: width - 2, y: HEIGHT - 3, class: "axis", "text-anchor": "end" }, time(times[times.length - 1]).slice(11, 16)),
    ];
    const lines = values.map((each, index) => s("path", { d: path(each, y), class: `line line-${index}` }));
    fill(plot, grid, ends, lines);
    const newest = values.map((each) => each[each.length - 1]);
    fill(
      legend,
      series.map((one, index) => h("span", { class: `key key-${index}` }, `${one.label} ${newest[index] === null ? "no data now" : format(newest[index])}`)),
    );
    const told = series.map((one, index) => `${one.label} ${newest[index] === null ? "not known" : format(newest[index])} now`);
    plot.setAttribute("aria-label", `${title}, last hour: ${told.join(", ")}; highest ${format(Math.max(...known))}`);
  }

  function path(each, y) {
    let text = "";
    let pen = "M";
    const isKnown = (value) => value !== null && value !== undefined;
    each.forEach((value, index) => {
      if (!isKnown(value)) {
        pen = "M";
        return;
      }
      text += `${pen}${x(times[index]).toFixed(1)} ${y(value).toFixed(1)}`;
      if (pen === "M" && !isKnown(each[index + 1])) text += "h2"; // one value alone is a short line
      pen = "L";
    });
    return text;
  }

  function hover(event) {
    if (times.length < 2) return;
    const box = plot.getBoundingClientRect();
    const share = ((event.clientX - box.left) / box.width) * width;
    let best = 0;
    times.forEach((at, index) => {
      if (Math.abs(x(at) - share) < Math.abs(x(times[best]) - share)) best = index;
    });
    const told = series.map((one, index) => `${one.label} ${values[index][best] === null ? "no data" : format(values[index][best])}`);
    tip.textContent = `${time(times[best]).slice(11, 19)}  ${told.join("  ")}`;
    tip.hidden = false;
  }

  return {
    element,
    update(changedTimes, changedValues) {
      [times, values, fault] = [changedTimes, changedValues, ""];
      draw();
    },
    /** Shows why there are no figures, unless earlier figures are shown. */
    refuse(why) {
      if (times.length) return;
      fault = why;
      draw();
    },
  };
}

/** The round number at or above a value; `base`: 1000, or 1024 for bytes. */
function nice(value, base) {
  if (value <= 0) return 1;
  const unit = base ** Math.max(0, Math.floor(Math.log(value) / Math.log(base)));
  const step = 10 ** Math.floor(Math.log10(value / unit));
  const rounds = [1, 2, 5, 10].map((each) => each * step * unit);
  return [...rounds, base * unit].filter((each) => each >= value).sort((a, b) => a - b)[0];
}
