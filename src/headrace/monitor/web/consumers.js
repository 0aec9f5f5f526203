// Consumers: the table, one consumer with the reasons why it waits, and dead letters.

import { ago, button, bytes, card, chips, consumerLink, count, duration, durationText, el, exact, gap, heading, link, note, rate, setText, span, streamLink, when } from "./dom.js";
import { change, confirmed, errorOf, form, get, inform, isAdmin, session } from "./api.js";
import { explorer } from "./messages.js";
import { PagedTable, Table } from "./tables.js";

export const consumerKey = (c) => `${c.account}/${c.stream}/${c.name}`;
const rates = new Map();

// The rate of deliveries, from the figures of the request before.
function measure(rows) {
  const now = Date.now();
  for (const c of rows) {
    const before = rates.get(consumerKey(c));
    if (before && now - before.at < 900) continue;
    const seconds = before ? (now - before.at) / 1000 : 0;
    rates.set(consumerKey(c), { at: now, delivered: c.delivered, rate: seconds ? Math.max(0, (c.delivered - before.delivered) / seconds) : 0 });
  }
  if (rates.size > 2000) rates.clear();
}

const stateOf = (c) => (c.state ? el("span", { class: c.state === "redelivering" || c.state === "paused" ? "warn" : "bad" }, c.state) : el("span", { class: "good" }, c.pending || c.ack_pending ? "working" : "idle"));

export function consumerTable(caption, query = {}, tools = []) {
  const table = new PagedTable({ caption, path: "consumers", query, sort: "-state", key: consumerKey, tools, limit: query.stream ? 10 : 50, columns: [
    ...(query.stream ? [] : [{ title: "Stream", sort: "stream", show: (c) => streamLink(c.account, c.stream) }]),
    { title: "Consumer", sort: "name", show: (c) => consumerLink(c.account, c.stream, c.name) },
    { title: "State", sort: "state", help: "What keeps the consumer from delivering", number: false, show: stateOf },
    { title: "Type", wide: true, show: (c) => c.kind },
    { title: "Filter subjects", wide: true, show: (c) => c.filters.join(", ") || "all" },
    { title: "Rate", number: true, wide: true, help: "Stream sequences delivered per second", show: (c) => rate(rates.get(consumerKey(c))?.rate ?? 0) },
    { title: "Pending", sort: "pending", number: true, help: "Not delivered yet", show: (c) => count(c.pending) },
    { title: "Ack pending", sort: "ack_pending", number: true, help: "Delivered and not acknowledged", show: (c) => count(c.ack_pending) },
    { title: "Redelivered", sort: "redelivered", number: true, wide: true, show: (c) => count(c.redelivered) },
    { title: "Ack floor", sort: "ack_floor", number: true, wide: true, help: "Sequence up to which everything is acknowledged", show: (c) => count(c.ack_floor) },
    { title: "Blocked keys", sort: "blocked_keys", number: true, wide: true, show: (c) => count(c.blocked_keys) },
    { title: "Dead letters", sort: "dead_letters", number: true, wide: true, show: (c) => count(c.dead_letters) + (c.failed_dead_letters ? ` (${count(c.failed_dead_letters)} failed)` : "") },
  ] });
  table.onRows = measure;
  return table;
}

export function consumers() {
  const table = consumerTable("Consumers, stuck ones first");
  return { title: "Consumers", nodes: [table.element], update: () => table.refresh() };
}

// ---- forms ----

const settings = (config = {}) => [
  { name: "filter_subjects", label: "Filter subjects", value: (config.filter_subjects ?? (config.filter_subject ? [config.filter_subject] : [])).join(" "), help: "Separated by spaces; empty: all" },
  { name: "ack_wait", label: "Ack wait", value: durationText(config.ack_wait ?? 30e9), help: "When an unacknowledged message is delivered again" },
  { name: "max_deliver", label: "Max deliveries", value: config.max_deliver > 0 ? config.max_deliver : "", help: "Empty: no limit" },
  { name: "max_ack_pending", label: "Max ack pending", value: config.max_ack_pending > 0 ? config.max_ack_pending : "", help: "Empty: the server's default" },
  { name: "dead_letter", label: "Dead-letter subject", value: config.dead_letter?.subject ?? "", help: "A stream must store it; empty: none" },
];

function readConsumer(values) {
  const filters = values.filter_subjects.split(/[\s,]+/).filter(Boolean);
  const number = (name) => { const text = values[name].trim(); if (text && !/^\d+$/.test(text)) throw new Error(`${name} must be a whole number`); return Number(text); };
  return {
    filter_subject: filters.length === 1 ? filters[0] : undefined, filter_subjects: filters.length > 1 ? filters : undefined,
    ack_wait: values.ack_wait.trim() ? duration(values.ack_wait) : undefined, max_deliver: number("max_deliver") || -1, max_ack_pending: number("max_ack_pending") || undefined,
    dead_letter: values.dead_letter.trim() ? { subject: values.dead_letter.trim() } : undefined,
  };
}

export async function createConsumer(account, stream) {
  const values = await form(`New consumer of ${stream}`, "A durable pull consumer.", [
    { name: "name", label: "Name", required: true }, ...settings(),
    { name: "deliver_policy", label: "Start", type: "select", options: ["all", "last", "new", "last_per_subject"], value: "all" },
    { name: "ack_policy", label: "Acknowledgements", type: "select", options: ["explicit", "all", "none"], value: "explicit" },
  ], "Create");
  if (!values) return;
  try {
    const config = { ...readConsumer(values), name: values.name, durable_name: values.name, deliver_policy: values.deliver_policy, ack_policy: values.ack_policy, replay_policy: "instant" };
    if (await change(account, `CONSUMER.CREATE.${stream}.${values.name}`, { stream_name: stream, config, action: "create" })) location.hash = `#consumer/${[account, stream, values.name].map(encodeURIComponent).join("/")}`;
  } catch (error) { await inform("Not created", error.message); }
}

async function editConsumer(account, stream, config) {
  const values = await form(`Edit ${config.name}`, "", settings(config), "Save");
  if (!values) return;
  try {
    const changed = readConsumer(values);
    const dead = changed.dead_letter && { ...config.dead_letter, ...changed.dead_letter };
    await change(account, `CONSUMER.CREATE.${stream}.${config.name}`, { stream_name: stream, config: { ...config, ...changed, dead_letter: dead }, action: "update" });
  } catch (error) { await inform("Not changed", error.message); }
}

// ---- one consumer ----

export function consumer(account, stream, name) {
  const facts = el("p");
  const labels = ["Pending", "Ack pending", "Redelivered", "Ack floor", "Delivered", "Oldest unfinished"];
  const figures = labels.map((label) => card(label));
  const reasons = el("div", { role: "status" });
  const ages = el("div", { class: "bars ages", role: "img", "aria-label": "Pending messages by age" });
  const pending = new Table("Delivered and not acknowledged, the oldest first", [
    { title: "Sequence", number: true, show: (m) => link(exact(m.seq), "message", account, stream, String(m.seq)) },
    { title: "Stored", show: (m) => (m.time ? when(m.time) : "removed from the stream") },
    { title: "Deliveries", number: true, show: (m) => exact(m.deliveries) },
    { title: "Delivered again in", number: true, show: (m) => (m.redelivery_s == null ? "–" : span(m.redelivery_s)) },
  ], "No message waits for an ack.");
  const keys = new Table("Blocked keys", [
    { title: "Key", show: (k) => k.key }, { title: "First waiting sequence", number: true, show: (k) => link(exact(k.first_seq), "message", account, stream, String(k.first_seq)) },
  ]);
  const keyed = gap(keys.element);
  const config = el("pre", { class: "config", tabindex: "0" });
  const seq = el("input", { inputmode: "numeric", placeholder: "sequence", "aria-label": "Sequence of a message", size: 12, required: true });
  const explanation = el("p", { role: "status" });
  const check = el("form", { class: "find", onsubmit: async (event) => {
    event.preventDefault();
    const found = await get("consumer", { account, stream, name, seq: seq.value.trim() });
    setText(explanation, errorOf(found) || found.message?.text || "Enter the sequence of a message.");
  } }, seq, el("button", {}, "Explain"));
  let info = null;
  let row = null;
  const pause = button("Pause 1 h", () => change(account, `CONSUMER.PAUSE.${stream}.${name}`, row?.paused ? {} : { pause_until: new Date(Date.now() + 3600e3).toISOString() }));
  const letters = el("span");
  const acts = el("p", { hidden: true, class: "acts" }, pause, button("Edit…", () => editConsumer(account, stream, info.config)),
    button("Reset…", async () => { if (await confirmed("Reset consumer", `${name} will deliver again after its ack floor; unacknowledged messages are delivered again.`, "Reset")) await change(account, `CONSUMER.RESET.${stream}.${name}`); }, { class: "danger" }),
    button("Delete…", async () => { if (await confirmed("Delete consumer", `The consumer ${name} of ${stream} and its ack state will be deleted permanently.`, "Delete") && await change(account, `CONSUMER.DELETE.${stream}.${name}`)) location.hash = `#stream/${[account, stream].map(encodeURIComponent).join("/")}`; }, { class: "danger" }));

  return { title: name, nodes: [el("p", {}, "Consumer of ", streamLink(account, stream), " ", letters), facts, reasons, el("div", { class: "cards" }, ...figures.map((each) => each.element)), acts,
    heading("Pending messages by age"), ages, heading("Was a message delivered?"), check, explanation, heading("Unacknowledged messages"), pending.element, keyed, heading("Configuration"), config],
    async update(now) {
      const found = await get("consumer", { account, stream, name });
      acts.hidden = !isAdmin() || Boolean(found.error);
      if (found.error) { setText(facts, found.error === "consumer not found" || found.error === "stream not found" ? "This consumer does not exist." : errorOf(found)); return; }
      [row, info] = [found.row, found.info];
      measure([row]);
      const c = info.config;
      chips(facts, [row.kind, ...(row.filters.length ? row.filters : ["all subjects"]), `ack ${c.ack_policy}`, `deliver ${c.deliver_policy}`, c.ack_wait ? `ack wait ${durationText(c.ack_wait)}` : "", c.max_deliver > 0 ? `max ${c.max_deliver} deliveries` : "", `${rate(rates.get(consumerKey(row))?.rate ?? 0)}`].filter(Boolean));
      showReasons(reasons, found, row);
      const limit = c.max_ack_pending > 0 ? `of at most ${count(c.max_ack_pending)}` : "no limit";
      const shown = [[count(row.pending), "not delivered yet"], [count(row.ack_pending), limit], [count(row.redelivered), "delivered more than once"], [count(row.ack_floor), "all up to here is acknowledged"], [count(row.delivered), info.delivered.last_active ? `last ${ago(info.delivered.last_active, now.server.now_ms)}` : "nothing yet"], [found.oldest ? ago(found.oldest.time, now.server.now_ms).replace(" ago", "") : "–", found.oldest ? `sequence ${exact(found.oldest.seq)}` : "everything is acknowledged"]];
      shown.forEach(([value, extra], at) => { setText(figures[at].value, value); setText(figures[at].extra, extra); });
      drawAges(ages, found.ages);
      pending.show(found.ack_pending, (m) => String(m.seq));
      keyed.hidden = !found.blocked_keys.length;
      keys.show(found.blocked_keys, (k) => k.key);
      setText(pause, row.paused ? "Resume" : "Pause 1 h");
      setText(config, JSON.stringify(c, null, 2));
      const target = c.dead_letter ? `${account}/${stream}/${name}` : "";
      if (letters.dataset.shown !== target) { letters.dataset.shown = target; letters.replaceChildren(...(target ? ["· ", link("dead letters", "letters", account, stream, name)] : [])); }
    } };
}

function showReasons(element, found, row) {
  const text = JSON.stringify([found.reasons, row.pending + row.ack_pending > 0]);
  if (element.dataset.shown === text) return;
  element.dataset.shown = text;
  if (!found.reasons.length) element.replaceChildren(el("p", { class: "good" }, row.pending || row.ack_pending ? "It delivers: nothing keeps it from its messages." : "Nothing waits: every message is acknowledged."));
  else element.replaceChildren(...found.reasons.map((each) => el("div", { class: "reason" }, el("strong", {}, each.state), el("p", {}, each.text), el("p", { class: "quiet" }, each.advice))));
}

function drawAges(element, ages) {
  const most = Math.max(1, ...ages.map((each) => each.count));
  const label = (each) => (each.below_s == null ? "older" : `< ${span(each.below_s).replace(" 0 min", "").replace(" 0 h", "")}`);
  element.setAttribute("aria-label", `Pending messages by age: ${ages.map((each) => `${label(each)}: ${each.count}`).join(", ")}`);
  element.replaceChildren(...ages.map((each) => {
    const bar = el("i", { class: "bar" });
    bar.style.height = `${Math.max(each.count ? 2 : 0, (100 * each.count) / most)}%`;
    return el("div", { class: "slot" }, el("b", {}, count(each.count)), el("div", { class: "rise" }, bar), el("small", {}, label(each)));
  }));
}

// ---- one message, and the consumers that it concerns ----

export function message(account, stream, seq) {
  const messages = explorer(account, stream);
  let drawn = false;
  return { title: `Message ${seq} of ${stream}`, nodes: [el("p", {}, streamLink(account, stream)), messages.element], update() { if (!drawn) { drawn = true; messages.browse({ seq }); } messages.poll(); } };
}

// ---- dead letters ----

export function deadletters() {
  const table = new PagedTable({ caption: "Consumers with dead letters", path: "dead_letters", sort: "-dead_letters", key: consumerKey, empty: "No consumer has dead letters configured.", columns: [
    { title: "Consumer", sort: "name", show: (d) => link(`${d.stream} › ${d.name}`, "letters", d.account, d.stream, d.name) },
    { title: "Subject", show: (d) => d.subject },
    { title: "Stored in", show: (d) => (d.target ? streamLink(d.account, d.target) : "no stream") },
    { title: "Stored", number: true, help: "Messages that the stream has on this subject", show: (d) => count(d.stored) },
    { title: "Since the start", sort: "dead_letters", number: true, show: (d) => count(d.published) },
    { title: "Failed", number: true, help: "Attempts to publish a dead letter that failed", show: (d) => count(d.failed) },
  ] });
  return { title: "Dead letters", nodes: [table.element], update: () => table.refresh() };
}

export function letters(account, stream, name) {
  const box = el("div");
  const status = el("p", { role: "status", class: "quiet" });
  let target = null;
  let browser = null;
  const header = (m, wanted) => m.headers?.find(([key]) => key === wanted)?.[1];
  const isOurs = (m) => header(m, "Nats-DL-Consumer") === name && header(m, "Nats-DL-Stream") === stream;
  const redrive = (m) => change(account, `STREAM.MSG.REDRIVE.${target.target}`, { seq: m.seq });

  async function all() {
    if (!await confirmed("Redrive all", `All dead letters of ${name} will be published to their original subjects, and deleted here.`, "Redrive all")) return;
    let [done, seq] = [0, 1];
    while (seq) {
      const answer = await get("messages", { account, stream: target.target, subject: target.subject, seq, order: "newer", limit: 100 });
      if (answer.error) return inform("Stopped", errorOf(answer));
      for (const m of answer.messages.filter(isOurs)) {
        if (!await redrive(m)) return;
        setText(status, `${exact(done += 1)} redriven`);
      }
      seq = answer.newer;
    }
    setText(status, `${exact(done)} dead letters redriven`);
    browser.browse();
  }

  const acts = el("p", { hidden: true, class: "acts" }, button("Redrive all…", all));
  return { title: `Dead letters of ${name}`, nodes: [el("p", {}, "Consumer ", consumerLink(account, stream, name), " of ", streamLink(account, stream)), acts, status, box],
    async update() {
      acts.hidden = !isAdmin() || !target?.target;
      browser?.poll();
      if (target) return;
      const answer = await get("dead_letters", { account, stream, search: name, limit: 200 });
      target = answer.rows?.find((each) => each.name === name && each.stream === stream) ?? null;
      if (!target?.target) { box.replaceChildren(note(target ? `No stream stores ${target.subject}.` : "This consumer has no dead letters configured.")); return; }
      browser = explorer(account, target.target, { subject: target.subject, extra: (m) => [
        el("span", { class: "quiet" }, isOurs(m) ? `${header(m, "Nats-DL-Reason") ?? "given up"} after ${header(m, "Nats-DL-Deliveries") ?? "?"} deliveries, was ${header(m, "Nats-DL-Subject") ?? "?"}` : `of consumer ${header(m, "Nats-DL-Consumer") ?? "?"}`),
        isAdmin() && isOurs(m) ? button("Redrive", async () => { if (await redrive(m)) { setText(status, `Message ${m.seq} was published to ${header(m, "Nats-DL-Subject")} again`); browser.browse(); } }) : null] });
      box.replaceChildren(browser.element);
      browser.browse();
    } };
}
