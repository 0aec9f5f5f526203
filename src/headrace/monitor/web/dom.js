// Elements and formats. Values from the server are only ever set as text, not as HTML.

export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child != null && child !== false));
  return made;
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export const button = (text, onclick, attributes = {}) => el("button", { type: "button", onclick, ...attributes }, text);
export const gap = (...nodes) => el("div", { class: "gap" }, ...nodes);
export const note = (text) => el("p", { class: "empty" }, text);
export const heading = (text) => el("h2", {}, text);
export const link = (text, ...parts) => el("a", { href: "#" + parts.map(encodeURIComponent).join("/") }, text);
export const streamLink = (account, name) => link(name, "stream", account, name);
export const consumerLink = (account, stream, name) => link(name, "consumer", account, stream, name);

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
export const exact = (n) => whole.format(n);
export const count = (n) => (Math.abs(n) < 100000 ? whole.format(n) : short.format(n));
export const rate = (n) => (n < 10 && n > 0 ? n.toFixed(1) : count(n)) + "/s";

export function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const sign = n < 0 ? "−" : "";
  let [size, at] = [Math.abs(n), 0];
  while (size >= 1024 && at < units.length - 1) [size, at] = [size / 1024, at + 1];
  return `${sign}${at && size < 100 ? size.toFixed(1) : Math.round(size)} ${units[at]}`;
}

export function span(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

export const micros = (us) => (us ? (us < 1000 ? `${us} µs` : us < 1e6 ? `${(us / 1000).toFixed(us < 10000 ? 1 : 0)} ms` : `${(us / 1e6).toFixed(1)} s`) : "–");
export const clock = (ns) => new Date(ns / 1e6).toLocaleTimeString();
export const ago = (iso, now_ms) => (iso ? `${span(Math.max(0, (now_ms - Date.parse(iso)) / 1000))} ago` : "never");

// A time in the zone of the browser, as in the fields for times.
export function when(iso) {
  const at = new Date((iso ?? "").replace(/(\.\d{3})\d+/, "$1"));
  return iso ? new Date(at - at.getTimezoneOffset() * 60e3).toISOString().replace("T", " ").replace("Z", "") : "";
}

// "90s", "15m", "24h", "7d" and plain seconds, as nanoseconds.
export function duration(text) {
  const units = { "": 1, s: 1, m: 60, h: 3600, d: 86400, w: 604800 };
  const found = /^(\d+(?:\.\d+)?)\s*([smhdw]?)$/.exec(text.trim());
  if (!found) throw new Error(`invalid duration ${JSON.stringify(text)}: use 90s, 15m, 24h or 7d`);
  return Math.round(Number(found[1]) * units[found[2]]) * 1e9;
}

export function durationText(ns) {
  for (const [unit, seconds] of [["d", 86400], ["h", 3600], ["m", 60]]) {
    if (ns && ns % (seconds * 1e9) === 0) return `${ns / (seconds * 1e9)}${unit}`;
  }
  return ns ? `${ns / 1e9}s` : "";
}

export function card(label, help = "") {
  const value = el("div", { class: "value" }, "–");
  const extra = el("div", { class: "label" });
  return { element: el("div", { class: "card", title: help || null }, el("div", { class: "label" }, label), value, extra), value, extra };
}

export function chips(element, texts) {
  if (element.dataset.shown === texts.join("\n")) return;
  element.dataset.shown = texts.join("\n");
  element.replaceChildren(...texts.map((text) => el("span", { class: "chip" }, text)));
}
