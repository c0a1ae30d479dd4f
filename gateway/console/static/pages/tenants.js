// Tenants: the list of them, and one tenant with its budgets, keys, projects and limits.
import { html, useState } from "../vendor/preact-htm.js";
import { api, path } from "../lib/api.js";
import { Columns } from "../lib/chart.js";
import { NONE, count, moment, usd } from "../lib/format.js";
import { Confirm, Empty, Field, Found, Head, Panel, Table, Tabs, Tile, Tiles, Time, onlyTenant, useAsk } from "../lib/ui.js";
import { AccountButton, Disable, State } from "./account_forms.js";
import { maySetInside, maySetTenant, rightsWords } from "./tenant_forms.js";
import { Keys } from "./tenant_keys.js";
import { Budgets, Limits } from "./tenant_limits.js";
import { dayOf, daysOf, everyDay } from "./usage.js";

const MOST = 2000;
const open = (name, tab = "") => (location.hash = `#/tenants${name ? path`/${name}` : ""}${tab && `/${tab}`}`);
const firstOfMonth = () => `${dayOf(Date.now()).slice(0, 8)}01`;
const organisationOf = (me, { organisation }) => (onlyTenant(me) === null ? html`<a href=${path`#/organisations/${organisation}`}>${organisation}</a>` : organisation);

function TenantList({ me }) {
  const tenants = useAsk(() => api.list("/tenants", {}, "items", MOST), [], 10_000);
  const month = useAsk(() => api.list("/usage", { by: "tenant", first_day: firstOfMonth() }, "items", MOST), [], 10_000);
  const may = maySetTenant(me);
  const organisations = useAsk(() => (may ? api.list("/organisations", {}, "items", MOST) : Promise.resolve([])));
  const [wanted, setWanted] = useState("");
  const used = new Map((month.data ?? []).map((row) => [row.labels.tenant, row]));
  const columns = [
    { key: "name", title: "Tenant", show: (t) => html`<strong>${t.name}</strong>` },
    { key: "label", title: "Label", show: (t) => html`<span class="break">${t.label || NONE}</span>` },
    { key: "disabled", title: "State", show: (t) => html`<${State} of=${t} />` },
    { key: "organisation", title: "Organisation", show: (t) => organisationOf(me, t) },
    { key: "requests", title: "Requests this month", num: true, sort: (t) => used.get(t.name)?.requests ?? 0, show: (t) => (month.data ? count(used.get(t.name)?.requests ?? 0) : NONE) },
    { key: "cost", title: "Cost this month", num: true, sort: (t) => Number(used.get(t.name)?.cost_usd ?? 0), show: (t) => (month.data ? usd(Number(used.get(t.name)?.cost_usd ?? 0)) : NONE) },
    { key: "created_unix", title: "Created", show: (t) => html`<${Time} unix=${t.created_unix} />` },
  ];
  return html`<${Head} title="Tenants & keys" sub="Each tenant is isolated from the others, and has its own keys, rights and limits.">
      ${may && html`<${AccountButton} label="Create tenant" title="Create a tenant" where="/tenants" isNew primary withOrganisation organisations=${organisations.data ?? []} done=${(made) => open(made.name)} />`}
    <//>
    <${Found} of=${tenants} what="Reading the tenants">${(all) => {
      const rows = all.filter((t) => `${t.name} ${t.label} ${t.organisation}`.toLowerCase().includes(wanted.toLowerCase()));
      return html`<${Panel}>
        ${all.length > 1 && html`<form class="filters" onSubmit=${(event) => event.preventDefault()}><${Field} label="Find"><input type="search" value=${wanted} onInput=${(event) => setWanted(event.target.value)} placeholder="name, label, organisation" /><//><span class="small soft" role="status">${count(rows.length)} of ${count(all.length)}</span></form>`}
        <${Table} caption="Tenants" columns=${columns} rows=${rows} id=${(t) => t.name} onPick=${(t) => open(t.name)} pickLabel=${(t) => `Open ${t.name}`} most=${100} empty=${all.length ? html`<${Empty} title="No tenant is named so">Change the words of “Find”.<//>` : html`<${Empty} title="No tenant yet">${may ? "Create one, and then a key for it." : "An owner or admin creates tenants."}<//>`} />
        ${all.length >= MOST && html`<p class="small soft">The first ${count(MOST)} tenants are shown; tidegate tenant list shows all.</p>`}
      <//>`;
    }}<//>`;
}

function Overview({ me, tenant, of }) {
  const range = daysOf({ range: "30" });
  const usage = useAsk(() => api.list("/usage", { by: "day", tenant, first_day: range.first < firstOfMonth() ? range.first : firstOfMonth() }, "items", 366), [tenant], 10_000);
  const days = everyDay(range);
  const rows = usage.data ?? [];
  const month = rows.filter((row) => row.labels.day >= firstOfMonth());
  const sum = (pick) => month.reduce((total, row) => total + pick(row), 0);
  const byDay = Object.fromEntries(rows.map((row) => [row.labels.day, Number(row.cost_usd)]));
  return html`
    <${Tiles}>
      <${Tile} label="Cost this month" value=${usage.data ? usd(sum((row) => Number(row.cost_usd))) : NONE} under="days in UTC" />
      <${Tile} label="Requests this month" value=${usage.data ? count(sum((row) => row.requests)) : NONE} />
      <${Tile} label="Prompt tokens this month" value=${usage.data ? count(sum((row) => row.prompt_tokens)) : NONE} />
      <${Tile} label="Output tokens this month" value=${usage.data ? count(sum((row) => row.completion_tokens)) : NONE} />
    <//>
    <${Budgets} tenant=${tenant} />
    <${Found} of=${usage} what="Adding up">${() => html`<${Columns} title="Cost by day, last 30 days" days=${days} series=${[{ label: "cost", values: days.map((day) => byDay[day] ?? 0) }]} format=${usd} empty="No cost in this time: no request, or no price of the model" />`}<//>
    <p><a href=${`#/usage?tenant=${encodeURIComponent(tenant)}`}>Usage and cost of ${tenant} in detail</a></p>
    <${Panel} title="About"><dl class="facts">
      <dt>Label</dt><dd>${of.label || NONE}</dd><dt>Organisation</dt><dd>${organisationOf(me, of)}</dd>
      <dt>Created</dt><dd><time datetime=${new Date(of.created_unix * 1000).toISOString()}>${moment(of.created_unix)}</time></dd>
      <dt>Rights</dt><dd>${rightsWords(of.rights) ?? "not restricted at this level"}</dd></dl><//>`;
}

function Projects({ me, tenant }) {
  const projects = useAsk(() => api.list(path`/tenants/${tenant}/projects`, {}, "items", MOST), [tenant], 10_000);
  const may = maySetInside(me, tenant);
  const all = path`/tenants/${tenant}/projects`;
  const columns = [
    { key: "name", title: "Project", show: (p) => html`<strong>${p.name}</strong><div class="small soft break">${p.label}</div>` },
    { key: "disabled", title: "State", show: (p) => html`<${State} of=${p} />` },
    { key: "rights", title: "Restricted to", fixed: true, show: (p) => html`<span class="small break">${rightsWords(p.rights) ?? NONE}</span>` },
    { key: "created_unix", title: "Created", show: (p) => html`<${Time} unix=${p.created_unix} />` },
    ...(may ? [{ key: "actions", title: "Actions", fixed: true, show: (p) => {
      const where = `${all}${path`/${p.name}`}`;
      return html`<div class="actions"><${AccountButton} label="Change" about=${`Change project ${p.name}`} title=${`Project ${p.name}`} where=${where} done=${projects.again} /><${Disable} where=${where} of=${p} what="project" done=${projects.again} />
        ${p.name !== "default" && html`<${Confirm} label="Delete" title=${`Delete project ${p.name}?`} work=${() => api.remove(where)} done=${projects.again}>Its revoked keys and its limits go with it. It is refused while a key is not revoked.<//>`}</div>`;
    } }] : []),
  ];
  return html`<${Found} of=${projects} what="Reading the projects">${(rows) => html`<${Panel} title="Projects" side=${may && html`<${AccountButton} label="Create project" title="Create a project" where=${all} isNew primary done=${projects.again} />`}>
    <${Table} caption="Projects" columns=${columns} rows=${rows} id=${(p) => p.name} most=${100} empty=${html`<${Empty} title="No project">Every tenant has “default”.<//>`} /><//>`}<//>`;
}

const TABS = [["overview", "Budget & cost"], ["keys", "Keys"], ["projects", "Projects"], ["limits", "Limits"]];

function OneTenant({ me, tenant, tab }) {
  const found = useAsk(() => api.get(path`/tenants/${tenant}`), [tenant], 10_000);
  const may = maySetTenant(me);
  const organisations = useAsk(() => (may ? api.list("/organisations", {}, "items", MOST) : Promise.resolve([])));
  const now = TABS.some(([key]) => key === tab) ? tab : "overview";
  const where = path`/tenants/${tenant}`;
  if (found.error?.status === 404) return html`<${Head} title="Tenants & keys" /><${Empty} title="There is no such tenant">It may have been deleted, or it belongs to somebody else. <a href="#/tenants">All tenants</a><//>`;
  return html`<${Head} title=${tenant} sub=${html`<a href="#/tenants">Tenants</a>`}>
      ${found.data && html`<${State} of=${found.data} />`}
      ${may && found.data && html`<${AccountButton} label="Change" about=${`Change tenant ${tenant}`} title=${`Tenant ${tenant}`} where=${where} withOrganisation organisations=${organisations.data ?? []} done=${found.again} />
        <${Disable} where=${where} of=${found.data} what="tenant" done=${found.again} />
        <${Confirm} label="Delete" title=${`Delete tenant ${tenant}?`} work=${() => api.remove(where)} done=${() => open("")}>Its projects, revoked keys and limits go with it, and its name cannot be used again. It is refused while a key is not revoked. Disable a tenant that may come back.<//>`}
    <//>
    <${Tabs} label=${`Parts of ${tenant}`} tabs=${TABS} now=${now} onTab=${(key) => open(tenant, key)} />
    <${Found} of=${found} what="Reading the tenant">${(of) => html`
      ${now === "overview" && html`<${Overview} me=${me} tenant=${tenant} of=${of} />`}
      ${now === "keys" && html`<${Keys} me=${me} tenant=${tenant} />`}
      ${now === "projects" && html`<${Projects} me=${me} tenant=${tenant} />`}
      ${now === "limits" && html`<${Limits} me=${me} tenant=${tenant} />`}`}<//>`;
}

export function Tenants({ me, parts }) {
  const [tenant, tab] = parts;
  return tenant ? html`<${OneTenant} key=${tenant} me=${me} tenant=${tenant} tab=${tab} />` : html`<${TenantList} me=${me} />`;
}
