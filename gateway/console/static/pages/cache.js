// The answer cache: what it saved and how often it is wrong, what it keeps, and purges.
import { html, useState } from "../vendor/preact-htm.js";
import { api, path } from "../lib/api.js";
import { Chart } from "../lib/chart.js";
import { NONE, bytes, count, percent, usd } from "../lib/format.js";
import { useLive } from "../lib/live.js";
import { Badge, Dialog, Empty, Failure, Field, Found, Head, Loading, Panel, Table, Tile, Tiles, Time, onlyTenant, useAsk, useChange, valuesOf } from "../lib/ui.js";

const READERS = ["owner", "admin", "operator", "billing", "auditor"];
const PURGERS = ["owner", "admin", "operator", "tenant-admin"];
const CONTENT_READERS = ["owner", "tenant-admin"];
const KINDS = { "hit-exact": "equal", "hit-partial": "partly known", "hit-semantic": "similar", miss: "misses" };
const LISTED = 200;
const has = (me, roles) => me.roles.some((role) => roles.includes(role));
const hits = (t) => t.hits + t.partial_hits + t.semantic_hits;
const ratio = (t) => (hits(t) + t.misses ? hits(t) / (hits(t) + t.misses) : null);
const inWords = (reasons) => Object.entries(reasons).sort((a, b) => b[1] - a[1]).map(([word, number]) => `${word} ${count(number)}`).join(", ") || NONE;
const total = (tenants, pick) => tenants.reduce((sum, tenant) => sum + pick(tenant), 0);

/** The parameter that names an owner as the API takes it: `group:` and a name, or a tenant. */
const owned = (owner) => (owner.startsWith("group:") ? { group: owner.slice(6) } : { tenant: owner });

function LiveHits() {
  const { samples } = useLive();
  const series = Object.entries(KINDS).map(([word, label]) => ({ label, values: samples.map((s) => s.cache?.[word]) }));
  return html`<div class="grid"><${Chart} title="Look-ups per second, by result" times=${samples.map(({ at_unix }) => at_unix)} series=${series} stacked empty="Nothing was looked up in the last minutes" /></div>`;
}

const TENANT_COLUMNS = [
  { key: "tenant", title: "Tenant", show: (t) => html`<span class="break">${t.tenant}</span>` },
  { key: "ratio", title: "Hits", num: true, sort: ratio, show: (t) => percent(ratio(t)) },
  { key: "hits", title: "Equal", num: true, show: (t) => count(t.hits) },
  { key: "partial_hits", title: "Partly", num: true, show: (t) => count(t.partial_hits) },
  { key: "semantic_hits", title: "Similar", num: true, show: (t) => count(t.semantic_hits) },
  { key: "misses", title: "Misses", num: true, show: (t) => count(t.misses) },
  { key: "tokens", title: "Saved tokens", num: true, sort: (t) => t.saved_prompt_tokens + t.saved_completion_tokens, show: (t) => html`${count(t.saved_prompt_tokens + t.saved_completion_tokens)}<div class="small soft">${count(t.saved_prompt_tokens)} in, ${count(t.saved_completion_tokens)} out</div>` },
  { key: "saved_usd", title: "Saved", num: true, sort: (t) => Number(t.saved_usd), show: (t) => usd(Number(t.saved_usd)) },
  { key: "bypassed", title: "Passed by", fixed: true, show: (t) => html`<span class="small">${inWords(t.bypassed)}</span>` },
  { key: "not_kept", title: "Not kept", fixed: true, show: (t) => html`<span class="small">${inWords(t.not_kept)}</span>` },
  { key: "not_similar", title: "Not similar", fixed: true, show: (t) => html`<span class="small">${inWords(t.not_similar)}</span>` },
];

const AUDIT_COLUMNS = [
  { key: "owner", title: "Tenant or group", show: (a) => html`<span class="break">${a.owner}</span>` },
  { key: "wrong_rate", title: "Wrong per hit", num: true, show: (a) => html`<strong>${percent(a.wrong_rate)}</strong>` },
  { key: "upper", title: "95 % confidence", num: true, show: (a) => `${percent(a.lower)} to ${percent(a.upper)}` },
  { key: "allowed", title: "Allowed", num: true, show: (a) => percent(a.allowed) },
  { key: "audits", title: "Audits", num: true, show: (a) => count(a.audits) },
  { key: "state", title: "State", fixed: true, show: (a) => (a.stopped ? html`<${Badge} kind="bad">stopped<//>` : a.lower > a.allowed ? html`<${Badge} kind="bad">above the bound<//>` : a.upper <= a.allowed ? html`<${Badge} kind="good">proven<//>` : html`<${Badge} kind="warn">not proven yet<//>`) },
];

function Wrong({ shown }) {
  const given = total(shown.tenants, (t) => t.semantic_hits);
  const empty = html`<${Empty} title="There is no estimate">${given ? "Similar questions got answers, and none was audited: a policy with decision: threshold learns nothing about its errors. decision: verified does." : "No similar question was answered and audited yet. It needs cache: semantic: in a policy, and some hundreds of questions."} What a policy's terms gave on public sets of questions, tidegate check prints.<//>`;
  return html`<${Panel} title="Wrong answers to similar questions">
    <p class="small soft">Estimated from audits: a part of what would be hits is asked for all the same, and the engine's fresh answer compared with the kept one. Equal requests get the same answer and have no error of this kind.</p>
    <${Table} caption="Wrong answers to similar questions" rows=${shown.audited} id=${(a) => `${a.owner} ${a.allowed}`} columns=${AUDIT_COLUMNS} empty=${empty} />
  <//>`;
}

function Stores({ shown }) {
  const similar = new Map(shown.similar.map((row) => [row.worker, row]));
  const rows = shown.workers.map((row) => ({ ...row, similar: similar.get(row.worker) }));
  const columns = [
    { key: "worker", title: "Worker" },
    { key: "kind", title: "Where", show: (w) => (w.kind === "shared" ? "the shared store" : "memory") },
    { key: "entries", title: "Answers", num: true, show: (w) => count(w.entries) },
    { key: "bytes", title: "Size", num: true, show: (w) => bytes(w.bytes) },
    { key: "evicted", title: "Made room", num: true, show: (w) => count(w.evicted) },
    { key: "away", title: "Store away", num: true, show: (w) => count(w.away) },
    { key: "lost", title: "Not kept", num: true, show: (w) => count(w.lost) },
    { key: "refused", title: "Damaged", num: true, show: (w) => count(w.refused) },
    { key: "similar", title: "Similar questions", fixed: true, show: (w) => (w.similar ? html`${w.similar.state === "ready" ? `${count(w.similar.questions)}, ${bytes(w.similar.bytes)}` : w.similar.state}` : NONE) },
  ];
  return html`<${Panel} title="Where answers are kept"><${Table} caption="Stores by worker" rows=${rows} id=${(w) => w.worker} columns=${columns} empty=${html`<${Empty} title="No worker answers">They may be starting; see the page Gateway.<//>`} /><//>`;
}

function Owner({ me, owners, error, value, onChange }) {
  if (me.tenant) return null;
  return html`<${Field} label="Tenant or group" name="tenant" error=${error}>
    <input name="owner" list="cache-owners" required maxlength="70" autocomplete="off" spellcheck=${false} value=${value} onInput=${onChange && ((event) => onChange(event.target.value))} />
    <datalist id="cache-owners">${owners.map((name) => html`<option key=${name} value=${name} />`)}</datalist>
  <//>`;
}

function Content({ owner, entry, onClose }) {
  const found = useAsk(() => api.get(path`/cache/entries/${entry.key}`, owned(owner)), [entry.key]);
  return html`<${Dialog} title="A kept answer" open onClose=${onClose}><${Found} of=${found} what="Reading">${(one) => html`
    <dl class="facts"><dt>Model</dt><dd>${one.model}</dd><dt>Kept</dt><dd><${Time} unix=${one.kept_unix} /></dd><dt>Ends</dt><dd><${Time} unix=${one.expires_unix} /></dd><dt>Tokens</dt><dd>${count(one.prompt_tokens)} prompt, ${count(one.completion_tokens)} output</dd><dt>Key</dt><dd class="mono">${one.writer}</dd></dl>
    <pre tabindex="0" aria-label="The reply as it was kept">${JSON.stringify(one.document, null, 2)}</pre>`}<//><//>`;
}

function Entries({ me, owners }) {
  const [asked, setAsked] = useState(me.tenant ? { owner: me.tenant } : null);
  const [open, setOpen] = useState(null);
  const found = useAsk(() => (asked ? api.get("/cache/entries", { ...owned(asked.owner), model: asked.model, namespace: asked.namespace, limit: LISTED }) : Promise.resolve(null)), [asked]);
  const submit = (event) => {
    event.preventDefault();
    const { owner = me.tenant, ...rest } = valuesOf(event.target);
    setOpen(null);
    setAsked({ owner, ...rest });
  };
  const columns = [
    { key: "key", title: "Key", show: (e) => html`<span class="mono small">${e.key.slice(0, 12)}</span>` },
    { key: "model", title: "Model", show: (e) => html`<span class="break">${e.model}</span>` },
    { key: "namespace", title: "Namespace", show: (e) => e.namespace || NONE },
    { key: "bytes", title: "Size", num: true, show: (e) => bytes(e.bytes) },
    { key: "kept_unix", title: "Kept", show: (e) => html`<${Time} unix=${e.kept_unix} />` },
    { key: "expires_unix", title: "Ends", show: (e) => html`<${Time} unix=${e.expires_unix} />` },
    { key: "writer", title: "Made for key", show: (e) => html`<span class="mono small break">${e.writer}</span>` },
  ];
  const mayOpen = has(me, CONTENT_READERS);
  const list = ({ entries }) => html`
    <${Table} caption="Kept answers" rows=${entries} id=${(e) => e.key} columns=${columns} onPick=${mayOpen ? setOpen : null} pickLabel=${(e) => `Show the answer ${e.key.slice(0, 12)}`} empty=${html`<${Empty} title="No answer is kept">The policy needs cache:, and requests a temperature of 0 or sampled: true. “Passed by” and “Not kept” above say why others took no part.<//>`} />
    ${entries.length >= LISTED && html`<p class="small soft">The list has ${LISTED} answers at most. Narrow it by model or namespace.</p>`}`;
  return html`<${Panel} title="Kept answers">
    <form class="filters" onSubmit=${submit}>
      <${Owner} me=${me} owners=${owners} error=${found.error} />
      <${Field} label="Model" name="model" error=${found.error} maxlength="256" autocomplete="off" />
      <${Field} label="Namespace" name="namespace" error=${found.error} autocomplete="off" />
      <button>List</button>
    </form>
    ${!asked ? html`<${Empty} title="Name a tenant or a group">Its kept answers are listed without their content.<//>` : found.loading ? html`<${Loading} what="Asking the workers" />` : found.error ? html`<${Failure} error=${found.error} again=${found.again} />` : found.data && list(found.data)}
    ${open && html`<${Content} owner=${asked.owner} entry=${open} onClose=${() => setOpen(null)} />`}
  <//>`;
}

function Purge({ me, owners, done }) {
  const change = useChange();
  const [open, setOpen] = useState(false);
  const [owner, setOwner] = useState(me.tenant ?? "");
  const [told, setTold] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    const { owner: named = me.tenant, before, ...scopes } = valuesOf(event.target);
    const wanted = { ...owned(named), ...scopes, ...(before ? { before_unix: new Date(before).getTime() / 1000 } : {}) };
    const { done: finished, result } = await change.run(() => api.post("/cache/purge", wanted));
    if (!finished) return;
    setOpen(false);
    setTold(result);
    done();
  };
  const { error } = change;
  return html`
    ${told && html`<span class="small" role="status">Removed from every gateway within 5 s: answers of ${told.owner} (purge ${told.number}).</span>`}
    <button type="button" class="danger" onClick=${() => { change.clear(); setOpen(true); }}>Remove answers…</button>
    <${Dialog} title="Remove kept answers" open=${open} onClose=${() => setOpen(false)}>
      <form class="stack" onSubmit=${submit}>
        <p>Answers that meet every condition are removed. It cannot be taken back; engines answer anew.</p>
        <${Owner} me=${me} owners=${owners} error=${error?.param === "group" ? { ...error, param: "tenant" } : error} value=${owner} onChange=${setOwner} />
        <${Field} label="Model" hint="Left out, of every model." name="model" error=${error} maxlength="256" autocomplete="off" />
        <${Field} label="Namespace" hint="Left out, of every namespace." name="namespace" error=${error} autocomplete="off" />
        <${Field} label="End user" hint="The label in user of its requests, for whoever asks to be forgotten. Stored Responses of that user go too, where no model and namespace is named." name="user" error=${error} maxlength="512" autocomplete="off" />
        <${Field} label="Kept before" hint="In your time zone. Left out, whenever they were kept." name="before_unix" error=${error}><input type="datetime-local" name="before" /><//>
        ${error && html`<${Failure} error=${error} />`}
        <div class="row"><button class="danger" disabled=${change.busy}>${change.busy ? "Removing…" : "Remove"}</button><button type="button" onClick=${() => setOpen(false)}>Cancel</button></div>
      </form>
    <//>`;
}

export function Cache({ me: person }) {
  const me = { ...person, tenant: onlyTenant(person) };
  const cache = useAsk(() => api.get("/cache"), [], 5000);
  const names = useAsk(() => (me.tenant ? Promise.resolve([]) : api.list("/tenants")), []);
  const owners = (names.data ?? []).map(({ name }) => name);
  const worst = (audited) => audited.reduce((most, one) => (one.wrong_rate > (most?.wrong_rate ?? -1) ? one : most), null);
  return html`
    <${Head} title="Cache" sub="Answers that are given again to equal requests, and where a policy says so to similar questions.">
      ${has(me, PURGERS) && html`<${Purge} me=${me} owners=${owners} done=${cache.again} />`}
    <//>
    <div class="page"><${Found} of=${cache} what="Asking the workers">${(shown) => {
      const { tenants } = shown;
      const looked = total(tenants, (t) => hits(t) + t.misses);
      const found = total(tenants, hits);
      const bad = worst(shown.audited);
      return html`<div class="page">
        <${Tiles}>
          <${Tile} label="Hits" value=${percent(looked ? found / looked : null)} under=${`${count(found)} of ${count(looked)} look-ups since the workers started`} />
          <${Tile} label="Equal requests" value=${count(total(tenants, (t) => t.hits))} under=${`${count(total(tenants, (t) => t.partial_hits))} more partly known`} />
          <${Tile} label="Similar questions" value=${count(total(tenants, (t) => t.semantic_hits))} under="hits" />
          <${Tile} label="Wrong, of similar" value=${percent(bad?.wrong_rate)} under=${bad ? `estimated; the most of any owner: ${bad.owner}` : "no estimate yet"} />
          <${Tile} label="Saved tokens" value=${count(total(tenants, (t) => t.saved_prompt_tokens + t.saved_completion_tokens))} />
          <${Tile} label="Saved" value=${usd(total(tenants, (t) => Number(t.saved_usd)))} under="at the prices of the models" />
        <//>
        ${has(me, READERS) && html`<${LiveHits} />`}
        <${Panel} title="By tenant"><${Table} caption="The cache by tenant" rows=${tenants} id=${(t) => t.tenant} columns=${TENANT_COLUMNS} empty=${html`<${Empty} title="Nothing was looked up yet">Write cache: {} into a policy and reload the policies. Requests with a temperature of 0 take part then.<//>`} /><//>
        <${Wrong} shown=${shown} />
        ${has(me, READERS) && html`<${Stores} shown=${shown} />`}
      </div>`;
    }}<//></div>
    <${Entries} me=${me} owners=${owners} />`;
}
