// Line charts of the history, and the histogram of commit latencies. Each has a text for screen readers.

import { el, micros, setText } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";

function shape(tag, attributes = {}) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

// Draws some lines of the same unit over the last ten minutes.
export class LineChart {
  constructor(title, names, format) {
    Object.assign(this, { title, names, format });
    this.svg = shape("svg", { viewBox: "0 0 120 40", preserveAspectRatio: "none", role: "img", "aria-label": title });
    this.lines = names.map((_, at) => shape("polyline", { class: `line${at}` }));
    this.svg.append(shape("line", { x1: 0, x2: 120, y1: 39.5, y2: 39.5, class: "axis" }), ...this.lines);
    this.top = el("span", { class: "top" });
    this.legend = el("div", { class: "label" });
    this.element = el("figure", { class: "card chart" }, el("figcaption", {}, title, this.top), this.svg, this.legend);
  }

  draw(columns, slots) {
    const most = Math.max(1e-9, ...columns.flat());
    columns.forEach((values, line) => {
      const start = slots - values.length;
      this.lines[line].setAttribute("points", values.map((v, i) => `${(((start + i) * 120) / (slots - 1)).toFixed(2)},${(39 - (37 * v) / most).toFixed(2)}`).join(" "));
    });
    setText(this.top, columns[0].length ? `max ${this.format(most)}` : "collecting…");
    const newest = this.names.map((name, at) => `${name ? `${name} ` : ""}${columns[at].length ? this.format(columns[at].at(-1)) : "–"}`);
    this.legend.replaceChildren(...newest.map((text, at) => el("span", { class: `key${at}` }, text)));
    this.svg.setAttribute("aria-label", `${this.title}, last ten minutes: now ${newest.join(", ")}, maximum ${this.format(most)}`);
  }
}

export class Histogram {
  constructor(title) {
    this.bars = el("div", { class: "bars", role: "img", "aria-label": title });
    this.element = el("figure", { class: "card histogram" }, el("figcaption", {}, title), this.bars);
    this.title = title;
  }

  draw(bounds_us, counts) {
    const total = counts.reduce((sum, n) => sum + n, 0);
    const first = counts.findIndex(Boolean);
    const last = counts.findLastIndex(Boolean);
    if (!total) { this.bars.replaceChildren(el("span", { class: "quiet" }, "no commits yet")); return; }
    const most = Math.max(...counts);
    const shown = counts.slice(first, last + 1).map((n, i) => {
      const bar = el("i", { class: "bar" });
      bar.style.height = `${Math.max(n ? 2 : 0, (100 * n) / most)}%`;
      const label = first + i < bounds_us.length ? `≤ ${micros(bounds_us[first + i])}` : "more";
      return { text: `${label}: ${n}`, node: el("div", { class: "slot", title: `${label}: ${n} commits` }, el("div", { class: "rise" }, bar), el("small", {}, label.replace("≤ ", ""))) };
    });
    this.bars.setAttribute("aria-label", `${this.title}: ${shown.map((each) => each.text).join(", ")}`);
    this.bars.replaceChildren(...shown.map((each) => each.node));
  }
}
