// The web page of a server. It polls the overview once a second. Message contents are only ever set as text, not as HTML.

const EVERY_MS = 1000;
const SAMPLES = 120;
const state = { now: null, before: null, rates: new Map(), token: "", paused: false, view: null, history: { in: [], out: [], stored: [] } };

// ---- elements ----

function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const count = (n) => (Math.abs(n) < 100000 ? whole.format(n) : short.format(n));
const rate = (n) => (n < 10 && n > 0 ? n.toFixed(1) : count(n)) + "/s";

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (n >= 1024 && at < units.length - 1) [n, at] = [n / 1024, at + 1];
  return `${at && n < 100 ? n.toFixed(1) : Math.round(n)} ${units[at]}`;
}

function span(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

const micros = (us) => (us ? (us < 1000 ? `${us} µs` : `${(us / 1000).toFixed(us < 10000 ? 1 : 0)} ms`) : "–");
const clock = (ns) => new Date(ns / 1e6).toLocaleTimeString();

// ---- tables that keep their rows, so that focus and selection survive an update ----

class Table {
  constructor(caption, columns) {
    this.columns = columns;
    this.rows = new Map();
    const heads = columns.map((c) => el("th", { scope: "col", class: names(c) }, c.title));
    this.body = el("tbody");
    this.empty = el("p", { class: "empty" }, "None.");
    this.table = el("table", {}, el("caption", {}, caption), el("thead", {}, el("tr", {}, ...heads)), this.body);
    this.element = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, this.table, this.empty);
  }

  show(items, key) {
    const seen = new Set();
    items.forEach((item, at) => {
      const name = key(item);
      seen.add(name);
      let row = this.rows.get(name);
      if (!row) {
        row = el("tr", { class: "fresh" }, ...this.columns.map((c) => el("td", { class: names(c) })));
        this.rows.set(name, row);
      }
      if (this.body.children[at] !== row) this.body.insertBefore(row, this.body.children[at] ?? null);
      this.columns.forEach((column, place) => fill(row.children[place], column.show(item)));
    });
    for (const [name, row] of this.rows) {
      if (!seen.has(name)) { row.remove(); this.rows.delete(name); }
    }
    this.empty.hidden = items.length > 0;
    this.table.hidden = items.length === 0;
  }
}

const names = (column) => [column.number ? "number" : "text", column.wide ? "wide" : ""].join(" ").trim();

function fill(cell, value) {
  if (value instanceof Node) {
    if (!cell.firstChild || cell.firstChild.textContent !== value.textContent || value.tagName !== "A") cell.replaceChildren(value);
  } else say(cell, String(value));
}

// ---- rates between two samples ----

function perSecond(name, value, seconds) {
  const was = state.rates.get(name);
  const now = was && seconds > 0 ? Math.max(0, (value - was.value) / seconds) : 0;
  state.rates.set(name, { value, rate: was ? now : 0 });
}
const rateOf = (name) => state.rates.get(name)?.rate ?? 0;

function measure(now) {
  const seconds = state.before ? (now.server.now_ms - state.before.server.now_ms) / 1000 : 0;
  perSecond("in", now.server.in_msgs, seconds);
  perSecond("out", now.server.out_msgs, seconds);
  let stored = 0;
  for (const stream of now.streams) {
    perSecond(`stream/${stream.account}/${stream.name}`, stream.last_seq, seconds);
    stored += rateOf(`stream/${stream.account}/${stream.name}`);
  }
  for (const c of now.consumers) perSecond(`consumer/${c.account}/${c.stream}/${c.name}`, c.delivered, seconds);
  for (const [name, value] of [["in", rateOf("in")], ["out", rateOf("out")], ["stored", stored]]) {
    state.history[name].push(value);
    if (state.history[name].length > SAMPLES) state.history[name].shift();
  }
}

// ---- views ----

function card(label) {
  const value = el("div", { class: "value" }, "–");
  const extra = el("div", { class: "label" });
  return { element: el("div", { class: "card" }, el("div", { class: "label" }, label), value, extra), value, extra };
}

function sparkline(label) {
  const shape = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  shape.setAttribute("viewBox", `0 0 ${SAMPLES} 30`);
  shape.setAttribute("preserveAspectRatio", "none");
  shape.setAttribute("role", "img");
  shape.setAttribute("aria-label", `${label}, last two minutes`);
  shape.append(line);
  return { shape, draw(values) {
    const top = Math.max(1, ...values);
    const step = SAMPLES / Math.max(values.length - 1, 20);
    const start = SAMPLES - step * (values.length - 1);
    line.setAttribute("points", values.map((v, i) => `${(start + step * i).toFixed(1)},${(28 - (26 * v) / top).toFixed(1)}`).join(" "));
  } };
}

const views = {
  overview() {
    const [into, out, stored] = ["Messages in", "Messages out", "Messages stored"].map(card);
    const lines = ["in", "out", "stored"].map((name) => sparkline(name));
    [into, out, stored].forEach((c, i) => c.element.append(lines[i].shape));
    const [commit, kept, clients, memory, batches, space, stalls] = ["Commit latency, p99", "Messages", "Connections", "Memory", "Open batches", "Free disk space", "Event loop stalls"].map(card);
    const trouble = el("div", { role: "alert" });
    const top = streamTable("Busiest streams");
    return { title: "Overview", nodes: [trouble, el("div", { class: "cards" }, ...[into, out, stored, commit, kept, clients, memory, batches, space, stalls].map((c) => c.element)), el("div", { class: "gap" }, top.element)],
      update(now) {
        ["in", "out", "stored"].forEach((name, i) => { say([into, out, stored][i].value, rate(state.history[name].at(-1) ?? 0)); lines[i].draw(state.history[name]); });
        say(into.extra, `${count(now.server.in_msgs)} since start`);
        say(out.extra, `${count(now.server.out_msgs)} since start`);
        const first = now.commits[0];
        say(commit.value, first ? micros(first.p99_us) : "–");
        say(commit.extra, first ? `median ${micros(first.p50_us)}, ${count(first.count)} commits` : "JetStream is off");
        say(kept.value, count(now.streams.reduce((sum, s) => sum + s.messages, 0)));
        say(kept.extra, `${bytes(now.streams.reduce((sum, s) => sum + s.bytes, 0))} in ${count(now.totals.streams)} ${now.totals.streams === 1 ? "stream" : "streams"}`);
        say(clients.value, count(now.server.connections));
        say(clients.extra, `subscriptions ${count(now.server.subscriptions)}, leafnodes ${now.server.leafnodes}`);
        say(memory.value, bytes(now.server.memory));
        say(memory.extra, `up ${span(now.server.uptime_s)}`);
        say(batches.value, count(now.stores.reduce((sum, s) => sum + s.batches_open, 0)));
        say(batches.extra, `${bytes(now.stores.reduce((sum, s) => sum + s.batch_bytes, 0))} staged`);
        say(space.value, now.stores.length ? bytes(now.stores[0].free) : "–");
        say(space.extra, now.stores.some((s) => s.full) ? "the disk is full" : "");
        const loop = now.server.event_loop;
        say(stalls.value, count(loop.stalls));
        say(stalls.extra, loop.stalls ? `longest ${count(loop.longest_ms)} ms, last: ${loop.last_operation}` : "no turn above 50 ms");
        const said = [now.health.error, ...now.complaints].filter(Boolean);
        if (trouble.dataset.said !== said.join("\n")) { trouble.dataset.said = said.join("\n"); trouble.replaceChildren(...said.map((text) => el("p", { class: "bad" }, text))); }
        const busiest = [...now.streams].sort((a, b) => streamRate(b) - streamRate(a) || b.messages - a.messages).slice(0, 8);
        top.show(busiest, streamKey);
      } };
  },
  streams() {
    const table = streamTable("Streams, with live rates");
    return { title: "Streams", nodes: [table.element], update: (now) => table.show(now.streams, streamKey) };
  },
  consumers() {
    const table = consumerTable("Consumers, most pending first", true);
    return { title: "Consumers", nodes: [table.element], update: (now) => table.show([...now.consumers].sort((a, b) => b.pending + b.ack_pending - a.pending - a.ack_pending), consumerKey) };
  },
  activity() {
    const table = new Table("Expired messages, delete markers and batches, newest first", [
      { title: "Time", show: (e) => clock(e.time_ns) },
      { title: "Event", show: (e) => ({ expired: "expired", marker: "delete marker", batch: "batch committed", abandoned: "batch abandoned" })[e.kind] ?? e.kind },
      { title: "Stream", show: (e) => e.stream },
      { title: "Details", show: (e) => e.text },
    ]);
    const totals = new Table("Since the start", [
      { title: "Stream", show: (s) => s.name },
      { title: "Max age", show: (s) => (s.max_age_s ? span(s.max_age_s) : "unlimited") + (s.ttl ? ", message TTLs" : "") },
      { title: "Expired", number: true, show: (s) => count(s.expired) },
      { title: "Delete markers", number: true, show: (s) => count(s.markers) },
      { title: "Batches", number: true, show: (s) => count(s.batches) },
      { title: "Open batches", number: true, show: (s) => s.batches_open },
    ]);
    return { title: "Activity", nodes: [table.element, el("div", { class: "gap" }, totals.element)], update(now) {
      table.show([...now.events].sort((a, b) => b.time_ns - a.time_ns || b.number - a.number), (e) => `${e.account}/${e.number}`);
      totals.show(now.streams.filter((s) => s.ttl || s.max_age_s || s.expired || s.markers || s.batches || s.batches_open), streamKey);
    } };
  },
  sources() {
    const table = sourceTable();
    const leafs = new Table("Leafnode connections", [
      { title: "Name", show: (l) => l.name || `#${l.id}` },
      { title: "Account", show: (l) => l.account },
      { title: "Address", show: (l) => `${l.ip}:${l.port}` },
      { title: "In", number: true, show: (l) => count(l.in_msgs) },
      { title: "Out", number: true, show: (l) => count(l.out_msgs) },
      { title: "Subscriptions", number: true, show: (l) => l.subscriptions },
    ]);
    return { title: "Mirrors and sources", nodes: [table.element, el("div", { class: "gap" }, leafs.element)], update(now) {
      table.show(now.streams.flatMap((s) => s.sources.map((o) => ({ ...o, stream: s.name, account: s.account }))), (o) => `${o.account}/${o.stream}/${o.kind}/${o.name}`);
      leafs.show(now.leafs, (l) => String(l.id));
    } };
  },
  claims() {
    const events = ["created", "retrieved", "released", "deleted", "expired", "failed", "collected"];
    const table = new Table("Claims by namespace, with the events of the audit trail", [
      { title: "Namespace", show: (c) => c.namespace },
      { title: "Live", number: true, show: (c) => count(c.live) },
      ...events.map((event) => ({ title: event, number: true, show: (c) => count(c.events[event] ?? 0) })),
    ]);
    return { title: "Claims", nodes: [table.element], update: (now) => table.show(now.claims, (c) => `${c.account}/${c.namespace}`) };
  },
  connections() {
    const table = new Table("Connections, busiest first", [
      { title: "Client", show: (c) => `#${c.cid} ${c.name}` },
      { title: "Address", show: (c) => c.address },
      { title: "Library", wide: true, show: (c) => `${c.lang} ${c.version}` },
      { title: "Account", wide: true, show: (c) => c.account },
      { title: "In", number: true, show: (c) => count(c.in_msgs) },
      { title: "Out", number: true, show: (c) => count(c.out_msgs) },
      { title: "Subscriptions", number: true, show: (c) => count(c.subscriptions) },
      { title: "Pending", number: true, show: (c) => bytes(c.pending) },
    ]);
    return { title: "Connections", nodes: [table.element], update: (now) => table.show(now.connections, (c) => String(c.cid)) };
  },
  stream(account, name) {
    return streamView(account, name);
  },
};

const streamKey = (s) => `${s.account}/${s.name}`;
const consumerKey = (c) => `${c.account}/${c.stream}/${c.name}`;
const streamRate = (s) => rateOf(`stream/${streamKey(s)}`);
const streamLink = (account, name) => el("a", { href: `#stream/${encodeURIComponent(account)}/${encodeURIComponent(name)}` }, name);

function streamTable(caption) {
  return new Table(caption, [
    { title: "Stream", show: (s) => streamLink(s.account, s.name) },
    { title: "Subjects", wide: true, show: (s) => s.subjects.slice(0, 4).join(", ") + (s.subjects.length > 4 ? ", …" : "") },
    { title: "Rate", number: true, show: (s) => rate(streamRate(s)) },
    { title: "Messages", number: true, show: (s) => count(s.messages) },
    { title: "Size", number: true, show: (s) => bytes(s.bytes) },
    { title: "Subject count", number: true, wide: true, show: (s) => count(s.num_subjects) },
    { title: "Consumers", number: true, show: (s) => count(s.consumers) },
    { title: "Retention", wide: true, show: (s) => s.retention + (s.storage === "memory" ? ", memory" : "") },
  ]);
}

function consumerTable(caption, withStream, act = null) {
  return new Table(caption, [
    ...(withStream ? [{ title: "Stream", show: (c) => streamLink(c.account, c.stream) }] : []),
    { title: "Consumer", show: (c) => c.name },
    { title: "Type", wide: true, show: (c) => c.kind + (c.paused ? ", paused" : "") },
    { title: "Filter subjects", wide: true, show: (c) => c.filters.join(", ") || "all" },
    { title: "Rate", number: true, show: (c) => rate(rateOf(`consumer/${consumerKey(c)}`)) },
    { title: "Pending", number: true, show: (c) => count(c.pending) },
    { title: "Ack pending", number: true, show: (c) => count(c.ack_pending) },
    { title: "Redelivered", number: true, wide: true, show: (c) => count(c.redelivered) },
    { title: "Waiting pulls", number: true, wide: true, show: (c) => count(c.waiting) },
    ...(act ? [{ title: "", show: act }] : []),
  ]);
}

function sourceTable() {
  return new Table("Mirrors and sources", [
    { title: "Stream", show: (o) => streamLink(o.account, o.stream) },
    { title: "Type", show: (o) => o.kind },
    { title: "Upstream", show: (o) => o.name },
    { title: "Lag", number: true, show: (o) => count(o.lag) },
    { title: "Last active", number: true, show: (o) => (o.active_s == null ? "never" : `${span(o.active_s)} ago`) },
    { title: "Error", show: (o) => o.error || "none" },
  ]);
}

function streamView(account, name) {
  const chips = el("p");
  const figures = ["Messages", "Size", "Subjects", "Rate", "Sequences", "Expired"].map(card);
  const consumers = consumerTable(`Consumers of ${name}`, false, (c) => consumerActs(account, name, c));
  const list = el("div", { "aria-live": "off" });
  const subject = el("input", { name: "subject", placeholder: "subject, e.g. orders.*", "aria-label": "Subject filter", size: 26 });
  const from = el("input", { name: "seq", placeholder: "from sequence", inputmode: "numeric", "aria-label": "From sequence", size: 14 });
  const older = el("button", { type: "button", onclick: () => browse(older.dataset.seq) }, "Older");
  const acts = el("p", { hidden: true }, el("button", { class: "danger", type: "button", onclick: () => purge(account, name) }, "Purge…"));
  const find = el("form", { class: "find", onsubmit: (event) => { event.preventDefault(); browse(from.value); } }, subject, from, el("button", {}, "Show newest"), older);

  async function browse(seq = "") {
    const query = new URLSearchParams({ account, stream: name, subject: subject.value, seq: seq || "0" });
    const answer = await ask(`/headrace/messages?${query}`);
    if (answer.error) { list.replaceChildren(el("p", { class: "empty" }, answer.error)); older.hidden = true; return; }
    list.replaceChildren(...answer.messages.map((m) => messageView(account, name, m, () => browse(seq))));
    if (!answer.messages.length) list.replaceChildren(el("p", { class: "empty" }, "No messages match."));
    older.hidden = !answer.older;
    older.dataset.seq = answer.older;
  }

  let drawn = false;
  return { title: name, nodes: [chips, el("div", { class: "cards" }, ...figures.map((c) => c.element)), acts, el("div", { class: "gap" }, consumers.element), el("h2", {}, "Messages"), find, list],
    update(now) {
      const stream = now.streams.find((s) => s.account === account && s.name === name);
      acts.hidden = !now.access.admin;
      if (!stream) { say(chips, "This stream does not exist any more."); return; }
      const facts = [...stream.subjects, `${stream.retention} retention`, stream.storage, stream.ttl ? "message TTLs" : "", stream.max_age_s ? `max age ${span(stream.max_age_s)}` : "", stream.marker_ttl_s ? `markers ${span(stream.marker_ttl_s)}` : ""].filter(Boolean);
      if (chips.dataset.facts !== facts.join()) { chips.dataset.facts = facts.join(); chips.replaceChildren(...facts.map((text) => el("span", { class: "chip" }, text))); }
      const values = [count(stream.messages), bytes(stream.bytes), count(stream.num_subjects), rate(streamRate(stream)), `${count(stream.first_seq)} – ${count(stream.last_seq)}`, count(stream.expired)];
      figures.forEach((c, i) => say(c.value, values[i]));
      consumers.show(now.consumers.filter((c) => c.account === account && c.stream === name), consumerKey);
      if (!drawn) { drawn = true; browse(); }
    } };
}

function messageView(account, stream, message, again) {
  if (message.error) return el("article", { class: "message" }, `#${message.seq}: ${message.error}`);
  const head = el("header", {}, el("strong", {}, `#${whole.format(message.seq)}`), el("span", {}, message.subject), el("span", { class: "quiet" }, message.time), el("span", { class: "quiet" }, bytes(message.size) + (message.ttl_s ? message.ttl_s === 4294967295 ? ", TTL: never expires" : `, TTL ${span(message.ttl_s)}` : "")));
  if (state.now?.access.admin) head.append(el("button", { class: "danger", type: "button", onclick: async () => {
    if (await confirmed("Delete message", `Message ${message.seq} of ${stream} will be deleted permanently.`, "Delete")) { await change(account, `STREAM.MSG.DELETE.${stream}`, { seq: message.seq }); again(); }
  } }, "Delete…"));
  const parts = [head];
  if (message.headers.length) parts.push(el("dl", {}, ...message.headers.flatMap(([key, value]) => [el("dt", {}, `${key}: `), el("dd", {}, value)])));
  if (message.size) parts.push(el("pre", { tabindex: "0" }, (message.text ?? `(binary, base64) ${message.base64}`) + (message.cut ? "\n… (truncated)" : "")));
  return el("article", { class: "message" }, ...parts);
}

// ---- changes; they require the admin token ----

function consumerActs(account, stream, c) {
  if (!state.now?.access.admin) return "";
  const pause = el("button", { type: "button", onclick: () => change(account, `CONSUMER.PAUSE.${stream}.${c.name}`, c.paused ? {} : { pause_until: new Date(Date.now() + 3600e3).toISOString() }) }, c.paused ? "Resume" : "Pause 1 h");
  const remove = el("button", { class: "danger", type: "button", onclick: async () => {
    if (await confirmed("Delete consumer", `Consumer ${c.name} of ${stream} and its ack state will be deleted permanently.`, "Delete")) change(account, `CONSUMER.DELETE.${stream}.${c.name}`);
  } }, "Delete…");
  return el("span", {}, pause, " ", remove);
}

async function purge(account, stream) {
  if (await confirmed("Purge stream", `All messages of ${stream} will be removed permanently.`, "Purge")) await change(account, `STREAM.PURGE.${stream}`);
}

async function change(account, subject, body = null) {
  const answer = await ask("/headrace/request", { method: "POST", body: JSON.stringify({ account, subject, body }) });
  const said = typeof answer.error === "string" ? answer.error : answer.error?.description;
  if (said) await confirmed("Request failed", said, "OK");
  await refresh();
}

function confirmed(title, text, ok, field = null) {
  const dialog = document.getElementById("dialog");
  document.getElementById("dialog-title").textContent = title;
  document.getElementById("dialog-text").textContent = text;
  document.getElementById("dialog-ok").textContent = ok;
  const input = document.getElementById("dialog-input");
  document.getElementById("dialog-field").hidden = !field;
  document.getElementById("dialog-label").textContent = field ?? "";
  input.type = field ? "password" : "text";
  input.value = "";
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((done) => dialog.addEventListener("close", () => done(dialog.returnValue === "ok" && (field ? input.value : true)), { once: true }));
}

// ---- requests ----

async function ask(path, options = {}) {
  const headers = state.token ? { Authorization: `Bearer ${state.token}` } : {};
  try {
    return await (await fetch(path, { cache: "no-store", ...options, headers })).json();
  } catch (error) {
    return { error: `no response: ${error.message}` };
  }
}

// Without a configured name the server's name is its generated ID, which means nothing to a reader.
const serverName = (server) => (/^N[A-Z2-7]{55}$/.test(server.name) ? "" : server.name);

async function refresh() {
  const now = await ask("/headrace/overview");
  const health = document.getElementById("health");
  if (now.error) {
    say(health, "no connection");
    health.className = "pill bad";
    return;
  }
  measure(now);
  [state.before, state.now] = [now, now];
  const grade = !now.health.ok ? ["unhealthy", "bad"] : now.complaints.length ? ["needs attention", "warn"] : ["healthy", "good"];
  say(health, grade[0]);
  health.className = `pill ${grade[1]}`;
  health.title = now.health.error;
  say(document.getElementById("server"), [serverName(now.server), `version ${now.server.version}`, now.server.address].filter(Boolean).join(" · "));
  say(document.getElementById("freshness"), `as of ${new Date(now.server.now_ms).toLocaleTimeString()}`);
  const admin = document.getElementById("admin");
  admin.hidden = !now.access.admin_possible;
  say(admin, now.access.admin ? "Admin: on" : "Admin…");
  state.view?.update(now);
}

function route() {
  const [name, ...rest] = (location.hash.slice(1) || "overview").split("/").map(decodeURIComponent);
  const view = (Object.hasOwn(views, name) ? views[name] : views.overview)(...rest);
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === `#${name === "stream" ? "streams" : name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${view.title} – Headrace`;
  document.getElementById("main").replaceChildren(el("h1", {}, view.title), ...view.nodes);
  state.view = view;
  if (state.now) view.update(state.now);
}

document.getElementById("pause").addEventListener("click", (event) => {
  state.paused = !state.paused;
  event.target.setAttribute("aria-pressed", String(state.paused));
  say(event.target, state.paused ? "Resume" : "Pause");
});
document.getElementById("admin").addEventListener("click", async () => {
  if (state.now?.access.admin) { state.token = ""; return refresh(); }
  const token = await confirmed("Admin", "Enter the server's admin token (http_admin_token) to allow purging, deleting and pausing on this page. The page keeps the token until it is closed.", "Use it", "Token");
  if (token) { state.token = token; await refresh(); if (!state.now.access.admin) { state.token = ""; await confirmed("Wrong token", "This is not the server's admin token.", "OK"); } route(); }
});
window.addEventListener("hashchange", () => { route(); document.getElementById("main").focus({ preventScroll: true }); });

async function live() {
  if (!state.paused && !document.hidden) await refresh();
  setTimeout(live, EVERY_MS);
}
route();
live();
