// Organisations: the list of them, and one organisation with its tenants, limits and budgets.
import { html } from "../vendor/preact-htm.js";
import { api, path } from "../lib/api.js";
import { NONE, count, moment, usd } from "../lib/format.js";
import { Confirm, Empty, Found, Head, Panel, Table, Tabs, Time, useAsk } from "../lib/ui.js";
import { AccountButton, Disable, State } from "./account_forms.js";
import { maySetTenant, rightsWords } from "./tenant_forms.js";
import { Budgets, Limits } from "./tenant_limits.js";
import { dayOf } from "./usage.js";

const MOST = 2000;
const TABS = [["tenants", "Tenants"], ["limits", "Limits"], ["budgets", "Budgets"]];
const open = (name, tab = "") => (location.hash = `#/organisations${name ? path`/${name}` : ""}${tab && `/${tab}`}`);

/** The tenants, and what each has used this month. */
function useTenants() {
  const tenants = useAsk(() => api.list("/tenants", {}, "items", MOST), [], 10_000);
  const month = useAsk(() => api.list("/usage", { by: "tenant", first_day: `${dayOf(Date.now()).slice(0, 8)}01` }, "items", MOST), [], 10_000);
  const used = new Map((month.data ?? []).map((row) => [row.labels.tenant, row]));
  const cost = (name) => Number(used.get(name)?.cost_usd ?? 0);
  const requests = (name) => used.get(name)?.requests ?? 0;
  return { tenants, month, cost, requests, cut: (tenants.data ?? []).length >= MOST };
}

const Cut = () => html`<p class="small soft">Only the first ${count(MOST)} tenants of the gateway are counted here; tidegate tenant list shows all.</p>`;

function OrganisationList({ me }) {
  const found = useAsk(() => api.list("/organisations", {}, "items", MOST), [], 10_000);
  const { tenants, month, cost, cut } = useTenants();
  const may = maySetTenant(me);
  const inside = (name) => (tenants.data ?? []).filter(({ organisation }) => organisation === name);
  const spent = (o) => inside(o.name).reduce((total, t) => total + cost(t.name), 0);
  const columns = [
    { key: "name", title: "Organisation", show: (o) => html`<strong>${o.name}</strong>` },
    { key: "label", title: "Label", show: (o) => html`<span class="break">${o.label || NONE}</span>` },
    { key: "disabled", title: "State", show: (o) => html`<${State} of=${o} />` },
    { key: "tenants", title: "Tenants", num: true, sort: (o) => inside(o.name).length, show: (o) => (tenants.data ? count(inside(o.name).length) : NONE) },
    { key: "cost", title: "Cost this month", num: true, sort: spent, show: (o) => (tenants.data && month.data ? usd(spent(o)) : NONE) },
    { key: "created_unix", title: "Created", show: (o) => html`<${Time} unix=${o.created_unix} />` },
  ];
  return html`<${Head} title="Organisations" sub="The tenants of an organisation are limited together. Every tenant is in one.">
      ${may && html`<${AccountButton} label="Create organisation" title="Create an organisation" where="/organisations" isNew primary done=${(made) => open(made.name)} />`}
    <//>
    <${Found} of=${found} what="Reading the organisations">${(all) => html`<${Panel}>
      <${Table} caption="Organisations" columns=${columns} rows=${all} id=${(o) => o.name} onPick=${(o) => open(o.name)} pickLabel=${(o) => `Open ${o.name}`} most=${100} empty=${html`<${Empty} title="No organisation yet">${may ? "Create one, and put tenants into it." : "An owner or admin creates organisations."}<//>`} />
      ${all.length >= MOST && html`<p class="small soft">The first ${count(MOST)} organisations are shown; tidegate org list shows all.</p>`}
      ${cut && html`<${Cut} />`}
    <//>`}<//>`;
}

function Members({ of }) {
  const { tenants, month, cost, requests, cut } = useTenants();
  const columns = [
    { key: "name", title: "Tenant", show: (t) => html`<strong>${t.name}</strong>` },
    { key: "label", title: "Label", show: (t) => html`<span class="break">${t.label || NONE}</span>` },
    { key: "disabled", title: "State", show: (t) => html`<${State} of=${t} />` },
    { key: "requests", title: "Requests this month", num: true, sort: (t) => requests(t.name), show: (t) => (month.data ? count(requests(t.name)) : NONE) },
    { key: "cost", title: "Cost this month", num: true, sort: (t) => cost(t.name), show: (t) => (month.data ? usd(cost(t.name)) : NONE) },
  ];
  const show = (tenant) => (location.hash = path`#/tenants/${tenant.name}`);
  return html`<${Found} of=${tenants} what="Reading the tenants">${(all) => html`<${Panel} title="Tenants in it">
      <${Table} caption="Tenants in it" columns=${columns} rows=${all.filter(({ organisation }) => organisation === of.name)} id=${(t) => t.name} onPick=${show} pickLabel=${(t) => `Open tenant ${t.name}`} most=${100} empty=${html`<${Empty} title="No tenant is in it">Open a tenant in “Tenants & keys”, and change its organisation.<//>`} />
      ${cut && html`<${Cut} />`}
    <//>`}<//>
    <${Panel} title="About"><dl class="facts">
      <dt>Label</dt><dd>${of.label || NONE}</dd>
      <dt>Created</dt><dd><time datetime=${new Date(of.created_unix * 1000).toISOString()}>${moment(of.created_unix)}</time></dd>
      <dt>Rights</dt><dd>${rightsWords(of.rights) ?? "not restricted at this level"}</dd></dl><//>`;
}

function OneOrganisation({ me, organisation, tab }) {
  const found = useAsk(() => api.get(path`/organisations/${organisation}`), [organisation], 10_000);
  const may = maySetTenant(me);
  const now = TABS.some(([key]) => key === tab) ? tab : "tenants";
  const where = path`/organisations/${organisation}`;
  if (found.error?.status === 404) return html`<${Head} title="Organisations" /><${Empty} title="There is no such organisation">It may have been deleted. <a href="#/organisations">All organisations</a><//>`;
  return html`<${Head} title=${organisation} sub=${html`<a href="#/organisations">Organisations</a>`}>
      ${found.data && html`<${State} of=${found.data} />`}
      ${may && found.data && html`<${AccountButton} label="Change" about=${`Change organisation ${organisation}`} title=${`Organisation ${organisation}`} where=${where} done=${found.again} />
        <${Disable} where=${where} of=${found.data} what="organisation" done=${found.again} />
        <${Confirm} label="Delete" title=${`Delete organisation ${organisation}?`} work=${() => api.remove(where)} done=${() => open("")}>Its limits go with it. It is refused while a tenant is in it.<//>`}
    <//>
    <${Tabs} label=${`Parts of ${organisation}`} tabs=${TABS} now=${now} onTab=${(key) => open(organisation, key)} />
    <${Found} of=${found} what="Reading the organisation">${(of) => html`
      ${now === "tenants" && html`<${Members} of=${of} />`}
      ${now === "limits" && html`<${Limits} me=${me} organisation=${organisation} />`}
      ${now === "budgets" && html`<${Budgets} organisation=${organisation} />`}`}<//>`;
}

export function Organisations({ me, parts }) {
  const [organisation, tab] = parts;
  return organisation ? html`<${OneOrganisation} key=${organisation} me=${me} organisation=${organisation} tab=${tab} />` : html`<${OrganisationList} me=${me} />`;
}
