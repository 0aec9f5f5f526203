// Requests to the server, the admin token, and dialogs. The token stays in this page until it is closed.

import { el } from "./dom.js";

export const session = { token: "", now: null };
export const isAdmin = () => Boolean(session.now?.access.admin);

export async function ask(path, options = {}) {
  const headers = session.token ? { Authorization: `Bearer ${session.token}` } : {};
  try {
    const response = await fetch(`/headrace/${path}`, { cache: "no-store", ...options, headers });
    const text = await response.text();
    return /^[[{]/.test(text) ? JSON.parse(text) : { error: text.trim() || `status ${response.status}` };
  } catch (error) {
    return { error: `no response: ${error.message}` };
  }
}

export const get = (path, query = {}) => ask(`${path}?${new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "" && value != null))}`);

export const errorOf = (answer) => (typeof answer.error === "string" ? answer.error : answer.error?.description ?? "");

const BODY_BYTES_MAX = 64 * 1024; // as on the server

async function send(path, content) {
  const body = JSON.stringify(content);
  const isLarge = new TextEncoder().encode(body).length > BODY_BYTES_MAX;
  const answer = isLarge ? { error: "The page sends at most 64 KiB: use headrace pub or headrace kv put." } : await ask(path, { method: "POST", body });
  const problem = errorOf(answer);
  if (problem) await inform("Request failed", problem);
  document.dispatchEvent(new Event("changed"));
  return problem ? null : answer;
}

// Returns the response, or null after an error, which a dialog has shown.
export const change = (account, subject, body = null) => send("request", { account, subject, body });
export const publish = (account, message) => send("publish", { account, ...message });

// Shows a form; returns its values by name, or null if it was cancelled. Fields: name, label, and optionally type, value,
// options, help, required.
export function form(title, text, fields = [], ok = "OK", canCancel = true) {
  const dialog = document.getElementById("dialog");
  const inputs = fields.map(makeField);
  const cancel = el("button", { value: "cancel", formnovalidate: true }, "Cancel");
  const accept = el("button", { value: "ok", class: "primary" }, ok);
  dialog.replaceChildren(el("form", { method: "dialog" },
    el("h2", { id: "dialog-title" }, title), text ? el("p", { id: "dialog-text" }, text) : null, ...inputs.map((each) => each.element),
    el("menu", {}, canCancel ? cancel : null, accept)));
  dialog.returnValue = "";
  dialog.showModal();
  (inputs[0]?.input ?? (canCancel ? cancel : accept)).focus();
  return new Promise((done) => dialog.addEventListener("close", () => {
    const accepted = dialog.returnValue === "ok";
    done(accepted ? Object.fromEntries(inputs.map((each) => [each.name, each.read()])) : null);
  }, { once: true }));
}

let fields = 0;

function makeField({ name, label, type = "text", value = "", options = [], help = "", required = false }) {
  const id = `field-${(fields += 1)}`;
  const common = { id, name, required, autocomplete: "off", spellcheck: "false", "aria-describedby": help ? `${id}-help` : null };
  const made = {
    textarea: () => el("textarea", { ...common, rows: 6 }),
    select: () => el("select", common, ...options.map((each) => el("option", { value: each, selected: each === value }, each || "(default)"))),
    checkbox: () => el("input", { ...common, type, checked: Boolean(value) }),
  };
  const input = (made[type] ?? (() => el("input", { ...common, type, step: type === "datetime-local" ? 1 : null })))();
  if (type !== "checkbox" && type !== "select") input.value = value;
  const element = el("div", { class: type === "checkbox" ? "field check" : "field" },
    el("label", { for: id }, label), input, help ? el("small", { id: `${id}-help`, class: "quiet" }, help) : null);
  return { name, input, element, read: () => (type === "checkbox" ? input.checked : input.value) };
}

export const inform = (title, text) => form(title, text, [], "OK", false);
export const confirmed = async (title, text, ok) => (await form(title, text, [], ok)) !== null;
