// Key-value buckets: keys with their values, and one key with its history and differences.

import { button, bytes, card, count, duration, el, exact, heading, link, note, setText, when } from "./dom.js";
import { change, confirmed, errorOf, form, get, inform, isAdmin, publish } from "./api.js";
import { messageView, wholeOf } from "./messages.js";
import { streamKey } from "./overview.js";
import { PagedTable } from "./tables.js";

const nameOf = (stream) => stream.replace(/^KV_/, "");
const VALUE_CHARS = 120;

export function buckets() {
  const add = button("New bucket…", createBucket, { hidden: true });
  const table = new PagedTable({ caption: "Key-value buckets", path: "streams", query: { kind: "kv" }, sort: "name", key: streamKey, tools: [add], empty: "No buckets.", columns: [
    { title: "Bucket", sort: "name", show: (s) => link(nameOf(s.name), "bucket", s.account, nameOf(s.name)) },
    { title: "Keys", sort: "subjects", number: true, help: "With those that are deleted and have a history", show: (s) => count(s.num_subjects) },
    { title: "Values", sort: "messages", number: true, help: "With history", show: (s) => count(s.messages) },
    { title: "Size", sort: "bytes", number: true, show: (s) => bytes(s.bytes) },
    { title: "Rate", sort: "rate", number: true, wide: true, show: (s) => `${s.rate.toFixed(s.rate < 10 ? 1 : 0)}/s` },
    { title: "Storage", wide: true, show: (s) => s.storage },
  ] });
  return { title: "Key-value buckets", nodes: [table.element], update() { add.hidden = !isAdmin(); table.refresh(); } };
}

async function createBucket() {
  const values = await form("New bucket", "", [
    { name: "name", label: "Name", required: true }, { name: "history", label: "History", value: "5", help: "Values per key, 1 to 64" }, { name: "ttl", label: "TTL", help: "Such as 24h; empty: none" },
    { name: "storage", label: "Storage", type: "select", options: ["file", "memory"], value: "file" },
  ], "Create");
  if (!values) return;
  try {
    const made = await change("$G", `STREAM.CREATE.KV_${values.name}`, { name: `KV_${values.name}`, subjects: [`$KV.${values.name}.>`], retention: "limits", storage: values.storage, discard: "new", num_replicas: 1, max_msgs_per_subject: Number(values.history) || 1, max_age: values.ttl.trim() ? duration(values.ttl) : 0, max_msgs: -1, max_bytes: -1, max_consumers: -1, allow_rollup_hdrs: true, deny_delete: true, allow_direct: true });
    if (made) location.hash = `#bucket/$G/${encodeURIComponent(values.name)}`;
  } catch (error) { await inform("Not created", error.message); }
}

const operationOf = (m) => m?.headers?.find(([name]) => name === "KV-Operation")?.[1] ?? (m?.headers?.some(([name]) => name === "Nats-Marker-Reason") ? "DEL" : "PUT");

function valueText(m) {
  if (!m || m.error) return m?.error ?? "";
  const operation = operationOf(m);
  if (operation !== "PUT") return operation === "PURGE" ? "(purged)" : "(deleted)";
  const text = m.text ?? `(binary, ${bytes(m.size)})`;
  return text.length > VALUE_CHARS ? `${text.slice(0, VALUE_CHARS)}…` : text;
}

// Saves a new value of a key; `before` is the message that has the present one, if the key exists.
async function putKey(account, bucket, key = "", before = null) {
  const old = before && operationOf(before) === "PUT" ? await wholeOf(account, `KV_${bucket}`, before) : {};
  if (!old) return;
  const isBinary = old.base64 != null;
  const values = await form(key ? `Change ${key}` : "New key", "", [
    ...(key ? [] : [{ name: "key", label: "Key", required: true }]), { name: "value", label: isBinary ? "Value (base64)" : "Value", type: "textarea", value: old.text ?? old.base64 ?? "" },
  ], "Save");
  if (!values) return;
  const headers = [["Nats-Expected-Last-Subject-Sequence", String(before?.seq ?? 0)]];
  const answer = await publish(account, { subject: `$KV.${bucket}.${key || values.key}`, headers, ...(isBinary ? { base64: values.value } : { text: values.value }) });
  if (answer && answer.error == null && !answer.stream) await inform("Not stored", `The bucket ${bucket} does not exist.`);
}

export function bucket(account, name) {
  const stream = `KV_${name}`;
  const add = button("New key…", () => putKey(account, name), { hidden: true });
  const prefix = `$KV.${name}.`;
  const table = new PagedTable({ caption: `Keys of ${name}`, path: "subjects", query: { account, stream, last: 1 }, sort: "subject", key: (s) => s.subject, tools: [add], empty: "No keys.", columns: [
    { title: "Key", sort: "subject", show: (s) => link(s.subject.replace(prefix, ""), "key", account, name, s.subject.replace(prefix, "")) },
    { title: "Value", show: (s) => valueText(s.message) },
    { title: "Revision", number: true, show: (s) => (s.message ? exact(s.message.seq) : "") },
    { title: "Changed", wide: true, show: (s) => when(s.message?.time) },
    { title: "History", sort: "messages", number: true, wide: true, help: "Number of values that the bucket has of this key", show: (s) => count(s.messages) },
  ] });
  return { title: `Bucket ${name}`, nodes: [el("p", {}, link("the stream behind it", "stream", account, stream)), table.element], update() { add.hidden = !isAdmin(); table.refresh(); } };
}

// ---- one key ----

export function key(account, bucketName, name) {
  const stream = `KV_${bucketName}`;
  const subject = `$KV.${bucketName}.${name}`;
  const figures = ["Revision", "Operation", "Changed", "Values"].map((label) => card(label));
  const status = el("p", { role: "status", class: "quiet" });
  const current = el("div");
  const history = el("div");
  let newest = null;
  let shown = "";
  const remove = async (operation, extra) => { if (await confirmed(`${operation === "DEL" ? "Delete" : "Purge"} key`, operation === "DEL" ? `${name} will be deleted; its history stays.` : `${name} and its history will be removed permanently.`, operation === "DEL" ? "Delete" : "Purge")) await publish(account, { subject, headers: [["KV-Operation", operation], ...extra], text: "" }); };
  const acts = el("p", { hidden: true, class: "acts" }, button("Change…", () => putKey(account, bucketName, name, newest)), button("Delete…", () => remove("DEL", []), { class: "danger" }), button("Purge…", () => remove("PURGE", [["Nats-Rollup", "sub"]]), { class: "danger" }));

  return { title: `Key ${name}`, nodes: [el("p", {}, "Key of the bucket ", link(bucketName, "bucket", account, bucketName)), el("div", { class: "cards" }, ...figures.map((each) => each.element)), acts, status, heading("Value"), current, heading("History, newest first"), history],
    async update() {
      acts.hidden = !isAdmin();
      const answer = await get("messages", { account, stream, subject, limit: 64 });
      if (answer.error) { current.replaceChildren(note(errorOf(answer))); return; }
      const found = answer.messages;
      const state = `${isAdmin()} ${found.map((m) => m.seq)}`;
      if (state === shown) return;
      if (shown && found[0]?.seq !== newest?.seq) setText(status, `Changed to revision ${found[0]?.seq ?? "none"} at ${new Date().toLocaleTimeString()}`);
      else if (!shown) setText(status, "Watching: changes appear here at once");
      [shown, newest] = [state, found[0] ?? null];
      const values = newest ? [exact(newest.seq), operationOf(newest), when(newest.time), exact(found.length)] : ["–", "none", "–", "0"];
      figures.forEach((each, at) => setText(each.value, values[at]));
      current.replaceChildren(newest ? messageView(account, stream, newest, null) : note("This key has no value."));
      history.replaceChildren(...found.map((m, at) => revisionView(m, found[at + 1])));
    } };
}

function revisionView(m, before) {
  const operation = operationOf(m);
  const body = m.error ? note(m.error) : operation !== "PUT" ? el("p", { class: "quiet" }, operation === "PURGE" ? "purged" : "deleted") : before && m.text != null && before.text != null ? diffView(before.text, m.text) : el("pre", { tabindex: "0" }, m.text ?? `(binary, ${bytes(m.size)})`);
  const cut = m.cut || before?.cut ? el("p", { class: "quiet" }, "Only the beginning is shown.") : null;
  return el("article", { class: "message", "aria-label": `Revision ${m.seq}` }, el("header", {}, el("strong", {}, `#${exact(m.seq)}`), el("span", {}, operation), el("span", { class: "quiet" }, when(m.time))), body, cut);
}

const pretty = (text) => { try { const value = JSON.parse(text); return typeof value === "object" && value !== null ? JSON.stringify(value, null, 2) : text; } catch { return text; } };

// The lines of two texts: common ones, removed ones and added ones. Long texts are compared only at their ends.
export function diff(before, after) {
  const [a, b] = [pretty(before).split("\n"), pretty(after).split("\n")];
  let [start, endA, endB] = [0, a.length, b.length];
  while (start < endA && start < endB && a[start] === b[start]) start += 1;
  while (endA > start && endB > start && a[endA - 1] === b[endB - 1]) [endA, endB] = [endA - 1, endB - 1];
  const [midA, midB] = [a.slice(start, endA), b.slice(start, endB)];
  const lines = a.slice(0, start).map((text) => [" ", text]);
  if (midA.length * midB.length > 250000) lines.push(...midA.map((text) => ["-", text]), ...midB.map((text) => ["+", text]));
  else lines.push(...longestCommon(midA, midB));
  return [...lines, ...a.slice(endA).map((text) => [" ", text])];
}

function longestCommon(a, b) {
  const table = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i -= 1) for (let j = b.length - 1; j >= 0; j -= 1) table[i][j] = a[i] === b[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
  const lines = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) { lines.push([" ", a[i]]); i += 1; j += 1; }
    else if (i < a.length && (j === b.length || table[i + 1][j] >= table[i][j + 1])) lines.push(["-", a[i++]]);
    else lines.push(["+", b[j++]]);
  }
  return lines;
}

function diffView(before, after) {
  const kinds = { " ": "same", "-": "removed", "+": "added" };
  return el("pre", { class: "diff", tabindex: "0" }, ...diff(before, after).map(([sign, text]) => el(sign === "-" ? "del" : sign === "+" ? "ins" : "span", { class: kinds[sign] }, `${sign} ${text}\n`)));
}
