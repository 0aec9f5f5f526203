// Schedules: the streams that allow them, and the schedules of one stream, those that fire next first.

import { button, count, el, heading, streamLink, when } from "./dom.js";
import { change, confirmed, form, inform, isAdmin, publish } from "./api.js";
import { PagedTable } from "./tables.js";

export function scheduleTable(account, stream) {
  const add = button("New schedule…", () => createSchedule(account), { hidden: true });
  const table = new PagedTable({ caption: `Schedules of ${stream}`, path: "schedules", query: { account, stream }, sort: "next", key: (s) => s.subject, limit: 20, tools: [add], columns: [
    { title: "Subject", sort: "subject", show: (s) => s.subject },
    { title: "Next", sort: "next", show: (s) => when(s.next) },
    { title: "Schedule", show: (s) => `${s.schedule}${s.zone ? ` (${s.zone})` : ""}` },
    { title: "Publishes to", show: (s) => s.target },
    { title: "", show: (s) => (isAdmin() ? button("Remove…", async () => { if (await confirmed("Remove schedule", `The schedule ${s.subject} will not fire any more.`, "Remove")) await change(account, `STREAM.PURGE.${stream}`, { filter: s.subject }); }, { class: "danger" }) : "") },
  ] });
  table.onRows = () => { add.hidden = !isAdmin(); };
  return table;
}

async function createSchedule(account) {
  const values = await form("New schedule", "A message that is published later, once or repeatedly.", [
    { name: "subject", label: "Subject of the schedule", required: true, help: "The stream must store it, and it has one schedule" },
    { name: "schedule", label: "When", required: true, value: "@every 5m", help: "@at 2026-01-31T12:00:00Z, @every 5m, @daily or a cron expression" },
    { name: "target", label: "Publish to", required: true, help: "Another subject of the same stream" },
    { name: "text", label: "Payload", type: "textarea" },
  ], "Create");
  if (!values) return;
  const answer = await publish(account, { subject: values.subject, headers: [["Nats-Schedule", values.schedule], ["Nats-Schedule-Target", values.target]], text: values.text });
  if (answer && !answer.stream) await inform("Not stored", "No stream stores this subject.");
}

export function schedules() {
  const holder = el("div");
  const shown = new Map();
  const table = new PagedTable({ caption: "Streams with schedules", path: "streams", query: { kind: "schedules" }, sort: "name", key: (s) => `${s.account}/${s.name}`, limit: 20, empty: "No stream allows schedules.", columns: [
    { title: "Stream", sort: "name", show: (s) => streamLink(s.account, s.name) },
    { title: "Messages", sort: "messages", number: true, show: (s) => count(s.messages) },
  ] });
  table.onRows = (rows) => {
    for (const s of rows.slice(0, 5)) {
      const key = `${s.account}/${s.name}`;
      if (shown.has(key)) continue;
      shown.set(key, scheduleTable(s.account, s.name));
      holder.append(heading(s.name), shown.get(key).element);
    }
  };
  return { title: "Schedules", nodes: [table.element, holder], update() { table.refresh(); for (const each of shown.values()) each.refresh(); } };
}
