// Guard rules: what they said of requests, the last blocks, rules on trial, and a box in which a text is tried.
import { html, useState } from "../vendor/preact-htm.js";
import { api } from "../lib/api.js";
import { Chart } from "../lib/chart.js";
import { NONE, count, percent } from "../lib/format.js";
import { useLive } from "../lib/live.js";
import { Badge, Empty, Failure, Field, Found, Head, Panel, Table, Tabs, Tile, Tiles, Time, onlyTenant, useAsk, useChange, valuesOf } from "../lib/ui.js";

const READERS = ["owner", "admin", "operator", "billing", "auditor"];
const WRITERS = ["owner", "admin", "operator"];
const VERDICTS = ["passed", "flagged", "changed", "block", "unavailable", "too_long"];
const WORDS = { block: "blocked", unavailable: "a rule could not judge", too_long: "too long to hold" };
const MODES = { block: "bad", redact: "warn", replace: "warn", flag: "", shadow: "" };
const ACTIONS = { pass: ["good", "passes"], flag: ["warn", "passes, and is flagged"], change: ["warn", "is changed"], block: ["bad", "is refused"] };
const DIRECTIONS = [["input", "input: of a request"], ["output", "output: of an answer"], ["tool_arguments", "arguments of a tool"], ["tool_results", "results of a tool"], ["documents", "documents"]];
const TABS = [["", "What rules said"], ["blocks", "Blocks"], ["shadow", "On trial"], ["test", "Try a text"]];
const EXAMPLE = "rules:\n  - {id: people, kind: pii, mode: redact}\n  - {id: keys, kind: secrets, mode: block}\n";
const EVENTS_A_PAGE = 50;
const has = (me, roles) => me.roles.some((role) => roles.includes(role));
const all = (tenant) => VERDICTS.reduce((sum, word) => sum + tenant[word], 0);
const sum = (tenants, pick) => tenants.reduce((total, tenant) => total + pick(tenant), 0);

function LiveVerdicts() {
  const { samples } = useLive();
  const times = samples.map(({ at_unix }) => at_unix);
  return html`<div class="grid"><${Chart} title="Judged requests per second, by verdict" times=${times} series=${VERDICTS.map((word) => ({ label: WORDS[word] ?? word, values: samples.map((s) => s.guards?.[word]) }))} stacked empty="No request was judged in the last minutes" /></div>`;
}

function Said({ me, shown }) {
  const { tenants, rules, failures } = shown;
  const failed = new Map(failures.map((row) => [`${row.tenant} ${row.rule}`, row.failures]));
  const judged = sum(tenants, all);
  const tenantColumns = [
    { key: "tenant", title: "Tenant", show: (row) => html`<span class="break">${row.tenant}</span>` },
    { key: "all", title: "Judged", num: true, sort: all, show: (row) => count(all(row)) },
    ...VERDICTS.map((word) => ({ key: word, title: WORDS[word] ?? word, num: true, show: (row) => count(row[word]) })),
    { key: "refused", title: "Refused", num: true, sort: (row) => (row.block + row.unavailable + row.too_long) / all(row), show: (row) => percent((row.block + row.unavailable + row.too_long) / all(row)) },
  ];
  const ruleColumns = [
    { key: "rule", title: "Rule", show: (row) => html`<span class="break">${row.rule}</span>` },
    { key: "tenant", title: "Tenant", show: (row) => html`<span class="break">${row.tenant}</span>` },
    { key: "mode", title: "Mode", show: (row) => html`<${Badge} kind=${MODES[row.mode]}>${row.mode}<//>` },
    { key: "direction", title: "Texts" },
    { key: "findings", title: "Findings", num: true, show: (row) => count(row.findings) },
    { key: "failed", title: "Could not judge", num: true, sort: (row) => failed.get(`${row.tenant} ${row.rule}`) ?? 0, show: (row) => count(failed.get(`${row.tenant} ${row.rule}`) ?? 0) },
  ];
  const silent = failures.filter((row) => !rules.some((other) => other.rule === row.rule && other.tenant === row.tenant)).map((row) => ({ ...row, mode: NONE, direction: NONE, findings: 0 }));
  return html`
    <${Tiles}>
      <${Tile} label="Requests judged" value=${count(judged)} under="since the workers started" />
      <${Tile} label="Blocked" value=${count(sum(tenants, (t) => t.block))} under=${percent(judged ? sum(tenants, (t) => t.block) / judged : null)} />
      <${Tile} label="Changed" value=${count(sum(tenants, (t) => t.changed))} />
      <${Tile} label="Flagged" value=${count(sum(tenants, (t) => t.flagged))} />
      <${Tile} label="Refused, not judged" value=${count(sum(tenants, (t) => t.unavailable + t.too_long))} under="a rule failed, or the text was too long to hold" />
    <//>
    ${has(me, READERS) && html`<${LiveVerdicts} />`}
    <${Panel} title="By tenant"><${Table} caption="Verdicts by tenant" rows=${tenants} id=${(row) => row.tenant} columns=${tenantColumns} empty=${html`<${Empty} title="No request was judged yet">Write guards: rules: into a policy file and reload the policies. Try rules first, in “Try a text”.<//>`} /><//>
    <${Panel} title="By rule"><${Table} caption="Findings by rule" rows=${[...rules, ...silent]} id=${(row) => `${row.tenant} ${row.rule} ${row.mode} ${row.direction}`} columns=${ruleColumns} empty=${html`<${Empty} title="No rule has found anything yet">A rule appears with its first finding.<//>`} /><//>`;
}

function Shadow({ me, shown }) {
  const judged = new Map(shown.tenants.map((tenant) => [tenant.tenant, all(tenant)]));
  const rows = shown.rules.filter(({ mode }) => mode === "shadow").map((row) => ({ ...row, judged: judged.get(row.tenant) ?? 0 }));
  const share = (row) => (row.judged ? (row.findings / row.judged) * 1000 : null);
  const columns = [
    { key: "rule", title: "Rule", show: (row) => html`<span class="break">${row.rule}</span>` },
    { key: "tenant", title: "Tenant", show: (row) => html`<span class="break">${row.tenant}</span>` },
    { key: "direction", title: "Texts" },
    { key: "findings", title: "Findings", num: true, show: (row) => count(row.findings) },
    { key: "judged", title: "Requests judged", num: true, show: (row) => count(row.judged) },
    { key: "share", title: "Per 1,000 requests", num: true, sort: share, show: (row) => count(share(row)) },
    { key: "would", title: "With another mode", fixed: true, show: (row) => html`<div class="small" style=${{ minWidth: "12rem" }}>block would have refused or cut up to ${count(Math.min(row.findings, row.judged))} of ${count(row.judged)} requests; redact would have replaced ${count(row.findings)} findings</div>` },
  ];
  return html`<${Panel} title="Rules in shadow mode: what they would have done">
    <p class="small soft">A rule with mode: shadow looks at every text and changes nothing. One request may have several findings, so the number of requests is an upper bound. Texts are not kept; try one in “Try a text”.</p>
    <${Table} caption="Rules in shadow mode" rows=${rows} id=${(row) => `${row.tenant} ${row.rule} ${row.direction}`} columns=${columns} empty=${html`<${Empty} title="No rule in shadow mode has found anything">Give a new rule mode: shadow in the policy first. What it would have done then stands here.<//>`} />
  <//>
  <${Differences} me=${me} rules=${rows} />`;
}

const DIRECTION_WORDS = { input: "request", output: "answer", tool_arguments: "tool arguments", tool_results: "tool results", documents: "documents" };

/** Requests of the log that a rule on trial would have treated otherwise, a page of the log at a time. */
function Differences({ me, rules }) {
  const [asked, setAsked] = useState({ tenant: "", rule: "" });
  const [pages, setPages] = useState([""]);
  const cursor = pages.at(-1);
  const page = useAsk(() => api.get("/guards/shadow", { ...asked, cursor, limit: EVENTS_A_PAGE }), [asked, cursor], cursor ? 0 : 10_000);
  const filter = (event) => {
    event.preventDefault();
    setPages([""]);
    setAsked(Object.fromEntries(new FormData(event.currentTarget)));
  };
  const columns = [
    { key: "at_unix", title: "When", show: (row) => html`<${Time} unix=${row.at_unix} />` },
    { key: "tenant", title: "Tenant", show: (row) => html`<span class="break">${row.tenant}</span>` },
    { key: "model", title: "Model", show: (row) => html`<span class="break">${row.model || NONE}</span>` },
    { key: "guard", title: "As it was", show: (row) => html`<${Badge} kind=${row.guard === "passed" ? "good" : "warn"}>${(WORDS[row.guard] ?? row.guard) || "passed"}<//>` },
    { key: "findings", title: "Rules on trial found", fixed: true, show: (row) => html`<div class="small">${row.findings.map((found) => html`<div key=${`${found.rule} ${found.kind} ${found.direction}`}><strong>${found.rule}</strong>: ${found.kind} in the ${DIRECTION_WORDS[found.direction] ?? found.direction}${found.count > 1 && `, ${count(found.count)} times`}</div>`)}</div>` },
    { key: "request_id", title: "Request", show: (row) => html`<a class="nowrap mono small" href=${`#/requests/${encodeURIComponent(row.request_id)}`}>${row.request_id}</a>` },
  ];
  return html`<${Panel} title="Requests that they would have treated otherwise">
    <form class="filters" onSubmit=${filter}>
      ${!me.tenant && html`<${Field} label="Tenant" name="tenant" error=${page.error} maxlength="63" autocomplete="off" />`}
      <${Field} label="Rule" name="rule"><select name="rule"><option value="">every rule</option>${[...new Set(rules.map(({ rule }) => rule))].map((rule) => html`<option key=${rule} value=${rule}>${rule}</option>`)}</select><//>
      <button>Show</button>
    </form>
    <${Found} of=${page} what="Reading the request log">${({ items, next_cursor, looked_through }) => html`
      <${Table} caption="Requests that rules on trial differ about" rows=${items} id=${(row) => row.request_id} columns=${columns} empty=${html`<${Empty} title="None here">A rule with mode: shadow found nothing in the ${count(looked_through)} requests of the log that were looked through.<//>`} />
      <div class="row">
        ${pages.length > 1 && html`<button type="button" onClick=${() => setPages(pages.slice(0, -1))}>Newer</button>`}
        ${next_cursor && html`<button type="button" onClick=${() => setPages([...pages, next_cursor])}>Older</button>`}
        <span class="small soft">Looked through ${count(looked_through)} requests of the request log.</span>
      </div>`}<//>
  <//>`;
}

function Blocks({ me }) {
  const [tenant, setTenant] = useState("");
  const [pages, setPages] = useState([""]);
  const cursor = pages.at(-1);
  const page = useAsk(() => api.get("/guards/events", { tenant, cursor, limit: EVENTS_A_PAGE }), [tenant, cursor], cursor ? 0 : 5000);
  const filter = (event) => {
    event.preventDefault();
    setPages([""]);
    setTenant(valuesOf(event.target).tenant ?? "");
  };
  const columns = [
    { key: "at_unix_ms", title: "When", show: (row) => html`<${Time} unix=${row.at_unix_ms / 1000} />` },
    ...(me.tenant ? [] : [{ key: "tenant", title: "Tenant", show: (row) => html`<span class="break">${row.tenant}</span>` }]),
    { key: "rule", title: "Rule", show: (row) => (row.further ? html`<em>${count(row.further)} more in that minute</em>` : html`<span class="break">${row.rule}</span>`) },
    { key: "kinds", title: "Found", show: (row) => row.kinds.join(", ") || NONE },
    { key: "direction", title: "Text", show: (row) => html`${row.direction || NONE}${row.late ? html` <${Badge} kind="warn">cut late<//>` : ""}` },
    { key: "model", title: "Model", show: (row) => html`<span class="break">${row.model || NONE}</span>${row.answered_by && html`<div class="small soft">answered by ${row.answered_by}</div>`}` },
    { key: "key", title: "Key", show: (row) => html`<span class="break mono small">${row.key.split("@")[0].replace(/^key /, "") || NONE}</span>` },
    { key: "request_id", title: "Request", show: (row) => (row.request_id ? html`<a class="nowrap mono small" href=${`#/requests/${encodeURIComponent(row.request_id)}`}>${row.request_id}</a>` : NONE) },
  ];
  return html`<${Panel} title="Refused requests and cut answers">
    ${!me.tenant && html`<form class="filters" onSubmit=${filter}><${Field} label="Tenant" name="tenant" error=${page.error} maxlength="63" autocomplete="off" /><button>Show</button></form>`}
    <${Found} of=${page} what="Reading the audit">${({ items, next_cursor }) => html`
      <${Table} caption="Blocks by guard rules" rows=${items} id=${(row) => row.seq} columns=${columns} empty=${html`<${Empty} title="Nothing was blocked">Requests that a rule with mode: block refuses, and answers that it cuts, appear here within seconds, without their texts. It needs the ledger.<//>`} />
      <div class="row">
        ${pages.length > 1 && html`<button type="button" onClick=${() => setPages(pages.slice(0, -1))}>Newer</button>`}
        ${next_cursor && html`<button type="button" onClick=${() => setPages([...pages, next_cursor])}>Older</button>`}
      </div>`}<//>
  <//>`;
}

/** A text with its findings marked; places are counted in characters, which JavaScript's strings do not. */
function Marked({ text, findings }) {
  const characters = [...text];
  const spots = findings.filter(({ end, begin }) => end > begin).sort((a, b) => a.begin - b.begin);
  const parts = [];
  let done = 0;
  for (const spot of spots) {
    const begin = Math.max(spot.begin, done);
    if (begin >= spot.end) continue;
    parts.push(characters.slice(done, begin).join(""), html`<mark title=${`${spot.rule}: ${spot.kind}, ${spot.mode}`}>${characters.slice(begin, spot.end).join("")}</mark>`);
    done = spot.end;
  }
  parts.push(characters.slice(done).join(""));
  return html`<pre>${parts}</pre>`;
}

function Verdict({ shown, text }) {
  const { verdicts, rules } = shown;
  const [kind, words] = ACTIONS[verdicts.action] ?? ["", verdicts.action];
  const [result] = verdicts.results;
  const findings = result?.findings ?? [];
  const trial = findings.some(({ mode }) => mode === "shadow");
  const unasked = rules.filter(({ asked }) => !asked);
  const columns = [
    { key: "rule", title: "Rule", show: (row) => html`<span class="break">${row.rule}</span>` },
    { key: "kind", title: "Found" },
    { key: "mode", title: "Mode", show: (row) => html`<${Badge} kind=${MODES[row.mode]}>${row.mode}<//>` },
    { key: "text", title: "Text", fixed: true, show: (row) => html`<span class="break mono small">${[...text].slice(row.begin, Math.min(row.end, row.begin + 200)).join("")}</span>` },
    { key: "begin", title: "Characters", num: true, show: (row) => `${count(row.begin)} to ${count(row.end)}` },
  ];
  return html`<${Panel} title="Verdict">
    <p role="status">The text <${Badge} kind=${kind}>${words}<//>${result?.by && html` by the rule <strong class="break">${result.by}</strong>`}${trial ? ". Rules in shadow mode found something, too: with another mode they would act." : "."}</p>
    ${result?.failed.length > 0 && html`<div class="banner bad">Could not judge: ${result.failed.join(", ")}.</div>`}
    ${unasked.length > 0 && html`<div class="banner">Not asked, because rules as written ask no detector: ${unasked.map(({ id }) => id).join(", ")}. Put them into a policy to try them.</div>`}
    <${Table} caption="Findings" rows=${findings} id=${(row) => `${row.rule} ${row.kind} ${row.begin} ${row.end}`} columns=${columns} empty=${html`<${Empty} title=${rules.length ? "Nothing was found" : "No rule applies"}>${rules.length ? `${rules.length} ${rules.length === 1 ? "rule has" : "rules have"} looked at the text.` : "The policy has no guard rules for such a text."}<//>`} />
    ${result?.count > findings.length && html`<p class="small soft">${count(findings.length)} of ${count(result.count)} findings.</p>`}
    ${findings.length > 0 && html`<div><h3>The text, with what was found</h3><${Marked} text=${text} findings=${findings} /></div>`}
    ${verdicts.action === "change" && html`<div><h3>As it would be passed on</h3><pre>${result.text}</pre></div>`}
    ${rules.length > 0 && html`<details><summary>Rules that apply (${count(rules.length)})</summary><dl class="facts">${rules.map((rule) => html`<dt key=${rule.id} class="break">${rule.id}</dt><dd>${rule.words}</dd>`)}</dl></details>`}
  <//>`;
}

function Try({ me }) {
  const change = useChange();
  const [shown, setShown] = useState(null);
  const mayWrite = has(me, WRITERS);
  const [own, setOwn] = useState(false);
  const tenants = useAsk(() => (me.tenant ? Promise.resolve([]) : api.list("/tenants")), []);
  const submit = async (event) => {
    event.preventDefault();
    const { text = "", rules = "", direction, tenant, project, model, guards } = valuesOf(event.target);
    const asked = guards?.split(",").map((name) => name.trim()).filter(Boolean);
    const wanted = own ? { rules, input: text, direction } : { tenant: me.tenant ?? tenant, project: project || undefined, model, guards: asked, input: text, direction };
    setShown(null);
    const { done, result } = await change.run(() => api.post("/guards/test", wanted));
    if (done) setShown({ ...result, text });
  };
  const { error } = change;
  return html`
    <${Panel} title="Try a text">
      <p class="small soft">Nothing is sent to a model, kept or counted. Rules of a tenant ask their detectors.</p>
      <form class="stack" onSubmit=${submit}>
        ${mayWrite && html`<div class="row" role="radiogroup" aria-label="Whose rules"><strong class="small">Rules</strong>
          <label class="check"><input type="radio" name="whose" checked=${!own} onChange=${() => setOwn(false)} /> of a tenant's policy</label>
          <label class="check"><input type="radio" name="whose" checked=${own} onChange=${() => setOwn(true)} /> written here</label>
        </div>`}
        ${own
          ? html`<${Field} key="rules" label="Rules" name="rules" hint="As in the guards of a policy, in YAML." error=${error}><textarea name="rules" required spellcheck=${false} defaultValue=${EXAMPLE}></textarea><//>`
          : html`<div key="tenant" class="row">
              ${!me.tenant && html`<${Field} label="Tenant" name="tenant" error=${error}><select name="tenant" required>${(tenants.data ?? []).map(({ name }) => html`<option key=${name} value=${name}>${name}</option>`)}</select><//>`}
              <${Field} label="Project" name="project" error=${error} placeholder="default" maxlength="63" autocomplete="off" />
              <${Field} label="Model" name="model" error=${error} placeholder="rules of every model" maxlength="256" autocomplete="off" />
              <${Field} label="Rules asked for" name="guards" error=${error} placeholder="id, id" autocomplete="off" />
            </div>`}
        <${Field} key="direction" label="What the text is" name="direction" error=${error}><select name="direction">${DIRECTIONS.map(([value, words]) => html`<option key=${value} value=${value}>${words}</option>`)}</select><//>
        <${Field} key="input" label="Text" name="input" error=${error}><textarea name="text" required spellcheck=${false}></textarea><//>
        ${error && html`<${Failure} error=${error} />`}
        <div class="row"><button class="primary" disabled=${change.busy || (!own && tenants.loading)}>${change.busy ? "Judging…" : "Judge"}</button></div>
      </form>
    <//>
    ${shown && html`<${Verdict} shown=${shown} text=${shown.text} />`}`;
}

export function Guards({ me: person, parts }) {
  const me = { ...person, tenant: onlyTenant(person) };
  const [first = ""] = parts;
  const mayTry = has(me, [...WRITERS, "tenant-admin"]);
  const tabs = TABS.filter(([key]) => key !== "test" || mayTry);
  const tab = tabs.some(([key]) => key === first) ? first : "";
  const guards = useAsk(() => api.get("/guards"), [], 5000);
  const go = (key) => { location.hash = key ? `#/guards/${key}` : "#/guards"; };
  return html`
    <${Head} title="Guards" sub="Rules of policies that look at texts of requests and answers, and refuse, change or note them." />
    <${Tabs} label="Guards" tabs=${tabs} now=${tab} onTab=${go} />
    ${tab === "blocks" ? html`<${Blocks} me=${me} />` : tab === "test" ? html`<${Try} me=${me} />` : html`<${Found} of=${guards} what="Asking the workers">${(shown) => (tab === "shadow" ? html`<${Shadow} me=${me} shown=${shown} />` : html`<${Said} me=${me} shown=${shown} />`)}<//>`}`;
}
