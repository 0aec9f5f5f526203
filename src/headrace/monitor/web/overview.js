// The overview, recent activity, mirrors and sources, claims, connections, disk, and the legend.

import { bytes, card, chips, clock, count, el, exact, gap, heading, micros, note, rate, setText, span, streamLink } from "./dom.js";
import { ask, get } from "./api.js";
import { Histogram, LineChart } from "./charts.js";
import { PagedTable, Table } from "./tables.js";

export const streamKey = (s) => `${s.account}/${s.name}`;

export const STREAM_COLUMNS = [
  { title: "Stream", sort: "name", show: (s) => streamLink(s.account, s.name) },
  { title: "Subjects", wide: true, show: (s) => s.subjects.slice(0, 4).join(", ") + (s.subjects.length > 4 ? ", …" : "") },
  { title: "Rate", sort: "rate", number: true, help: "Messages stored per second", show: (s) => rate(s.rate) },
  { title: "Messages", sort: "messages", number: true, show: (s) => count(s.messages) },
  { title: "Size", sort: "bytes", number: true, help: "Bytes of the messages that the stream has", show: (s) => bytes(s.bytes) },
  { title: "Subject count", sort: "subjects", number: true, wide: true, show: (s) => count(s.num_subjects) },
  { title: "Consumers", sort: "consumers", number: true, show: (s) => count(s.consumers) },
  { title: "Retention", wide: true, help: "When messages are removed", show: (s) => s.retention + (s.storage === "memory" ? ", memory" : "") },
];

// Some cards with figures of the whole server; `show` returns value and explanation.
const CARDS = [
  ["Messages in", (now) => [rate(now.rates.in), `${count(now.server.in_msgs)} since start`]],
  ["Messages out", (now) => [rate(now.rates.out), `${count(now.server.out_msgs)} since start`]],
  ["Commit latency, p99", ({ commits: [first] }) => (first ? [micros(first.p99_us), `median ${micros(first.p50_us)}, ${count(first.count)} commits`] : ["–", "JetStream is off"])],
  ["Streams", (now) => [count(now.totals.streams), `${count(now.totals.consumers)} ${now.totals.consumers === 1 ? "consumer" : "consumers"}`]],
  ["Connections", (now) => [count(now.server.connections), `subscriptions ${count(now.server.subscriptions)}, leafnodes ${now.server.leafnodes}`]],
  ["Memory", (now) => [bytes(now.server.memory), `up ${span(now.server.uptime_s)}`]],
  ["Stored", (now) => [bytes(now.stores.reduce((sum, s) => sum + s.stored_bytes, 0)), now.stores.length ? `${bytes(now.stores[0].free)} free${now.stores.some((s) => s.full) ? ", the disk is full" : ""}` : ""]],
  ["Event loop stalls", ({ server: { event_loop: loop } }) => [count(loop.stalls), loop.stalls ? `longest ${count(loop.longest_ms)} ms, last: ${loop.last_operation}` : "no turn above 50 ms"]],
];

export function overview() {
  const cards = CARDS.map(([label]) => card(label));
  const charts = [
    new LineChart("Messages per second", ["in", "out"], rate), new LineChart("Commit latency", ["p50", "p99"], micros),
    new LineChart("Memory", [""], bytes), new LineChart("Stored on disk", [""], bytes),
  ];
  const fields = [["in_msgs", "out_msgs"], ["commit_p50_us", "commit_p99_us"], ["memory"], ["stored_bytes"]];
  const histogram = new Histogram("Commit latency since the start");
  const trouble = el("div", { role: "alert" });
  const stuck = el("p", { role: "status" });
  const top = new PagedTable({ caption: "Busiest streams", columns: STREAM_COLUMNS.map((each) => ({ ...each, sort: null })), path: "streams", sort: "-rate", key: streamKey, limit: 8, search: false });
  let turn = 0;

  async function updateSlowly() {
    if (turn++ % 3) return;
    const [history, consumers] = await Promise.all([get("history"), get("consumers", { sort: "-state", limit: 1 })]);
    if (!history.error) charts.forEach((chart, at) => chart.draw(fields[at].map((name) => history[name]), history.samples_max));
    const first = consumers.rows?.[0];
    const isStuck = first?.state && first.state !== "redelivering";
    stuck.replaceChildren(...(isStuck ? ["Stuck consumers: ", el("a", { href: "#consumers", class: "warn" }, `${first.stream} › ${first.name}: ${first.state}`), " and perhaps others"] : []));
  }

  return { title: "Overview", nodes: [trouble, stuck, el("div", { class: "cards four" }, ...cards.map((each) => each.element)), heading("Last ten minutes"), el("div", { class: "charts" }, ...charts.map((each) => each.element), histogram.element), gap(top.element)],
    update(now) {
      cards.forEach((each, at) => { const [value, extra] = CARDS[at][1](now); setText(each.value, value); setText(each.extra, extra); });
      const problems = [now.health.error, ...now.complaints].filter(Boolean);
      if (trouble.dataset.shown !== problems.join("\n")) { trouble.dataset.shown = problems.join("\n"); trouble.replaceChildren(...problems.map((text) => el("p", { class: "bad" }, text))); }
      if (now.commits[0]) histogram.draw(now.commits[0].bounds_us, now.commits[0].counts);
      top.refresh();
      updateSlowly();
    } };
}

export function activity() {
  const table = new Table("Expired messages, delete markers and batches, newest first", [
    { title: "Time", show: (e) => clock(e.time_ns) },
    { title: "Event", show: (e) => ({ expired: "expired", marker: "delete marker", batch: "batch committed", abandoned: "batch abandoned" })[e.kind] ?? e.kind },
    { title: "Stream", show: (e) => streamLink(e.account, e.stream) },
    { title: "Details", show: (e) => e.text },
  ]);
  const totals = new PagedTable({ caption: "Streams whose messages expire, since the start", path: "streams", query: { kind: "expiring" }, sort: "-expired", key: streamKey, columns: [
    { title: "Stream", sort: "name", show: (s) => streamLink(s.account, s.name) },
    { title: "Max age", show: (s) => (s.max_age_s ? span(s.max_age_s) : "none") },
    { title: "Message TTLs", wide: true, show: (s) => (s.ttl ? "allowed" : "no") },
    { title: "Expired", sort: "expired", number: true, show: (s) => count(s.expired) },
    { title: "Delete markers", sort: "markers", number: true, show: (s) => count(s.markers) },
    { title: "Batches", sort: "batches", number: true, show: (s) => count(s.batches) },
    { title: "Open batches", number: true, show: (s) => s.batches_open },
  ] });
  return { title: "Activity", nodes: [table.element, gap(totals.element)], update(now) {
    table.show([...now.events].sort((a, b) => b.time_ns - a.time_ns || b.number - a.number), (e) => `${e.account}/${e.number}`);
    totals.refresh();
  } };
}

export function sources() {
  const upstreams = (s, show) => (s.sources.length ? s.sources.map(show).join("; ") : "–");
  const table = new PagedTable({ caption: "Mirrors and sources", path: "streams", query: { kind: "sourced" }, sort: "name", key: streamKey, columns: [
    { title: "Stream", sort: "name", show: (s) => streamLink(s.account, s.name) },
    { title: "Type", show: (s) => [...new Set(s.sources.map((o) => o.kind))].join(", ") },
    { title: "Upstream", show: (s) => upstreams(s, (o) => o.name) },
    { title: "Lag", number: true, help: "Messages that the upstream has and this stream lacks", show: (s) => upstreams(s, (o) => count(o.lag)) },
    { title: "Last active", number: true, show: (s) => upstreams(s, (o) => (o.active_s == null ? "never" : `${span(o.active_s)} ago`)) },
    { title: "Error", show: (s) => upstreams(s, (o) => o.error || "none") },
  ] });
  const leafs = new Table("Leafnode connections", [
    { title: "Name", show: (l) => l.name || `#${l.id}` },
    { title: "Account", show: (l) => l.account },
    { title: "Address", show: (l) => `${l.ip}:${l.port}` },
    { title: "In", number: true, show: (l) => count(l.in_msgs) },
    { title: "Out", number: true, show: (l) => count(l.out_msgs) },
    { title: "Subscriptions", number: true, show: (l) => l.subscriptions },
  ]);
  return { title: "Mirrors and sources", nodes: [table.element, gap(leafs.element)], update(now) { table.refresh(); leafs.show(now.leafs, (l) => String(l.id)); } };
}

export function claims() {
  const events = ["created", "retrieved", "released", "deleted", "expired", "failed", "collected"];
  const table = new PagedTable({ caption: "Claims by namespace, with the events of the audit trail", path: "claims", sort: "namespace", key: (c) => `${c.account}/${c.namespace}`, empty: "No claims: this server has no stream CLAIMS.", columns: [
    { title: "Namespace", sort: "namespace", show: (c) => el("a", { href: `#stream/${encodeURIComponent(c.account)}/CLAIMS/${encodeURIComponent(`$CLAIMS.claim.${c.namespace}.*`)}` }, c.namespace) },
    { title: "Live", number: true, show: (c) => count(c.live) },
    ...events.map((event) => ({ title: event, number: true, wide: event !== "failed" && event !== "expired", show: (c) => count(c.events[event] ?? 0) })),
  ] });
  let turn = 0;
  return { title: "Claims", nodes: [table.element], update() { if (turn++ % 5 === 0) table.refresh(); } };
}

export function connections() {
  const table = new PagedTable({ caption: "Connections", path: "connections", sort: "-messages", key: (c) => String(c.cid), columns: [
    { title: "Client", sort: "name", show: (c) => `#${c.cid} ${c.name}` },
    { title: "Address", show: (c) => c.address },
    { title: "Library", wide: true, show: (c) => `${c.lang} ${c.version}` },
    { title: "Account", wide: true, show: (c) => c.account },
    { title: "In", sort: "in_msgs", number: true, help: "Messages from the client", show: (c) => count(c.in_msgs) },
    { title: "Out", sort: "out_msgs", number: true, help: "Messages to the client", show: (c) => count(c.out_msgs) },
    { title: "Subscriptions", sort: "subscriptions", number: true, show: (c) => count(c.subscriptions) },
    { title: "Pending", sort: "pending", number: true, help: "Bytes that the client has not read yet", show: (c) => bytes(c.pending) },
  ] });
  return { title: "Connections", nodes: [table.element], update: () => table.refresh() };
}

// ---- disk, archive and tables ----

const readable = (value) => (value == null ? "–" : typeof value === "object" ? JSON.stringify(value) : typeof value === "number" ? exact(value) : String(value));

function properties(caption, rows) {
  const table = new Table(caption, [{ title: "Name", show: ([name]) => name.replaceAll("_", " ") }, { title: "Value", show: ([, value]) => value }]);
  table.show(rows, ([name]) => name);
  return table.element;
}

export function disk() {
  const cards = ["Free", "Stored", "Growth", "Full in"].map((label) => card(label));
  const chart = new LineChart("Stored on disk", [""], bytes);
  const warnings = el("div", { role: "status" });
  const table = new PagedTable({ caption: "Streams by size", path: "streams", sort: "-bytes", key: streamKey, columns: [
    STREAM_COLUMNS[0],
    { title: "Size", sort: "bytes", number: true, show: (s) => bytes(s.bytes) },
    { title: "Growth", sort: "growth", number: true, help: "Bytes per second, in the last seconds", show: (s) => `${bytes(s.growth)}/s` },
    { title: "Messages", sort: "messages", number: true, show: (s) => count(s.messages) },
    { title: "Limit", wide: true, help: "What keeps the stream from growing", show: (s) => limitOf(s) },
  ] });
  const archive = el("div");
  const tables = el("div");
  let turn = 0;

  async function updateSlowly(now) {
    if (turn++ % 3) return;
    const history = await get("history");
    if (!history.error && history.stored_bytes.length) {
      chart.draw([history.stored_bytes], history.samples_max);
      const seconds = (history.time_ms.at(-1) - history.time_ms[0]) / 1000;
      const growth = seconds ? (history.stored_bytes.at(-1) - history.stored_bytes[0]) / seconds : 0;
      setText(cards[2].value, seconds ? `${bytes(growth)}/s` : "–");
      setText(cards[2].extra, seconds ? `in the last ${span(seconds)}` : "collecting…");
      setText(cards[3].value, growth > 0 && now.stores.length ? span(now.stores[0].free / growth) : "–");
      setText(cards[3].extra, growth > 0 ? "at this growth" : "does not grow");
    }
    const varz = await fetch("/varz", { cache: "no-store" }).then((answer) => answer.json()).catch(() => ({}));
    const found = Array.isArray(varz.tables) ? varz.tables : varz.tables ? Object.entries(varz.tables).map(([name, each]) => (typeof each === "object" ? { name, ...each } : { name, value: each })) : [];
    tables.replaceChildren(heading("Tables"), ...(found.length ? found.map((each, at) => properties(`Table ${each.name ?? each.stream ?? at + 1}`, Object.entries(each).map(([name, value]) => [name, readable(value)]))) : [note("This server writes no tables.")]));
  }

  return { title: "Disk, archive and tables", nodes: [warnings, el("div", { class: "cards" }, ...cards.map((each) => each.element)), el("div", { class: "charts" }, chart.element), gap(table.element), archive, tables],
    update(now) {
      setText(cards[0].value, now.stores.length ? bytes(now.stores[0].free) : "–");
      setText(cards[1].value, bytes(now.stores.reduce((sum, s) => sum + s.stored_bytes, 0)));
      setText(cards[1].extra, `${exact(now.totals.streams)} streams`);
      const problems = [...now.stores.flatMap((s) => [s.full ? "The disk is full: nothing is stored until space is freed." : "", s.poisoned, ...s.damage]), now.archive?.warning].filter(Boolean);
      chips(warnings, problems);
      const a = now.archive;
      const rows = a && [["Behind", `${span(a.lag_s)}, ${bytes(a.lag_bytes)}, ${exact(a.lag_groups)} groups`], ["Newest group", exact(a.group)], ["Epoch", exact(a.epoch)], ["Bases since the start", exact(a.bases)], ["Age of the newest base", span(a.base_age_s)], ["Sent since the start", bytes(a.bytes)], ["Error", a.error || "none"]];
      const text = JSON.stringify(rows);
      if (archive.dataset.shown !== text) { archive.dataset.shown = text; archive.replaceChildren(heading("Archive"), rows ? properties("Archive in an object store", rows) : note("This server has no archive.")); }
      table.refresh();
      updateSlowly(now);
    } };
}

const limitOf = (s) => [s.max_bytes > 0 ? bytes(s.max_bytes) : "", s.max_msgs > 0 ? `${count(s.max_msgs)} messages` : "", s.max_age_s ? `max age ${span(s.max_age_s)}` : "", s.retention !== "limits" ? s.retention : ""].filter(Boolean).join(", ") || "none";

// ---- legend ----

const TERMS = [
  ["Stream", "Stored messages of one or more subjects, in the order of their sequences."],
  ["Subject", "Name that a message is published to: words separated by dots. In filters, * matches one word and > the rest."],
  ["Sequence", "Number of a message in its stream. It is never used again."],
  ["Time", "In the time zone of the browser, as in the fields for times; files that the page exports have UTC."],
  ["Retention", "When a stream removes messages: limits (at its limits), interest (after all consumers acknowledged), workqueue (after one consumer acknowledged)."],
  ["Consumer", "Position in a stream, with the state of its acknowledgements. A pull consumer delivers when a client requests messages; a push consumer delivers to a subject."],
  ["Pending", "Messages that the consumer selects and has not delivered yet."],
  ["Ack pending", "Messages delivered and not acknowledged. At max_ack_pending the consumer stops delivering."],
  ["Redelivered", "Messages delivered more than once and not acknowledged."],
  ["Ack floor", "Sequence up to which everything is acknowledged."],
  ["Waiting pulls", "Requests of clients that wait for messages. With none, a pull consumer delivers nothing."],
  ["Blocked key", "Key of a consumer with order per key that has messages waiting for the ack of an earlier one."],
  ["Dead letter", "Message that a consumer gave up, stored in another stream. Redrive publishes it to its original subject again."],
  ["Bucket", "Stream with a naming convention for keys: KV_<bucket>. The last message of a key is its value, its sequence the revision."],
  ["Delete marker", "Message that records that the last message of a subject expired or was removed."],
  ["Mirror, source", "Stream that copies one other stream, or several of them, from this server or another one."],
  ["Lag", "Messages that the upstream has and the copy lacks."],
  ["Schedule", "Stored message that says when, and to which subject, a copy of it is published."],
  ["Claim", "Reference to a large payload in an object store, with a record here."],
  ["Commit latency", "Time to write and sync a group of messages. Acknowledgements are sent after it."],
  ["Event loop stall", "Turn of the server's event loop above 50 ms, in which all clients waited."],
];

export function legend() {
  const keys = [["Tab, Shift+Tab", "next and previous control"], ["Enter", "opens a link, sorts by a column"], ["/", "goes to the search field"], ["Arrow keys", "scroll a table that has the focus"], ["Esc", "closes a dialog"]];
  return { title: "Legend", nodes: [el("dl", { class: "terms" }, ...TERMS.flatMap(([term, text]) => [el("dt", {}, term), el("dd", {}, text)])), heading("Keyboard"), el("dl", { class: "terms" }, ...keys.flatMap(([key, text]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, text)]))], update() {} };
}
