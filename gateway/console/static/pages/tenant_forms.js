// What the forms of tenants, projects, keys and limits share: rights, moments, lists, and which roles may change what.
import { html } from "../vendor/preact-htm.js";
import { NONE, bytes, count, usd } from "../lib/format.js";
import { Failure, Field } from "../lib/ui.js";

const MAY_GRANT = {
  owner: ["owner", "admin", "operator", "billing", "auditor", "tenant-admin"],
  admin: ["operator", "billing", "auditor", "tenant-admin"],
  "tenant-admin": ["tenant-admin"],
};
const has = (me, ...roles) => roles.some((role) => me.roles.includes(role));

/** The roles that this person may give to a key; the API decides, this only hides what it would refuse. */
export const grantable = (me) => [...new Set(me.roles.flatMap((role) => MAY_GRANT[role] ?? []))];
export const maySetTenant = (me) => has(me, "owner", "admin");
export const maySetInside = (me, tenant) => maySetTenant(me) || (has(me, "tenant-admin") && me.tenant === tenant);
export const mayChangeKey = (me, key) => maySetInside(me, key.tenant) && key.roles.every((role) => grantable(me).includes(role));
export const maySetBounds = (me) => has(me, "owner", "admin", "operator");
/** Limits of a tenant itself, and of all its end users, are bounds that its own admin does not set. */
export const maySetLimit = (me, limit) => maySetBounds(me) || (me.tenant === limit.tenant && has(me, "tenant-admin") && (limit.level === "project" || limit.level === "key" || (limit.level === "user" && limit.name.includes("/"))));

/** The words of a text area or a field, one a line or between commas. */
export const listOf = (text) => (text ?? "").split(/[\n,]/).map((word) => word.trim()).filter(Boolean);

/** Seconds since 1970 of what a date field holds, in the browser's time zone; null for nothing. */
export const unixOf = (text) => (text ? new Date(text).getTime() / 1000 : null);
export function localOf(unix) {
  if (!unix) return "";
  const at = new Date(unix * 1000);
  return new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 16);
}

const UNITS = { requests: "requests", input_tokens: "tokens", output_tokens: "tokens", tokens: "tokens", units: "units", audio_seconds: "s", concurrent_requests: "requests" };

/** An amount of a meter with its unit. */
export function amountOf(meter, amount) {
  if (amount === null || amount === undefined) return NONE;
  if (meter === "cost_usd") return usd(amount / 1e9);
  if (meter === "audio_bytes") return bytes(amount);
  return `${count(amount)} ${UNITS[meter] ?? ""}`.trim();
}

/** An amount of a limit as its field shows it and as the API takes it: dollars as text, else a whole number. */
export const written = (shown, field) => (shown?.[field] === null || shown?.[field] === undefined ? "" : String(shown[`${field}_usd`] ?? shown[field]));
export const amountFrom = (meter, text) => (text === "" || text === undefined ? null : meter === "cost_usd" || !/^[0-9]{1,15}$/.test(text) ? text : Number(text));

/** A refusal that names no field of the form is shown below it. */
export function Rest({ error, fields }) {
  const named = error?.param?.replace(/^rights\.(caps\.)?/, "").split(".")[0];
  return error && !fields.includes(named) ? html`<${Failure} error=${error} />` : null;
}

const CAPS = { max_input_tokens: "Most prompt tokens", max_output_tokens: "Most output tokens", max_choices: "Most choices (n)", max_logprobs: "Most log-probabilities" };
export const RIGHTS = ["models", "loras", "endpoints", "priority_class", "tools", ...Object.keys(CAPS)];
const shownList = (names) => (names === null || names === undefined ? "" : names.length ? names.join(", ") : "none");

/** The fields of rights. Empty means no restriction at this level; `none` allows nothing. */
export function RightsFields({ rights, error, open = false }) {
  const inside = error?.param?.startsWith("rights.") ? { message: error.message, param: error.param.replace(/^rights\.(caps\.)?/, "") } : null;
  return html`<details open=${open || !!inside}><summary>Rights: models, endpoints, bounds of a request</summary><div class="stack-in">
    <p class="small soft">A right can only restrict what the levels above allow. An empty field restricts nothing; “none” allows nothing.</p>
    ${[["models", "Models", "Public names, between commas."], ["loras", "Adapters", "Between commas."], ["endpoints", "Endpoints", "Paths, as /v1/embeddings."]].map(([name, label, hint]) => html`<${Field} key=${name} label=${label} hint=${hint} name=${name} error=${inside}><input name=${name} defaultValue=${shownList(rights?.[name])} spellcheck=${false} /><//>`)}
    <div class="grid-small">${Object.entries(CAPS).map(([name, label]) => html`<${Field} key=${name} label=${label} name=${name} error=${inside}><input name=${name} inputmode="numeric" defaultValue=${rights?.caps[name] ?? ""} /><//>`)}
    <${Field} label="Highest priority class" name="priority_class" error=${inside}><select name="priority_class"><option value="">that of the policy</option>${["critical", "interactive", "default", "batch"].map((word) => html`<option key=${word} value=${word} selected=${rights?.priority_class === word}>${word}</option>`)}</select><//></div>
    <label class="check"><input type="checkbox" name="tools" defaultChecked=${rights?.caps.tools ?? true} /> Requests may carry tools</label>
  </div></details>`;
}

export function rightsFrom(data) {
  const list = (name) => {
    const words = listOf(data.get(name));
    return words.length === 0 ? null : words.length === 1 && words[0] === "none" ? [] : words;
  };
  const cap = (name) => (data.get(name)?.trim() ? Number(data.get(name)) : null);
  return {
    models: list("models"), loras: list("loras"), endpoints: list("endpoints"), priority_class: data.get("priority_class") || null,
    caps: { ...Object.fromEntries(Object.keys(CAPS).map((name) => [name, cap(name)])), tools: data.get("tools") === "on" },
  };
}

/** What rights restrict, in words; null where nothing. */
export function rightsWords(rights) {
  const parts = ["models", "loras", "endpoints"].filter((name) => rights[name]).map((name) => `${name}: ${shownList(rights[name])}`);
  for (const [name, label] of Object.entries(CAPS)) if (rights.caps[name] !== null) parts.push(`${label.toLowerCase()}: ${count(rights.caps[name])}`);
  if (!rights.caps.tools) parts.push("no tools");
  if (rights.priority_class) parts.push(`class at most ${rights.priority_class}`);
  return parts.join("; ") || null;
}
