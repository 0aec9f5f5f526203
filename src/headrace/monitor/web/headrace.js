// The web page of a server: navigation, and the summary that it polls once a second. Each view reads what it shows itself.

import { setText } from "./dom.js";
import { ask, form, inform, isAdmin, session } from "./api.js";
import { bucket, buckets, key } from "./buckets.js";
import { consumer, consumers, deadletters, letters, message } from "./consumers.js";
import { activity, claims, connections, disk, legend, overview, sources } from "./overview.js";
import { schedules } from "./schedules.js";
import { compare, stream, streams } from "./streams.js";

const EVERY_MS = 1000;
const views = { overview, streams, stream, compare, consumers, consumer, message, buckets, bucket, key, schedules, deadletters, letters, activity, sources, claims, disk, connections, legend };
// Under which section a view appears.
const SECTIONS = { stream: "streams", compare: "streams", message: "streams", consumer: "consumers", bucket: "buckets", key: "buckets", letters: "deadletters" };
const state = { view: null, before: null, paused: false, running: null };

// A server without a configured name may have its generated ID as name, which means nothing to a reader.
const serverName = (now) => (/^N[A-Z2-7]{55}$/.test(now.server.name) ? now.host : now.server.name);

function perSecond(now) {
  const seconds = state.before ? (now.server.now_ms - state.before.server.now_ms) / 1000 : 0;
  const rate = (name) => (seconds > 0 ? Math.max(0, (now.server[name] - state.before.server[name]) / seconds) : 0);
  return { in: rate("in_msgs"), out: rate("out_msgs") };
}

// Reads the summary and updates the view; a request that is under way was perhaps made before a change or with another token.
async function refresh() {
  await state.running;
  state.running = update();
  await state.running;
}

async function update() {
  const now = await ask("summary");
  const health = document.getElementById("health");
  if (now.error) {
    setText(health, "no connection");
    health.className = "pill bad";
    return;
  }
  now.rates = perSecond(now);
  [state.before, session.now] = [now, now];
  const grade = !now.health.ok ? ["unhealthy", "bad"] : now.complaints.length ? ["needs attention", "warn"] : ["healthy", "good"];
  setText(health, grade[0]);
  health.className = `pill ${grade[1]}`;
  health.title = now.health.error;
  setText(document.getElementById("server"), [serverName(now), `version ${now.server.version}`, now.server.address].filter(Boolean).join(" · "));
  setText(document.getElementById("freshness"), `as of ${new Date(now.server.now_ms).toLocaleTimeString()}`);
  const admin = document.getElementById("admin");
  admin.hidden = !now.access.admin_possible;
  setText(admin, now.access.admin ? "Admin: on" : "Admin…");
  state.view?.update(now);
}

function decode(part) {
  try { return decodeURIComponent(part); } catch { return part; }
}

function route() {
  const [name, ...rest] = (location.hash.slice(1) || "overview").split("/").map(decode);
  const view = (Object.hasOwn(views, name) ? views[name] : overview)(...rest);
  for (const each of document.querySelectorAll("nav a")) {
    const isCurrent = each.getAttribute("href") === `#${SECTIONS[name] ?? name}`;
    if (isCurrent) { each.setAttribute("aria-current", "page"); each.scrollIntoView({ block: "nearest", inline: "nearest" }); }
    else each.removeAttribute("aria-current");
  }
  document.title = `${view.title} – Headrace`;
  const title = document.createElement("h1");
  title.textContent = view.title;
  document.getElementById("main").replaceChildren(title, ...view.nodes);
  state.view = view;
  if (session.now) view.update(session.now);
}

async function enterToken() {
  if (isAdmin()) { session.token = ""; await refresh(); return route(); }
  const values = await form("Admin", "Enter the server's admin token (http_admin_token) to publish, create, change and delete on this page. The page keeps the token until it is closed.", [{ name: "token", label: "Token", type: "password", required: true }], "Use it");
  if (!values?.token) return;
  session.token = values.token;
  await refresh();
  if (!isAdmin()) { session.token = ""; await inform("Wrong token", "This is not the server's admin token."); }
  route();
}

document.getElementById("pause").addEventListener("click", (event) => {
  state.paused = !state.paused;
  event.target.setAttribute("aria-pressed", String(state.paused));
  setText(event.target, state.paused ? "Resume" : "Pause");
});
document.getElementById("admin").addEventListener("click", enterToken);
document.addEventListener("changed", refresh);
document.addEventListener("keydown", (event) => {
  const field = document.querySelector("main input[type=search]");
  if (event.key !== "/" || event.ctrlKey || event.metaKey || !field || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
  event.preventDefault();
  field.focus();
});
window.addEventListener("hashchange", () => { route(); document.getElementById("main").focus({ preventScroll: true }); window.scrollTo(0, 0); });

async function live() {
  if (!state.paused && !document.hidden) await refresh();
  setTimeout(live, EVERY_MS);
}
route();
live();
