// Streams: the table, one stream, where a subject goes, and the comparison of two streams.

import { button, bytes, card, chips, count, duration, durationText, el, exact, gap, heading, link, note, rate, setText, span, streamLink } from "./dom.js";
import { change, confirmed, errorOf, form, get, inform, isAdmin } from "./api.js";
import { consumerTable, createConsumer } from "./consumers.js";
import { explorer, publishForm } from "./messages.js";
import { STREAM_COLUMNS, streamKey } from "./overview.js";
import { scheduleTable } from "./schedules.js";
import { PagedTable, Table } from "./tables.js";

export function streams() {
  const create = button("New stream…", () => createStream(), { hidden: true });
  const publishing = button("Publish…", () => publishForm("$G"), { hidden: true });
  const table = new PagedTable({ caption: "Streams", columns: STREAM_COLUMNS, path: "streams", sort: "name", key: streamKey, tools: [create, publishing, el("a", { href: "#compare" }, "Compare two")] });
  return { title: "Streams", nodes: [table.element, heading("Where does a subject go?"), subjectCheck("$G")], update() { create.hidden = publishing.hidden = !isAdmin(); table.refresh(); } };
}

function subjectCheck(account) {
  const subject = el("input", { placeholder: "subject, e.g. orders.eu.1", "aria-label": "Subject to check", size: 28, spellcheck: "false" });
  const result = el("div", { role: "status" });
  return el("div", {}, el("form", { class: "find", onsubmit: async (event) => {
    event.preventDefault();
    const found = await get("route", { account, subject: subject.value.trim() });
    if (found.error) { result.replaceChildren(note(errorOf(found))); return; }
    const consumers = found.consumers.flatMap((c) => [" ", link(c.state ? `${c.name} (${c.state})` : c.name, "consumer", account, found.stream, c.name)]);
    result.replaceChildren(
      el("p", {}, found.stream ? "Stored by the stream " : "No stream stores it", found.stream ? streamLink(account, found.stream) : "."),
      found.stream ? el("p", {}, found.consumer_count ? `Selected by ${exact(found.consumer_count)} ${found.consumer_count === 1 ? "consumer" : "consumers"}:` : "No consumer selects it.", ...consumers) : null ?? "",
      el("p", {}, `Delivered at once to ${exact(found.subscribers)} subscribers and ${exact(found.queue_groups)} queue groups.`));
  } }, subject, el("button", {}, "Check")), result);
}

// ---- forms ----

const RETENTION = ["limits", "interest", "workqueue"];

const LIMITS = [
  ["max_age", "Max age", "Such as 24h or 7d; empty: no limit"], ["max_bytes", "Max bytes", "Empty: no limit"],
  ["max_msgs", "Max messages", "Empty: no limit"], ["max_msgs_per_subject", "Max messages per subject", "Empty: no limit"],
];

const limitFields = (config = {}) => LIMITS.map(([name, label, help]) => ({ name, label, help, value: name === "max_age" ? durationText(config.max_age ?? 0) : config[name] > 0 ? config[name] : "" }));

function readStream(values) {
  const number = (name) => { const text = values[name].trim(); if (text && !/^\d+$/.test(text)) throw new Error(`${name} must be a whole number`); return text ? Number(text) : -1; };
  return {
    description: values.description || undefined, subjects: values.subjects.split(/[\s,]+/).filter(Boolean),
    max_age: values.max_age.trim() ? duration(values.max_age) : 0, max_bytes: number("max_bytes"), max_msgs: number("max_msgs"), max_msgs_per_subject: number("max_msgs_per_subject"),
    allow_msg_ttl: values.allow_msg_ttl, allow_msg_schedules: values.allow_msg_schedules,
  };
}

const flagFields = (config = {}) => [
  { name: "allow_msg_ttl", label: "Allow message TTLs", type: "checkbox", value: config.allow_msg_ttl },
  { name: "allow_msg_schedules", label: "Allow schedules", type: "checkbox", value: config.allow_msg_schedules },
];

async function createStream() {
  const values = await form("New stream", "", [
    { name: "name", label: "Name", required: true }, { name: "subjects", label: "Subjects", required: true, help: "Separated by spaces, e.g. orders.>" },
    { name: "description", label: "Description" }, { name: "retention", label: "Retention", type: "select", options: RETENTION, value: "limits" },
    { name: "storage", label: "Storage", type: "select", options: ["file", "memory"], value: "file" }, ...limitFields(), ...flagFields(),
  ], "Create");
  if (!values) return;
  try {
    const made = await change("$G", `STREAM.CREATE.${values.name}`, { name: values.name, retention: values.retention, storage: values.storage, num_replicas: 1, ...readStream(values) });
    if (made) location.hash = `#stream/$G/${encodeURIComponent(values.name)}`;
  } catch (error) { await inform("Not created", error.message); }
}

async function editStream(account, config) {
  const values = await form(`Edit ${config.name}`, "A lower limit removes messages.", [
    { name: "subjects", label: "Subjects", value: (config.subjects ?? []).join(" ") }, { name: "description", label: "Description", value: config.description ?? "" }, ...limitFields(config), ...flagFields(config),
  ], "Save");
  if (!values) return;
  try { await change(account, `STREAM.UPDATE.${config.name}`, { ...config, ...readStream(values) }); } catch (error) { await inform("Not changed", error.message); }
}

async function purge(account, name, subject = "") {
  const values = await form("Purge stream", `Messages of ${name} will be removed permanently.`, [
    { name: "filter", label: "Subject", value: subject, help: "Empty: all subjects" }, { name: "keep", label: "Keep the newest", value: "", help: "Number of messages that stay" },
  ], "Purge");
  if (!values) return;
  const body = { ...(values.filter.trim() ? { filter: values.filter.trim() } : {}), ...(Number(values.keep) ? { keep: Number(values.keep) } : {}) };
  const answer = await change(account, `STREAM.PURGE.${name}`, body);
  if (answer) await inform("Purged", `${exact(answer.purged)} messages removed.`);
}

// ---- one stream ----

export function stream(account, name, subject = "") {
  const facts = el("p");
  const labels = ["Messages", "Size", "Subjects", "Rate", "Sequences", "Growth"];
  const figures = labels.map((label) => card(label));
  const messages = explorer(account, name, { subject });
  const consumers = consumerTable(`Consumers of ${name}`, { account, stream: name });
  const subjects = new PagedTable({ caption: `Subjects of ${name}`, path: "subjects", query: { account, stream: name }, sort: "-messages", limit: 10, key: (s) => s.subject, columns: [
    { title: "Subject", sort: "subject", show: (s) => el("a", { href: `#stream/${[account, name, s.subject].map(encodeURIComponent).join("/")}` }, s.subject) },
    { title: "Messages", sort: "messages", number: true, show: (s) => count(s.messages) },
  ] });
  const schedules = scheduleTable(account, name);
  const scheduled = el("div", { hidden: true }, heading("Schedules"), schedules.element);
  let config = null;
  const acts = el("p", { hidden: true, class: "acts" },
    button("Publish…", () => publishForm(account, null, config?.subjects?.[0] ?? "")), button("New consumer…", () => createConsumer(account, name)),
    button("Edit…", () => editStream(account, config)), button("Purge…", () => purge(account, name, subject), { class: "danger" }),
    button("Delete…", async () => { if (await confirmed("Delete stream", `The stream ${name}, its messages and its consumers will be deleted permanently.`, "Delete") && await change(account, `STREAM.DELETE.${name}`)) location.hash = "#streams"; }, { class: "danger" }));
  let drawn = false;
  let turn = 0;

  return { title: name, nodes: [facts, el("div", { class: "cards" }, ...figures.map((each) => each.element)), acts, el("p", {}, link("Compare with another stream", "compare", account, name)), el("details", { class: "fold" }, el("summary", {}, "Subjects"), subjects.element), el("details", { class: "fold", open: true }, el("summary", {}, "Consumers"), consumers.element), scheduled, heading("Messages"), messages.element],
    async update() {
      const found = await get("stream", { account, stream: name });
      acts.hidden = !isAdmin() || Boolean(found.error);
      if (found.error) { setText(facts, found.error === "stream not found" ? "This stream does not exist." : errorOf(found)); return; }
      const s = found.row;
      config = found.info.config;
      chips(facts, [...s.subjects, `${s.retention} retention`, s.storage, s.ttl ? "message TTLs" : "", s.max_age_s ? `max age ${span(s.max_age_s)}` : "", config.max_bytes > 0 ? `max ${bytes(config.max_bytes)}` : "", config.max_msgs > 0 ? `max ${count(config.max_msgs)} messages` : "", config.max_msgs_per_subject > 0 ? `max ${count(config.max_msgs_per_subject)} per subject` : "", s.marker_ttl_s ? `markers ${span(s.marker_ttl_s)}` : "", config.description ?? ""].filter(Boolean));
      [count(s.messages), bytes(s.bytes), count(s.num_subjects), rate(s.rate), `${count(s.first_seq)} – ${count(s.last_seq)}`, `${bytes(s.growth)}/s`].forEach((text, at) => setText(figures[at].value, text));
      setText(figures[4].extra, s.expired ? `${count(s.expired)} expired` : "");
      scheduled.hidden = !config.allow_msg_schedules;
      if (!drawn) { drawn = true; messages.browse(); }
      messages.poll();
      if (turn++ % 2) return;
      consumers.refresh();
      if (turn % 4 === 1) subjects.refresh();
      if (!scheduled.hidden) schedules.refresh();
    } };
}

// ---- comparison ----

export function compare(account = "$G", left = "", right = "") {
  const inputs = [left, right].map((value, at) => el("input", { value, placeholder: at ? "other stream" : "stream", "aria-label": at ? "Second stream" : "First stream", required: true, spellcheck: "false" }));
  const result = el("div", { "aria-live": "polite" });
  const text = (value) => (value === undefined || value === null ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value));

  const differences = (caption, rows) => {
    const table = new Table(caption, [{ title: "Name", show: (d) => d.name }, { title: inputs[0].value, show: (d) => text(d.left) }, { title: inputs[1].value, show: (d) => text(d.right) }], "No difference.");
    table.show(rows, (d) => d.name);
    return gap(table.element);
  };

  async function run() {
    result.replaceChildren(note("Comparing…"));
    const found = await get("compare", { account, stream: inputs[0].value.trim(), other: inputs[1].value.trim() });
    if (found.error) { result.replaceChildren(note(errorOf(found))); return; }
    const subjects = new Table("Subjects", [
      { title: "Subject", show: (d) => d.subject },
      { title: `Messages in ${inputs[0].value}`, number: true, show: (d) => exact(d.left) },
      { title: `Messages in ${inputs[1].value}`, number: true, show: (d) => exact(d.right) },
      { title: "Newest message", show: (d) => (d.newest_differs ? "different" : "equal") },
    ], "No difference.");
    subjects.show(found.subjects, (d) => d.subject);
    const compared = `${exact(found.compared_subjects)} subjects compared${found.is_complete ? "" : " (the limit)"}`;
    result.replaceChildren(el("p", { role: "status", class: found.different_subjects ? "warn" : "good" }, found.different_subjects ? `${exact(found.different_subjects)} subjects differ; ${compared}.` : `Same subjects, counts and newest messages; ${compared}.`),
      gap(subjects.element), differences("Configuration", found.config), differences("State", found.state));
  }

  const find = el("form", { class: "find", onsubmit: (event) => { event.preventDefault(); run(); } }, inputs[0], " with ", inputs[1], el("button", { class: "primary" }, "Compare"));
  if (left && right) run();
  return { title: "Compare two streams", nodes: [el("p", { class: "quiet" }, "Compares configuration, figures, and for each subject the number of messages and the payload of the newest one."), find, result], update() {} };
}
