// Usage and cost: by day, tenant and model over a range of days, with its rows as CSV and JSON.
import { html } from "../vendor/preact-htm.js";
import { api } from "../lib/api.js";
import { Bars, Columns } from "../lib/chart.js";
import { count, percent, usd } from "../lib/format.js";
import { Empty, Field, Found, Head, Panel, Table, Tile, Tiles, Typed, useAsk } from "../lib/ui.js";

const READERS = ["owner", "admin", "operator", "billing", "auditor"];
const DAY_MS = 86_400_000;
const RANGES = { 7: "last 7 days", 30: "last 30 days", 90: "last 90 days", month: "this month", custom: "these days" };
const MEASURES = {
  cost: ["Cost", (row) => Number(row.cost_usd), usd],
  requests: ["Requests", (row) => row.requests, count],
  tokens: ["Tokens", (row) => row.prompt_tokens + row.completion_tokens, count],
  completion: ["Output tokens", (row) => row.completion_tokens, count],
};
const LABELS = { day: "Day", organisation: "Organisation", tenant: "Tenant", project: "Project", key: "Key", user: "End user", model: "Model", lora: "Adapter" };
const FILTERS = ["tenant", "project", "key", "user", "model", "lora"];
const SUMS = ["requests", "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "units", "audio_seconds", "audio_bytes", "cost_nanousd"];
const DRAWN = 6;
const MOST_DAYS = 366;
const MOST_ROWS = 5000;

export const dayOf = (ms) => new Date(ms).toISOString().slice(0, 10);

/** The first and last day, UTC, of the range that a person chose. */
export function daysOf({ range = "30", first, last }, nowMs = Date.now()) {
  const today = dayOf(nowMs);
  if (range === "custom") return { first: first || dayOf(nowMs - 29 * DAY_MS), last: last || today };
  if (range === "month") return { first: `${today.slice(0, 8)}01`, last: today };
  return { first: dayOf(nowMs - (Number(range) - 1) * DAY_MS), last: today };
}

/** Every day from the first to the last, at most a year of them. */
export function everyDay({ first, last }) {
  const days = [];
  for (let at = Date.parse(first); at <= Date.parse(last) && days.length < MOST_DAYS; at += DAY_MS) days.push(dayOf(at));
  return days;
}

const sumOf = (rows, of) => rows.reduce((sum, row) => sum + of(row), 0);

/** The biggest parts of the sum and, as one more, the rest of it, each by day. */
async function parts(label, totals, byDay, days, where, of) {
  const biggest = [...totals].sort((a, b) => of(b) - of(a)).filter((row) => of(row) > 0).slice(0, DRAWN);
  const found = await Promise.all(biggest.map((row) => api.list("/usage", { ...where, by: ["day", label], [label]: row.labels[label] }, "items", MOST_DAYS)));
  const spread = (rows) => {
    const values = Object.fromEntries(rows.map((row) => [row.labels.day, of(row)]));
    return days.map((day) => values[day] ?? 0);
  };
  const whole = spread(byDay);
  // rows without a value for the label cannot be asked for: they are part of the rest
  const series = biggest.map((row, at) => ({ label: row.labels[label] || "(none)", values: row.labels[label] ? spread(found[at]) : days.map(() => 0) })).filter((_part, at) => biggest[at].labels[label]);
  const rest = whole.map((value, at) => Math.max(0, value - series.reduce((sum, { values }) => sum + values[at], 0)));
  return rest.some((value) => value > Math.max(...whole) * 1e-9) ? [...series, { label: "others", values: rest }] : series;
}

async function askUsage(params, chosen) {
  const range = daysOf(params);
  const days = everyDay(range);
  const where = { first_day: range.first, last_day: range.last, ...Object.fromEntries(FILTERS.map((name) => [name, params[name]])) };
  const of = MEASURES[params.measure]?.[1] ?? MEASURES.cost[1];
  const ask = (by) => api.list("/usage", { ...where, by }, "items", MOST_ROWS);
  const [byDay, byTenant, byModel, rows] = await Promise.all([ask(["day"]), ask(["tenant"]), ask(["model"]), ask(chosen)]);
  const [tenantDays, modelDays] = await Promise.all([parts("tenant", byTenant, byDay, days, where, of), parts("model", byModel, byDay, days, where, of)]);
  return { range, days, byDay, byTenant, byModel, rows, tenantDays, modelDays };
}

/** A cell as programs read it. A text that a spreadsheet would run as a formula gets a quote in front: names come from foreign hands. */
export function csvCell(value) {
  const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value ?? "");
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export const csvOf = (rows, labels) =>
  [[...labels, ...SUMS, "cost_usd"].join(","), ...rows.map((row) => [...labels.map((name) => csvCell(row.labels[name])), ...SUMS.map((name) => row[name]), row.cost_usd].join(","))].join("\r\n") + "\r\n";

function download(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

const move = (params) => {
  const kept = Object.entries(params).filter(([, value]) => value !== "" && value !== undefined);
  history.replaceState(null, "", `#/usage${kept.length ? `?${new URLSearchParams(kept)}` : ""}`);
  dispatchEvent(new HashChangeEvent("hashchange"));
};

function Filters({ params, confined }) {
  const change = (event) => {
    event.preventDefault();
    const form = event.target.closest("form");
    const values = Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, value.trim()]));
    // days that were chosen stay in the form; those of a named range are shown only
    move({ ...params, ...values });
  };
  const shown = daysOf(params);
  const text = (name, label) => html`<${Field} label=${label} name=${name}><${Typed} name=${name} value=${params[name] ?? ""} size="12" maxlength="256" spellcheck=${false} /><//>`;
  return html`<form class="filters" aria-label="What to show" onSubmit=${change} onChange=${change}>
    <${Field} label="Time (days in UTC)" name="range"><select name="range">${Object.entries(RANGES).map(([key, words]) => html`<option key=${key} value=${key} selected=${key === (params.range ?? "30")}>${words}</option>`)}</select><//>
    ${params.range === "custom" && html`<${Field} label="First day" name="first"><${Typed} type="date" name="first" value=${shown.first} max=${shown.last} /><//><${Field} label="Last day" name="last"><${Typed} type="date" name="last" value=${shown.last} min=${shown.first} /><//>`}
    <${Field} label="Show" name="measure"><select name="measure">${Object.entries(MEASURES).map(([key, [words]]) => html`<option key=${key} value=${key} selected=${key === (params.measure ?? "cost")}>${words}</option>`)}</select><//>
    ${!confined && text("tenant", "Tenant")}
    ${text("model", "Model")}
    ${text("project", "Project")}
    ${text("key", "Key")}
    ${text("user", "End user")}
  </form>`;
}

function Group({ chosen, params }) {
  const toggle = (name) => {
    const next = chosen.includes(name) ? chosen.filter((one) => one !== name) : [...chosen, name];
    if (next.length) move({ ...params, by: Object.keys(LABELS).filter((label) => next.includes(label)).join("+") });
  };
  return html`<fieldset class="row plain"><legend class="small soft">One row for each</legend>
    ${Object.entries(LABELS).map(([name, words]) => html`<label class="check small" key=${name}><input type="checkbox" checked=${chosen.includes(name)} onChange=${() => toggle(name)} /> ${words}</label>`)}
  </fieldset>`;
}

/** What a row belongs to, or that it belongs to nothing. */
const named = (value) => (value ? html`<div class="name-cell break">${value}</div>` : html`<span class="soft">(none)</span>`);

function Shown({ found, params, chosen, confined }) {
  const { range, days, byDay, byTenant, byModel, rows, tenantDays, modelDays } = found;
  const [title, of, format] = MEASURES[params.measure] ?? MEASURES.cost;
  const labels = rows.length ? Object.keys(rows[0].labels) : chosen;
  const prompt = sumOf(byDay, (row) => row.prompt_tokens);
  const cached = sumOf(byDay, (row) => row.cached_tokens);
  const file = `tidegate-usage-${range.first}-to-${range.last}`;
  const bars = (totals, label) => [...totals].sort((a, b) => of(b) - of(a)).slice(0, 10).map((row) => ({ label: row.labels[label] || "(none)", value: of(row) }));
  const nothing = html`<${Empty} title="No usage in this time">Usage is there about two seconds after a request has ended. Choose a longer time or fewer filters; cost needs a price of the model: tidegate price set.<//>`;
  const columns = [
    ...labels.map((name) => ({ key: name, title: LABELS[name] ?? name, show: (row) => named(row.labels[name]), sort: (row) => row.labels[name] })),
    ...[["requests", "Requests"], ["prompt_tokens", "Prompt tokens"], ["cached_tokens", "of them cached"], ["completion_tokens", "Output tokens"]].map(([key, words]) => ({ key, title: words, num: true, show: (row) => count(row[key]) })),
    { key: "cost_usd", title: "Cost", num: true, show: (row) => html`<span title=${`$${row.cost_usd}`}>${usd(Number(row.cost_usd))}</span>`, sort: (row) => Number(row.cost_usd) },
  ];
  return html`
    <${Tiles}>
      <${Tile} label="Cost" value=${usd(sumOf(byDay, MEASURES.cost[1]))} under=${`${usd(sumOf(byDay, MEASURES.cost[1]) / Math.max(days.length, 1))} a day`} />
      <${Tile} label="Requests" value=${count(sumOf(byDay, (row) => row.requests))} />
      <${Tile} label="Prompt tokens" value=${count(prompt)} under=${prompt ? `${percent(cached / prompt)} from engines' caches` : ""} />
      <${Tile} label="Output tokens" value=${count(sumOf(byDay, (row) => row.completion_tokens))} />
      ${confined ? null : html`<${Tile} label="Tenants" value=${count(byTenant.length)} under=${`${count(byModel.length)} ${byModel.length === 1 ? "model" : "models"}`} />`}
    <//>
    <div class="grid">
      ${!confined && html`<${Columns} title=${`${title} by day and tenant`} days=${days} series=${tenantDays} format=${format} />`}
      <${Columns} title=${`${title} by day and model`} days=${days} series=${modelDays} format=${format} />
    </div>
    ${byDay.length > 0 && html`<div class="grid">
      ${!confined && html`<${Panel} title=${`${title} by tenant`}><${Bars} title=${`${title} by tenant`} bars=${bars(byTenant, "tenant")} format=${format} /><//>`}
      <${Panel} title=${`${title} by model`}><${Bars} title=${`${title} by model`} bars=${bars(byModel, "model")} format=${format} /><//>
    </div>`}
    <${Panel} title="Rows" side=${html`<div class="row">
        <button type="button" disabled=${!rows.length} onClick=${() => download(`${file}.csv`, "text/csv", csvOf(rows, labels))}>Export CSV</button>
        <button type="button" disabled=${!rows.length} onClick=${() => download(`${file}.json`, "application/json", JSON.stringify(rows, null, 1))}>Export JSON</button>
      </div>`}>
      <${Group} chosen=${chosen} params=${params} />
      ${rows.length >= MOST_ROWS && html`<p class="banner" role="status">These are the first ${count(MOST_ROWS)} rows. Choose fewer labels or a shorter time; tidegate usage export writes everything.</p>`}
      <${Table} caption="Usage" columns=${columns} rows=${rows} id=${(row) => JSON.stringify(row.labels)} most=${100} empty=${nothing} />
    <//>`;
}

export function UsagePage({ me, params }) {
  const confined = !me.roles.some((role) => READERS.includes(role));
  const wanted = (params.by ?? "").split(/[+ ]/).filter((name) => name in LABELS);
  const chosen = wanted.length ? wanted : confined ? ["project", "model"] : ["tenant", "model"];
  const found = useAsk(() => askUsage(params, chosen), [JSON.stringify(params)], 10_000);
  return html`
    <${Head} title="Usage & cost" sub=${confined ? `What ${me.tenant} has used, by the prices of its time.` : "What was used, by the prices of its time."} />
    <${Panel}><${Filters} params=${params} confined=${confined} /><//>
    <${Found} of=${found} what="Adding up">${(data) => html`<${Shown} found=${data} params=${params} chosen=${chosen} confined=${confined} />`}<//>`;
}
