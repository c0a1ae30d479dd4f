// The limits of one tenant or organisation with gauges of now, and its budgets with what they will have spent at the end of their windows.
import { html, useState } from "../vendor/preact-htm.js";
import { api, path } from "../lib/api.js";
import { NONE, count, ms, usd } from "../lib/format.js";
import { Badge, Confirm, Dialog, Empty, Failure, Field, Found, Meter, Panel, Table, Time, useAsk, useChange } from "../lib/ui.js";
import { Rest, amountFrom, amountOf, localOf, maySetBounds, maySetInside, maySetLimit, unixOf, written } from "./tenant_forms.js";

const METERS = { cost_usd: "Money (USD)", requests: "Requests", tokens: "Tokens", input_tokens: "Prompt tokens", output_tokens: "Output tokens", units: "Weighted tokens", concurrent_requests: "Requests at the same time", audio_seconds: "Audio (s)", audio_bytes: "Audio (bytes)" };
const WINDOWS = { minute: "per minute", hour: "per hour", day: "per day", week: "per week", month: "per month", rolling: "over rolling days", ever: "for ever", now: "at the same time" };
const ORGANISATION = { organisation: "the whole organisation" };
const LEVELS = { tenant: "the whole tenant", project: "a project", key: "a key", user: "each end user", "project-user": "each end user of a project" };
const ZONED = ["day", "week", "month"];
const FIELDS = ["level", "name", "meter", "window", "days", "amount", "soft", "burst", "zone", "to", "until_unix"];
const MOST = 500;

/** What a limit is on, in words. */
export function limitWords({ id, meter, window }) {
  const [level, name] = id.split(":");
  const of = level === "tenant" || level === "organisation" ? "" : level === "user" ? `each end user${name.includes("/") ? ` of ${name.split("/")[1]}` : ""}: ` : `${level} ${level === "project" ? name.split("/")[1] : name}: `;
  const time = window.startsWith("rolling-") ? `over any ${window.slice(8, -1)} days` : (WINDOWS[window] ?? window);
  return `${of}${METERS[meter] ?? meter} ${meter === "concurrent_requests" ? "" : time}`.trim();
}

/** What may be used at once of a limit now, and how much of it is used; more than everything where it is overdrawn. */
function gauge(state) {
  const most = state.used + state.remaining;
  return { share: most > 0 ? state.used / most : 1, words: `${["cost_usd", "audio_bytes"].includes(state.meter) ? amountOf(state.meter, state.used) : count(state.used)} of ${amountOf(state.meter, state.remaining > 0 ? most : state.amount)}` };
}

const scopeOf = (tenant, organisation) => (organisation ? { level: "organisation", name: organisation } : { name: tenant });
const raised = (limit) => limit.raised_to !== null && limit.raised_until_unix > Date.now() / 1000;

function AmountFields({ shown, meter, window, error }) {
  const hint = meter === "cost_usd" ? "Dollars, as 12.50." : "A whole number.";
  return html`<${Field} label="Amount" hint=${`${hint} 0 refuses everything.`} name="amount" error=${error}><input name="amount" required inputmode="decimal" defaultValue=${written(shown, "amount")} /><//>
    <${Field} label="Warn from" hint="The soft threshold: replies carry a warning from here on. Empty for none." name="soft" error=${error}><input name="soft" inputmode="decimal" defaultValue=${written(shown, "soft")} /><//>
    ${window === "minute" && html`<${Field} label="Burst" hint="How much may come at once; empty for the amount." name="burst" error=${error}><input name="burst" inputmode="numeric" defaultValue=${written(shown, "burst")} /><//>`}
    ${ZONED.includes(window) && html`<${Field} label="Time zone of the calendar" hint="As Europe/Berlin; empty for UTC." name="zone" error=${error}><input name="zone" defaultValue=${shown?.zone ?? ""} spellcheck=${false} /><//>`}`;
}

function bodyFrom(form, meter, before) {
  const data = new FormData(form);
  const amounts = Object.fromEntries(["amount", "soft", "burst"].map((name) => [name, amountFrom(meter, data.get(name)?.trim())]));
  const kept = before && raised(before) && before.raised_to > before.amount ? { raised_to: amountFrom(meter, written(before, "raised_to")), raised_until_unix: before.raised_until_unix } : {};
  return { ...amounts, zone: data.get("zone")?.trim() ?? "", ...kept };
}

function NewLimit({ me, tenant, organisation, known, done }) {
  const [open, setOpen] = useState(false);
  const [form, setForm] = useState({ level: "", meter: "cost_usd", window: "month", name: "", days: "30" });
  const change = useChange();
  const projects = useAsk(() => (open && tenant ? api.list(path`/tenants/${tenant}/projects`, {}, "items", MOST) : Promise.resolve([])), [open, tenant]);
  const keys = useAsk(() => (open && tenant ? api.list(path`/tenants/${tenant}/keys`, {}, "items", MOST) : Promise.resolve([])), [open, tenant]);
  const all = organisation ? ORGANISATION : LEVELS;
  const levels = Object.keys(all).filter((level) => maySetBounds(me) || ["project", "key", "project-user"].includes(level));
  const level = form.level || levels[0];
  const window = form.meter === "concurrent_requests" ? "now" : form.window;
  const set = (name) => (event) => setForm({ ...form, [name]: event.target.value });
  const names = level === "key" ? (keys.data ?? []).filter((key) => !key.revoked_unix).map(({ id, label }) => [id, label ? `${id} (${label})` : id]) : level.startsWith("project") ? (projects.data ?? []).map(({ name }) => [`${tenant}/${name}`, name]) : [];
  const name = names.length ? (names.some(([value]) => value === form.name) ? form.name : names[0][0]) : (organisation ?? tenant);
  const close = () => { setOpen(false); change.clear(); };
  const submit = async (event) => {
    event.preventDefault();
    const id = `${level === "project-user" ? "user" : level}:${name}:${form.meter}:${window === "rolling" ? `rolling-${form.days}d` : window}`;
    const body = bodyFrom(event.target, form.meter);
    const { done: made } = await change.run(async () => {
      if (known.some((limit) => limit.id === id)) throw Object.assign(new Error("There is such a limit already; change it in the list."), { param: "level" });
      return api.put(path`/limits/${id}`, body);
    });
    if (made) { close(); done(); }
  };
  const windows = Object.entries(WINDOWS).filter(([key]) => (form.meter === "concurrent_requests" ? key === "now" : key !== "now" && !(form.meter === "cost_usd" && key === "minute")));
  return html`<button type="button" class="primary" onClick=${() => setOpen(true)}>Set a limit</button>
    <${Dialog} title="Set a limit" open=${open} onClose=${close}><form class="stack" onSubmit=${submit}>
      <${Field} label="Of" name="level" error=${change.error}><select name="level" value=${level} onChange=${set("level")}>${levels.map((key) => html`<option key=${key} value=${key} selected=${key === level}>${all[key]}</option>`)}</select><//>
      ${names.length > 0 && html`<${Field} label=${level === "key" ? "Key" : "Project"} name="name" error=${change.error}><select name="name" onChange=${set("name")}>${names.map(([value, words]) => html`<option key=${value} value=${value} selected=${value === name}>${words}</option>`)}</select><//>`}
      <div class="grid-small"><${Field} label="Counts" name="meter" error=${change.error}><select name="meter" onChange=${set("meter")}>${Object.entries(METERS).map(([key, words]) => html`<option key=${key} value=${key} selected=${key === form.meter}>${words}</option>`)}</select><//>
      <${Field} label="Window" name="window" error=${change.error}><select name="window" onChange=${set("window")}>${windows.map(([key, words]) => html`<option key=${key} value=${key} selected=${key === window}>${words}</option>`)}</select><//>
      ${window === "rolling" && html`<${Field} label="Days" name="days" error=${change.error}><input name="days" type="number" min="1" max="366" value=${form.days} onChange=${set("days")} /><//>`}</div>
      <${AmountFields} meter=${form.meter} window=${window} error=${change.error} />
      <${Rest} error=${change.error} fields=${FIELDS} />
      <div class="row"><button class="primary" disabled=${change.busy || (level === "key" && !names.length)}>Set the limit</button><button type="button" onClick=${close}>Cancel</button></div>
    </form><//>`;
}

function EditLimit({ of, done }) {
  const [found, setFound] = useState(null);
  const change = useChange();
  const close = () => { setFound(null); change.clear(); };
  const where = path`/limits/${of.id}`;
  const open = async () => setFound((await change.run(() => api.getTagged(where))).result ?? null);
  const submit = async (event) => {
    event.preventDefault();
    const body = bodyFrom(event.target, of.meter, found.shown);
    const { done: saved } = await change.run(() => api.put(where, body, found.etag));
    if (saved) { close(); done(); }
  };
  return html`<button type="button" onClick=${open} aria-label=${`Change the limit ${of.id}`}>Change</button>
    <${Dialog} title=${`Change: ${limitWords(of)}`} open=${!!found} onClose=${close}><form class="stack" onSubmit=${submit}>
      <${AmountFields} shown=${found?.shown} meter=${of.meter} window=${of.window} error=${change.error} />
      <${Rest} error=${change.error} fields=${FIELDS} />
      <div class="row"><button class="primary" disabled=${change.busy}>Save</button><button type="button" onClick=${close}>Cancel</button></div></form><//>`;
}

function RaiseLimit({ of, done }) {
  const [open, setOpen] = useState(false);
  const change = useChange();
  const close = () => { setOpen(false); change.clear(); };
  const submit = async (event) => {
    event.preventDefault();
    const { to, until_unix } = event.target.elements;
    const { done: saved } = await change.run(() => api.post(`${path`/limits/${of.id}`}/raise`, { to: amountFrom(of.meter, to.value.trim()), until_unix: unixOf(until_unix.value) }));
    if (saved) { close(); done(); }
  };
  return html`<button type="button" onClick=${() => setOpen(true)} aria-label=${`Raise the limit ${of.id} for a time`}>Raise</button>
    <${Dialog} title=${`Raise for a time: ${limitWords(of)}`} open=${open} onClose=${close}><form class="stack" onSubmit=${submit}>
      <p>The limit is ${amountOf(of.meter, of.amount)}, and will be that again afterwards.</p>
      <${Field} label="Raise to" hint=${of.meter === "cost_usd" ? "Dollars, as 12.50." : "A whole number."} name="to" error=${change.error}><input name="to" required inputmode="decimal" autofocus /><//>
      <${Field} label="Until" hint="In your time zone." name="until_unix" error=${change.error}><input type="datetime-local" name="until_unix" required defaultValue=${localOf(Date.now() / 1000 + 3600)} /><//>
      <${Rest} error=${change.error} fields=${FIELDS} />
      <div class="row"><button class="primary" disabled=${change.busy}>Raise</button><button type="button" onClick=${close}>Cancel</button></div></form><//>`;
}

/** The limits of a tenant and below, or those of an organisation itself. */
export function Limits({ me, tenant, organisation }) {
  const limits = useAsk(() => api.list("/limits", { tenant, organisation }, "items", MOST), [tenant, organisation], 10_000);
  const states = useAsk(() => api.list("/limits/state", scopeOf(tenant, organisation), "items", MOST), [tenant, organisation], 2000);
  const may = (!organisation && maySetInside(me, tenant)) || maySetBounds(me);
  const now = new Map((states.data ?? []).map((state) => [state.id, state]));
  const done = () => { limits.again(); states.again(); };
  const columns = [
    { key: "id", title: "Limit", show: (l) => html`<div class="wide-cell"><strong>${limitWords(l)}</strong></div><div class="small soft mono break">${l.id}${l.zone && ` (${l.zone})`}</div>` },
    { key: "gauge", title: "Used now", sort: (l) => (now.has(l.id) ? gauge(now.get(l.id)).share : null), show: (l) => (now.has(l.id) ? html`<${Meter} ...${gauge(now.get(l.id))} label=${`Used of ${limitWords(l)}`} /><div class="small soft" title="Requests in flight reserve the most that they can use.">${amountOf(l.meter, now.get(l.id).held)} of it reserved${now.get(l.id).reset_s > 0 && `; all there again in ${ms(now.get(l.id).reset_s * 1000)}`}</div>` : html`<span class="small soft">${l.level === "user" ? "each end user apart" : NONE}</span>`) },
    { key: "remaining", title: "Left", num: true, sort: (l) => now.get(l.id)?.remaining ?? null, show: (l) => amountOf(l.meter, now.get(l.id)?.remaining) },
    { key: "amount", title: "Amount", num: true, show: (l) => html`${amountOf(l.meter, raised(l) ? l.raised_to : l.amount)}${raised(l) && html`<div class="small soft"><${Badge} kind="warn">raised<//> until <${Time} unix=${l.raised_until_unix} /></div>`}${l.soft !== null && html`<div class="small soft">warns from ${amountOf(l.meter, l.soft)}</div>`}` },
    ...(may ? [{ key: "actions", title: "Actions", fixed: true, show: (l) => maySetLimit(me, l) && html`<div class="actions"><${EditLimit} of=${l} done=${done} /><${RaiseLimit} of=${l} done=${done} /><${Confirm} label="Remove" title="Remove this limit?" work=${() => api.remove(path`/limits/${l.id}`)} done=${done}><strong>${limitWords(l)}</strong>, ${amountOf(l.meter, l.amount)}. Requests are no longer held by it within 5 s.<//></div>` }] : []),
  ];
  return html`<${Found} of=${limits} what="Reading the limits">${(all) => html`<${Panel} title="Limits" side=${may && html`<${NewLimit} me=${me} tenant=${tenant} organisation=${organisation} known=${all} done=${done} />`}>
    ${states.error && html`<${Failure} error=${states.error} again=${states.again} />`}
    <${Table} caption="Limits" columns=${columns} rows=${all} most=${100} empty=${html`<${Empty} title="No limit yet">${organisation ? "Nothing bounds what these tenants use together, but the limits of models and of the gateway." : "Nothing bounds what this tenant uses, but the limits of its organisation, of models and of the gateway."} ${may ? "Set a limit, for instance money per month." : ""}<//>`} />
    ${all.length >= MOST && html`<p class="small soft">The first ${MOST} limits are shown; tidegate limit list shows all.</p>`}
  <//>`}<//>`;
}

const HOW = "Pace: the spend of the seven days before today and of today (days in UTC), divided by the time since then, or since the first day with spend. At the end: what is spent so far, and the pace for the rest of the window. For rolling days: so many days at the pace. Reservations of requests in flight do not count. Weekends, growth and new prices are not foreseen.";

export function Budgets({ tenant, organisation }) {
  const found = useAsk(() => api.list("/limits/forecast", scopeOf(tenant, organisation), "items", MOST), [tenant, organisation], 10_000);
  const words = (b) => {
    if (b.reached_unix !== null) return b.spent >= b.amount ? html`<${Badge} kind="bad">spent<//>` : html`<${Badge} kind=${b.ends_unix === null ? "warn" : "bad"}>spent <${Time} unix=${b.reached_unix} /><//>`;
    return b.expected > b.amount ? html`<${Badge} kind="bad">too fast<//>` : html`<${Badge} kind="good">lasts<//>`;
  };
  const columns = [
    { key: "id", title: "Budget", show: (b) => html`<div class="wide-cell"><strong>${limitWords({ ...b, meter: "cost_usd" })}</strong></div>${b.zone && html`<div class="small soft">${b.zone}</div>`}` },
    { key: "spent", title: "Spent", show: (b) => html`<${Meter} share=${b.amount > 0 ? b.spent / b.amount : 1} words=${`${usd(Number(b.spent_usd))} of ${usd(Number(b.amount_usd))}`} label=${`Spent of ${b.id}`} />` },
    { key: "pace_per_day", title: "Pace", num: true, show: (b) => html`<span title=${HOW}>${usd(Number(b.pace_per_day_usd))} a day</span>` },
    { key: "expected", title: "At the end", num: true, show: (b) => (b.expected === null ? NONE : html`<span title=${HOW}>${usd(Number(b.expected_usd))}</span>`) },
    { key: "ends_unix", title: "Window ends", num: true, show: (b) => (b.ends_unix === null ? html`<span title="This window has no end.">${NONE}</span>` : html`<${Time} unix=${b.ends_unix} />`) },
    { key: "reached_unix", title: "Forecast", show: words },
  ];
  return html`<${Panel} title="Budgets"><${Found} of=${found} what="Reading the budgets">${(rows) => html`
    <${Table} caption="Budgets" columns=${columns} rows=${rows} most=${50} empty=${html`<${Empty} title="No budget yet">Set a limit on money in “Limits”, and its forecast is here.<//>`} />
    <details class="small"><summary>How the forecast is computed</summary><p>${HOW}</p></details>`}<//><//>`;
}
