// Messages of a stream: browse, jump to a sequence or time, search by content, follow live, export; JSON, text and hex.

import { button, bytes, el, exact, note, setText, span, when } from "./dom.js";
import { ask, change, confirmed, errorOf, form, get, inform, isAdmin, publish } from "./api.js";

const LIVE_MAX = 200;
const EXPORT_BYTES_MAX = 200e6;
const NEVER = 4294967295;

// ---- contents ----

export function dataOf(message) {
  if (message.base64 == null) return new TextEncoder().encode(message.text ?? "");
  return Uint8Array.from(atob(message.base64), (c) => c.charCodeAt(0));
}

export function hex(data) {
  const lines = [];
  for (let at = 0; at < data.length; at += 16) {
    const row = [...data.subarray(at, at + 16)];
    const digits = row.map((n) => n.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    lines.push(`${at.toString(16).padStart(8, "0")}  ${digits}  ${row.map((n) => (n > 31 && n < 127 ? String.fromCharCode(n) : ".")).join("")}`);
  }
  return lines.join("\n");
}

class Digits { constructor(source) { this.source = source; } } // a number as it is written: others would be rounded

export function parseJson(text) {
  try {
    const value = JSON.parse(text, (_, each, context) => (typeof each === "number" && context?.source && String(each) !== context.source ? new Digits(context.source) : each));
    return typeof value === "object" && value !== null && !(value instanceof Digits) ? value : undefined;
  } catch { return undefined; }
}

const scalar = (value) => (value instanceof Digits ? value.source : JSON.stringify(value));

export function foldable(value, name = null, depth = 0) {
  const key = name == null ? null : el("span", { class: "key" }, `${name}: `);
  if (typeof value !== "object" || value === null || value instanceof Digits) {
    return el("div", { class: "leaf" }, key, el("span", { class: `json-${value instanceof Digits ? "number" : value === null ? "null" : typeof value}` }, scalar(value)));
  }
  const entries = Object.entries(value);
  const [open, close] = Array.isArray(value) ? ["[", "]"] : ["{", "}"];
  if (!entries.length) return el("div", { class: "leaf" }, key, open + close);
  const isArray = Array.isArray(value);
  const size = `${exact(entries.length)} ${isArray ? (entries.length === 1 ? "item" : "items") : entries.length === 1 ? "field" : "fields"}`;
  const fold = el("details", { open: depth < 2 && entries.length <= 50 }, el("summary", {}, key, `${open} `, el("span", { class: "quiet" }, size), ` ${close}`));
  fold.append(...entries.slice(0, 500).map(([each, inner]) => foldable(inner, isArray ? each : JSON.stringify(each), depth + 1)));
  if (entries.length > 500) fold.append(el("div", { class: "leaf quiet" }, `… ${exact(entries.length - 500)} more`));
  return fold;
}

function bodyOf(message) {
  const box = el("div", { class: "body" });
  const json = message.text != null && !message.cut ? parseJson(message.text) : undefined;
  const forms = { Text: () => el("pre", { tabindex: "0" }, (message.text ?? `(binary, base64) ${message.base64}`) + (message.cut ? "\n… (truncated)" : "")), Hex: () => el("pre", { tabindex: "0" }, hex(dataOf(message)) + (message.cut ? "\n… (truncated)" : "")) };
  if (json !== undefined) forms.JSON = () => el("div", { class: "json" }, foldable(json));
  const tabs = el("span", { class: "choice", role: "group", "aria-label": "Show as" });
  const show = (name) => {
    for (const each of tabs.children) each.setAttribute("aria-pressed", String(each.textContent === name));
    box.replaceChildren(forms[name]());
  };
  tabs.append(...Object.keys(forms).map((name) => button(name, () => show(name), { "aria-pressed": "false" })));
  show(message.text == null ? "Hex" : json !== undefined ? "JSON" : "Text");
  return { box, tabs };
}

// Returns a message with its whole payload, of which the page may have the beginning; null after an error, which a dialog has shown.
export async function wholeOf(account, stream, message) {
  if (!message.cut) return message;
  const answer = await get("messages", { account, stream, seq: message.seq, limit: 1, whole: 1 });
  const found = answer.messages?.[0];
  if (found?.seq === message.seq && !found.cut) return found;
  await inform("Not possible here", errorOf(answer) || (found?.cut ? `The payload of ${bytes(message.size)} is too large for this page: use headrace stream get ${stream} ${message.seq}.` : `Message ${message.seq} was removed meanwhile.`));
  return null;
}

async function copy(account, stream, shown, at) {
  const message = await wholeOf(account, stream, shown);
  if (!message) return;
  const text = message.text ?? message.base64;
  try { await navigator.clipboard.writeText(text); } catch {
    const area = el("textarea", { class: "away", "aria-hidden": "true" });
    area.value = text;
    at.after(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  setText(at, "Copied");
  setTimeout(() => setText(at, "Copy"), 1500);
}

// ---- one message ----

export function messageView(account, stream, message, again, extra = []) {
  if (message.error) return el("article", { class: "message" }, `#${message.seq}: ${message.error}`);
  const ttl = message.ttl_s ? (message.ttl_s === NEVER ? ", TTL: never expires" : `, TTL ${span(message.ttl_s)}`) : "";
  const { box, tabs } = message.size ? bodyOf(message) : { box: null, tabs: null };
  const copying = message.size ? button("Copy", (event) => copy(account, stream, message, event.target)) : null;
  const article = el("article", { class: "message", "aria-label": `Message ${message.seq}, ${message.subject}` });
  const whole = message.cut ? button("Show all", async () => {
    const answer = await get("messages", { account, stream, seq: message.seq, limit: 1, whole: 1 });
    if (answer.messages?.[0]?.seq === message.seq) article.replaceWith(messageView(account, stream, answer.messages[0], again, extra));
  }) : null;
  const head = el("header", {}, el("strong", {}, `#${exact(message.seq)}`), el("span", { class: "subject" }, message.subject), el("span", { class: "quiet" }, when(message.time)), el("span", { class: "quiet" }, bytes(message.size) + ttl));
  const acts = isAdmin() ? [button("Publish again…", async () => {
    const found = await wholeOf(account, stream, message);
    if (found) await publishForm(account, found);
  }), button("Delete…", async () => {
    if (await confirmed("Delete message", `Message ${message.seq} of ${stream} will be deleted permanently.`, "Delete")) { await change(account, `STREAM.MSG.DELETE.${stream}`, { seq: message.seq }); again?.(); }
  }, { class: "danger" })] : [];
  const line = [tabs, copying, whole, ...acts].filter(Boolean);
  if (line.length) head.append(el("span", { class: "acts" }, ...line));
  article.append(head);
  const about = extra.filter(Boolean);
  if (about.length) article.append(el("div", { class: "acts" }, ...about));
  if (message.headers.length) article.append(el("dl", {}, ...message.headers.flatMap(([key, value]) => [el("dt", {}, `${key}: `), el("dd", {}, value)])));
  if (box) article.append(box);
  return article;
}

// ---- publishing ----

const OWN = /^Nats-(Expected|Msg-Id|Rollup|Schedule|TTL|Batch|DL-)/i; // headers that would act again

export async function publishForm(account, message = null, subject = "") {
  const values = await form("Publish a message", "The server confirms when the message is durable.", [
    { name: "subject", label: "Subject", value: message?.subject ?? subject, required: true },
    { name: "headers", label: "Headers", type: "textarea", help: "One per line, as Name: value", value: (message?.headers ?? []).filter(([key]) => !OWN.test(key)).map(([key, value]) => `${key}: ${value}`).join("\n") },
    { name: "text", label: message?.base64 ? "Payload (base64)" : "Payload", type: "textarea", value: message?.text ?? message?.base64 ?? "" },
  ], "Publish");
  if (!values) return;
  const headers = values.headers.split("\n").filter((line) => line.trim()).map((line) => { const at = line.indexOf(":"); return [line.slice(0, at), line.slice(at + 1)]; });
  const answer = await publish(account, { subject: values.subject, headers, ...(message?.base64 ? { base64: values.text } : { text: values.text }) });
  if (answer) await inform("Published", answer.stream ? `Stored in ${answer.stream} as sequence ${exact(answer.seq)}.` : answer.receivers ? `${exact(answer.receivers)} receivers; no stream stores this subject.` : "Nobody receives this subject, and no stream stores it.");
}

// ---- the explorer of a stream ----

export function explorer(account, stream, options = {}) {
  const list = el("div", { class: "messages" });
  const status = el("p", { class: "quiet", role: "status" });
  const subject = el("input", { name: "subject", placeholder: "subject, e.g. orders.*", "aria-label": "Subject filter", size: 24, spellcheck: "false" });
  const seq = el("input", { name: "seq", placeholder: "sequence", inputmode: "numeric", "aria-label": "Sequence", size: 10 });
  const time = el("input", { name: "time", type: "datetime-local", step: "1", "aria-label": "Time" });
  const text = el("input", { name: "text", type: "search", placeholder: "content", "aria-label": "Content to find", size: 18, spellcheck: "false" });
  const older = button("Older", () => browse({ seq: older.dataset.seq }));
  const newer = button("Newer", () => browse({ seq: newer.dataset.seq, order: "newer" }));
  const more = button("Search further", () => find(more.dataset.seq), { hidden: true });
  const live = button("Follow live", () => setLive(!follow.on), { "aria-pressed": "false" });
  const follow = { on: false, seq: 0, shown: 0, busy: false };
  let token = 0;
  subject.value = options.subject ?? "";

  const base = () => ({ account, stream, subject: subject.value.trim() });
  const fail = (answer) => { list.replaceChildren(note(errorOf(answer))); older.hidden = newer.hidden = true; setText(status, ""); };
  const view = (message) => messageView(account, stream, message, () => browse(), options.extra?.(message) ?? []);

  async function browse(query = {}) {
    setLive(false);
    token += 1;
    more.hidden = true;
    const answer = await get("messages", { ...base(), limit: 10, ...query });
    if (answer.error) return fail(answer);
    list.replaceChildren(...answer.messages.map(view));
    if (!answer.messages.length) list.replaceChildren(note("No messages match."));
    setText(status, answer.messages.length ? `Messages ${exact(answer.messages[0].seq)} to ${exact(answer.messages.at(-1).seq)}, newest first` : "");
    [older.hidden, newer.hidden] = [!answer.older, !answer.newer];
    [older.dataset.seq, newer.dataset.seq] = [answer.older, answer.newer];
  }

  async function find(from = 0) {
    setLive(false);
    const mine = (token += 1);
    if (!from) list.replaceChildren();
    [older.hidden, newer.hidden, more.hidden] = [true, true, true];
    let [searched, found, next] = [0, 0, from];
    do {
      const answer = await get("search", { ...base(), text: text.value, seq: next });
      if (mine !== token) return;
      if (answer.error) return fail(answer);
      list.append(...answer.messages.map(view));
      [searched, found, next] = [searched + answer.searched, found + answer.messages.length, answer.next];
      setText(status, `${exact(found)} found, ${exact(searched)} messages searched${next ? `, at ${exact(next)}` : ""}`);
    } while (next && found < 25);
    more.hidden = !next;
    more.dataset.seq = next;
    if (!list.children.length) list.append(note("No message contains this."));
  }

  function setLive(on) {
    follow.on = on;
    live.setAttribute("aria-pressed", String(on));
    if (!on) return;
    token += 1;
    Object.assign(follow, { seq: 0, shown: 0 });
    list.replaceChildren(note("Waiting for new messages…"));
    [older.hidden, newer.hidden, more.hidden] = [true, true, true];
    poll();
  }

  async function poll() {
    if (!follow.on || follow.busy) return;
    follow.busy = true;
    const query = follow.seq ? { seq: follow.seq, order: "newer", limit: 100 } : { limit: 1 };
    const answer = await get("messages", { ...base(), ...query });
    follow.busy = false;
    if (!follow.on) return;
    if (answer.error) { setLive(false); return fail(answer); }
    if (!follow.seq) { follow.seq = answer.last_seq + 1; setText(status, "Following; new messages appear here"); return; }
    if (!answer.messages.length) return;
    if (!follow.shown) list.replaceChildren();
    list.prepend(...answer.messages.map(view));
    while (list.children.length > LIVE_MAX) list.lastChild.remove();
    follow.shown += answer.messages.length;
    const skips = answer.newer ? answer.last_seq - answer.newer + 1 : 0;
    follow.seq = answer.last_seq + 1;
    setText(status, `Following: ${exact(follow.shown)} new messages${skips ? `; too many to show, skipped up to ${exact(skips)}` : ""}`);
  }

  async function exportFile() {
    const now = new Date();
    const local = (ms) => new Date(now.getTime() - ms - now.getTimezoneOffset() * 60e3).toISOString().slice(0, 19);
    const values = await form("Export messages", `Messages of ${stream}${subject.value ? ` with subject ${subject.value}` : ""} go to a file that the browser saves.`, [
      { name: "since", label: "From", type: "datetime-local", value: local(3600e3) },
      { name: "until", label: "Until", type: "datetime-local", value: "", help: "Empty: up to now" },
      { name: "kind", label: "Format", type: "select", options: ["JSON lines", "CSV"], value: "JSON lines" },
    ], "Export");
    if (values) await saveMessages(base(), values, status);
  }

  time.addEventListener("change", () => { if (time.value) browse({ time: new Date(time.value).toISOString(), order: "newer" }); });
  const go = el("form", { class: "find", role: "search", "aria-label": "Messages", onsubmit: (event) => {
    event.preventDefault();
    if (text.value) find();
    else if (time.value && !seq.value) browse({ time: new Date(time.value).toISOString(), order: "newer" });
    else browse({ seq: seq.value });
  } },
    field("Subject", subject), field("From sequence", seq), field("From time", time), field("Contains", text),
    el("span", { class: "buttons" }, el("button", { class: "primary" }, "Show"), button("Newest", () => { seq.value = time.value = text.value = ""; browse(); }), live, button("Export…", exportFile)));
  const element = el("div", {}, go, status, el("p", { class: "turns" }, newer), list, el("p", { class: "turns" }, older, more));
  newer.hidden = older.hidden = true;
  return { element, browse, poll, filter(value) { subject.value = value; seq.value = time.value = text.value = ""; browse(); element.scrollIntoView({ block: "start" }); subject.focus({ preventScroll: true }); } };
}

const field = (label, input) => el("label", { class: "inline" }, el("span", {}, label), input);

async function saveMessages(query, { since, until, kind }, status) {
  const parts = kind === "CSV" ? ["seq,time,subject,headers,data,data_base64\n"] : [];
  const bounds = { since: since && new Date(since).toISOString(), until: until && new Date(until).toISOString() };
  let [next, size, total] = [0, 0, 0];
  do {
    const answer = await get("export", { ...query, ...bounds, seq: next || "" });
    if (answer.error) return inform("Export failed", errorOf(answer));
    const part = answer.messages.map(kind === "CSV" ? toCsv : toJsonLine).join("");
    parts.push(part);
    [next, size, total] = [answer.next, size + part.length, total + answer.messages.length];
    setText(status, `Exporting: ${exact(total)} messages, ${bytes(size)}`);
  } while (next && size < EXPORT_BYTES_MAX);
  const url = URL.createObjectURL(new Blob(parts, { type: kind === "CSV" ? "text/csv" : "application/x-ndjson" }));
  el("a", { href: url, download: `${query.stream}.${kind === "CSV" ? "csv" : "jsonl"}` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60e3);
  setText(status, `Exported ${exact(total)} messages, ${bytes(size)}${next ? `; stopped at sequence ${next}: use headrace export for more` : ""}`);
}

// The columns of `headrace export`.
const toRow = (m) => ({ seq: m.seq, time: m.time, subject: m.subject, headers: Object.fromEntries(m.headers ?? []), ...(m.text != null ? { data: m.text } : { data_base64: m.base64 }), ...(m.error ? { error: m.error } : {}) });
const toJsonLine = (m) => `${JSON.stringify(toRow(m))}\n`;
const quote = (value) => (/[",\n\r]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
const toCsv = (m) => `${[m.seq, m.time ?? "", m.subject ?? "", m.headers ? JSON.stringify(toRow(m).headers) : "", m.text ?? m.error ?? "", m.base64 ?? ""].map((each) => quote(String(each))).join(",")}\n`;
