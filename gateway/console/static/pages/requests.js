// Requests: those of now and of the log, by tenant, model, outcome and length; one request with its steps, its decision and its limits.
import { html, useEffect, useMemo, useRef, useState } from "../vendor/preact-htm.js";
import { api, path } from "../lib/api.js";
import { Bars, Waterfall } from "../lib/chart.js";
import { NONE, bytes, count, ms, usd } from "../lib/format.js";
import { follow } from "../lib/live.js";
import { Badge, Empty, Field, Found, Head, Panel, Table, Tile, Tiles, Time, Typed, onlyTenant, useAsk } from "../lib/ui.js";

const RECENT_S = { "1 minute": 60, "15 minutes": 900, "1 hour": 3600, "24 hours": 86_400, "7 days": 604_800 };
const KEPT = 500;
const PAGE = 100;
const COLOURS = { queue: 2, fallback: 4, lora: 5, first_token: 1, guards: 7, decode: 3, answer: 3, gateway: 8, body: 6, cache: 6, delivery: 6 };
const STEPS = {
  body: "Request arrives", gateway: "Gateway", queue: "Queue", fallback: "Earlier models", lora: "Adapter loads", first_token: "First token",
  guards: "Held by guards", decode: "Decode", answer: "Answer", cache: "Cache", delivery: "Delivery",
};
/** Why a step is long, and what a person can do about it. */
const REASONS = {
  queue: "It waited for room on a backend. See Overload; more replicas, or a smaller share of batch work, shorten the queue.",
  first_token: "The engine took long to begin: a long prompt that was not cached, or work in front of it. See its decision below.",
  decode: "The answer was long, or its engine decoded many requests at once.",
  answer: "The engine took long to answer; without streaming, first token and decode are one step.",
  lora: "Its adapter was not on the backend and had to be loaded.",
  fallback: "Models before the one that answered failed.",
  guards: "Guard rules held the answer back until they had seen enough of it.",
  body: "The caller sent its request slowly.",
  delivery: "The caller read the answer slowly.",
};

const Outcome = ({ row }) => html`<${Badge} kind=${row.outcome === "ok" ? "good" : row.status < 500 ? "warn" : "bad"}>${row.outcome === "ok" ? "ok" : row.outcome.replaceAll("_", " ")}<//> <span class="small soft">${row.status}</span>`;

const COLUMNS = [
  { key: "at_unix", title: "When", num: false, show: (r) => html`<${Time} unix=${r.at_unix} />`, sort: (r) => r.at_unix },
  { key: "outcome", title: "Outcome", show: (r) => html`<${Outcome} row=${r} />` },
  { key: "tenant", title: "Tenant", show: (r) => html`<span class="break">${r.tenant || NONE}</span>` },
  { key: "model", title: "Model", show: (r) => html`<span class="break">${r.model || NONE}</span>` },
  { key: "duration_ms", title: "Duration", num: true, show: (r) => ms(r.duration_ms) },
  { key: "ttft_ms", title: "First token", num: true, show: (r) => ms(r.ttft_ms) },
  { key: "slowest_step_ms", title: "Mostly", show: (r) => (r.slowest_step ? html`${STEPS[r.slowest_step] ?? r.slowest_step} <span class="small soft nowrap">${ms(r.slowest_step_ms)}</span>` : NONE) },
  { key: "prompt_tokens", title: "Prompt", num: true, show: (r) => html`${count(r.prompt_tokens)}${r.cached_tokens > 0 && html`<div class="small soft">${count(r.cached_tokens)} cached</div>`}` },
  { key: "completion_tokens", title: "Output", num: true, show: (r) => count(r.completion_tokens) },
  { key: "cost_usd", title: "Cost", num: true, show: (r) => usd(Number(r.cost_usd)), sort: (r) => Number(r.cost_usd) },
  { key: "backend", title: "Backend", show: (r) => html`${r.backend || NONE}${r.attempts > 1 && html` <span class="small soft">after ${r.attempts} attempts</span>`}` },
];

const open = (row) => (location.hash = `#/requests/${encodeURIComponent(row.request_id)}`);

/** The filters of the list, from the address; what a person chooses goes back into it, so that a view can be sent to somebody. */
function Filters({ params, me, onChange }) {
  const change = (event) => {
    event.preventDefault();
    const form = event.currentTarget.closest("form") ?? event.currentTarget;
    onChange(Object.fromEntries([...new FormData(form)].filter(([, value]) => value !== "")));
  };
  return html`<form class="filters" onSubmit=${change} onChange=${change}>
    <${Field} label="Show"><select name="order" value=${params.order ?? ""}><option value="">newest first</option><option value="slowest">slowest first</option></select><//>
    <${Field} label="Of the last"><select name="last">${Object.keys(RECENT_S).map((words) => html`<option key=${words} value=${words} selected=${words === (params.last ?? "1 hour")}>${words}</option>`)}</select><//>
    <${Field} label="Outcome"><select name="outcome" value=${params.outcome ?? ""}><option value="">any</option><option value="ok">ok</option><option value="failed">failed</option></select><//>
    ${!onlyTenant(me) && html`<${Field} label="Tenant"><${Typed} name="tenant" value=${params.tenant ?? ""} size="12" /><//>`}
    <${Field} label="Model"><${Typed} name="model" value=${params.model ?? ""} size="14" /><//>
    <${Field} label="Backend"><${Typed} name="backend" value=${params.backend ?? ""} size="10" /><//>
    <${Field} label="At least, ms"><${Typed} name="min_duration_ms" type="number" min="0" value=${params.min_duration_ms ?? ""} style=${{ width: "6rem" }} /><//>
  </form>`;
}

const askedOf = ({ last, outcome, order, ...rest }, now) => ({
  ...rest,
  ...(outcome === "failed" ? { failed: "true" } : outcome ? { outcome } : {}),
  ...(order ? { order } : {}),
  ...(now === null ? {} : { since_unix: now - (RECENT_S[last] ?? 3600) }),
});

function List({ me, params }) {
  const asked = JSON.stringify(params);
  const [place, setPlace] = useState({ asked, pages: [""] });
  const pages = place.asked === asked ? place.pages : [""];
  const cursor = pages.at(-1);
  const turn = (to) => setPlace({ asked, pages: to });
  const of = `${asked} ${cursor}`;
  const answer = useAsk(async () => ({ of, ...(await api.get("/requests", { ...askedOf(params, Date.now() / 1000), cursor, limit: PAGE })) }), [asked, cursor]);
  // the rows of the question before are not shown under this one, not even for a moment: somebody may click on one
  const found = answer.data && answer.data.of !== of ? { ...answer, data: null } : answer;
  const [fresh, setFresh] = useState([]);
  const [state, setState] = useState("connecting");
  const [lost, setLost] = useState(0);
  const slowest = params.order === "slowest";
  const still = slowest || cursor !== "";
  useEffect(() => {
    setFresh([]);
    setLost(0);
    if (still) return;
    const { order: _order, ...filter } = askedOf(params, null);
    return follow("/requests/live", filter, {
      state: setState,
      take: (event, data) => {
        if (event !== "requests") return;
        setFresh((before) => [...data.items.toReversed(), ...before].slice(0, KEPT));
        setLost((before) => before + data.dropped);
      },
    });
  }, [asked, still]);
  const rows = useMemo(() => {
    const seen = new Set(fresh.map(({ request_id }) => request_id));
    return [...fresh, ...(found.data?.items ?? []).filter(({ request_id }) => !seen.has(request_id))].slice(0, KEPT);
  }, [fresh, found.data]);
  const go = (chosen) => (location.hash = `#/requests?${new URLSearchParams(chosen)}`);
  return html`
    <${Head} title="Requests" sub=${slowest ? "The slowest of the chosen time." : "Finished requests, as they finish."}>
      ${!still && html`<span role="status"><${Badge} kind=${state === "live" ? "good" : "warn"}>${state === "live" ? "live" : "reconnecting"}<//></span>`}
      ${slowest && html`<button type="button" onClick=${found.again}>Look again</button>`}
      <a class="button" href=${`#/requests?${new URLSearchParams({ order: "slowest", last: "1 minute" })}`}>Slowest of the last minute</a>
    <//>
    <${Filters} params=${params} me=${me} onChange=${go} />
    <${Found} of=${found} what="Asking the request log">${(data) => html`<${Panel}>
      ${lost > 0 && html`<p class="banner" role="status">${count(lost)} requests came too fast to be shown live. They are in the log: look again, or filter.</p>`}
      ${data.dropped > 0 && html`<p class="banner" role="status">${count(data.dropped)} requests are missing from the log since the gateway started, because its store could not keep up.</p>`}
      <${Table} caption="Requests" columns=${COLUMNS} rows=${rows} id=${(row) => row.request_id} onPick=${open} pickLabel=${(row) => `Open request ${row.request_id}`} most=${PAGE}
        empty=${html`<${Empty} title="No such request yet">Send one, choose a longer time, or take a filter away.<//>`} />
      ${(pages.length > 1 || data.next_cursor) && html`<nav class="row" aria-label="Pages of requests">
        ${pages.length > 1 && html`<button type="button" onClick=${() => turn(pages.slice(0, -1))}>${slowest ? "Slower" : "Newer"}</button><button type="button" onClick=${() => turn([""])}>${slowest ? "Slowest" : "Newest"}</button>`}
        ${data.next_cursor && html`<button type="button" onClick=${() => turn([...pages, data.next_cursor])}>${slowest ? "Quicker" : "Older"}</button>`}
        <span class="small soft" role="status">Page ${pages.length}</span>
      </nav>`}
    <//>`}<//>`;
}

function Decision({ id }) {
  const found = useAsk(() => api.get(path`/requests/${id}/explanation`), [id]);
  if (found.error?.status === 403) return null;
  if (found.error?.status === 404) return html`<${Panel} title="Routing decision"><${Empty} title="The decision is not kept any more">The gateway keeps the decisions of the last requests only.<//><//>`;
  return html`<${Found} of=${found} what="Asking for the decision">${(shown) => html`<${DecisionShown} shown=${shown} />`}<//>`;
}

function DecisionShown({ shown }) {
  const backends = [...(shown.contenders ?? [])].sort((a, b) => (a.cost ?? Infinity) - (b.cost ?? Infinity));
  const terms = [...new Set(backends.flatMap(({ terms: of }) => Object.entries(of ?? {}).filter(([, value]) => value).map(([term]) => term)))];
  return html`<${Panel} title="Routing decision">
    <p>${shown.reason}</p>
    <p class="soft small">Policy ${shown.policy}${shown.unit ? `, costs in ${shown.unit}` : ""}; ${count(shown.prompt_tokens)} prompt tokens ${shown.exact ? "counted" : "estimated"}, ${count(shown.output_tokens)} output tokens expected.</p>
    <${Table} caption="Backends of the pool" rows=${backends} id=${(row) => row.backend} columns=${[
      { key: "backend", title: "Backend", show: (b) => html`<strong>${b.backend}</strong> ${!b.lost && html`<${Badge} kind="good">chosen<//>`}` },
      { key: "cost", title: "Cost", num: true, show: (b) => (b.cost === null ? NONE : shown.unit === "s" ? ms(b.cost * 1000) : count(b.cost)) },
      { key: "held_tokens", title: "Prompt tokens cached", num: true, show: (b) => count(b.held_tokens) },
      { key: "waiting", title: "Waiting there", num: true, show: (b) => count(b.waiting) },
      { key: "first_token_s", title: "First token expected", num: true, show: (b) => (b.first_token_s === null ? NONE : ms(b.first_token_s * 1000)) },
      { key: "lost", title: "Why not", show: (b) => b.lost || NONE },
    ]} />
    ${backends.length > 0 && terms.length > 0 && html`<div class="grid">${terms.map((term) => html`<div key=${term}><h3>${term.replace(/_s$/, "").replaceAll("_", " ")}</h3><${Bars} title=${term} format=${term.endsWith("_s") ? (value) => ms(value * 1000) : count} bars=${backends.map((b, at) => ({ label: b.backend, value: b.terms?.[term] ?? null, index: at % 8 + 1 }))} /></div>`)}</div>`}
  <//>`;
}

const FACTS = [
  ["request_id", "Request id"], ["caller_request_id", "Caller's own id"], ["engine_request_id", "Id at the engine"], ["trace_id", "Trace"], ["tenant", "Tenant"],
  ["project", "Project"], ["key_id", "Key"], ["user", "End user"], ["endpoint", "Endpoint"], ["model", "Model"], ["asked_model", "Asked for"],
  ["rule", "Policy rule"], ["priority_class", "Class"], ["pool", "Pool"], ["revision", "Revision"], ["backend", "Backend"], ["prefill", "Prefill backend"], ["lora", "Adapter"],
  ["rollout", "Rollout"], ["arm", "Arm"], ["prompt", "Prompt"], ["cache", "Cache"], ["guard", "Guards"], ["closing", "Usage by"], ["policy", "Policies"],
  ["client", "Caller's address"], ["user_agent", "Caller's program"],
];

const Several = ({ title, items }) => (items?.length ? html`<div><h3>${title}</h3><ul>${items.map((item) => html`<li key=${item}>${item}</li>`)}</ul></div>` : null);

function One({ id }) {
  const found = useAsk(() => api.get(path`/requests/${id}`), [id]);
  const heading = useRef(null);
  useEffect(() => heading.current?.focus(), [id]);
  return html`
    <p><a href="#/requests">← All requests</a></p>
    <div tabindex="-1" ref=${heading}><${Head} title="Request" sub=${html`<span class="mono break">${id}</span>`} /></div>
    ${found.error?.status === 404 ? html`<${Empty} title="There is no such request">It may be older than the log keeps, or of another tenant.<//>` : html`<${Found} of=${found} what="Asking for the request">${(r) => {
      const longest = r.timeline.reduce((most, step) => (step.length_ms > (most?.length_ms ?? 0) ? step : most), null);
      return html`
      <${Tiles}>
        <${Tile} label="Outcome" value=${r.outcome.replaceAll("_", " ")} under=${`status ${r.status}`} />
        <${Tile} label="Duration" value=${ms(r.duration_ms)} under=${html`<${Time} unix=${r.at_unix} />`} />
        <${Tile} label="First token" value=${ms(r.ttft_ms)} under=${r.stream ? "streamed" : "not streamed"} />
        <${Tile} label="Prompt" value=${count(r.prompt_tokens)} unit="tokens" under=${`${count(r.cached_tokens)} from the engine's cache`} />
        <${Tile} label="Output" value=${count(r.completion_tokens)} unit="tokens" under=${r.decode_ms > 0 && r.completion_tokens > 1 ? `${ms(r.decode_ms / (r.completion_tokens - 1))} each` : null} />
        <${Tile} label="Cost" value=${usd(Number(r.cost_usd))} />
      <//>
      ${r.detail && html`<div class="banner bad"><strong>Cause</strong> <span class="break">${r.detail}</span></div>`}
      <${Panel} title="Where the time went">
        ${longest && html`<p><strong>${STEPS[longest.step] ?? longest.step}</strong> took ${ms(longest.length_ms)} of ${ms(r.duration_ms)}. ${REASONS[longest.step] ?? ""}</p>`}
        <${Waterfall} title="Steps of the request" totalMs=${r.duration_ms} format=${ms} steps=${r.timeline.map((step) => ({ label: (STEPS[step.step] ?? step.step) + (step.note ? `: ${step.note}` : ""), startMs: step.start_ms, lengthMs: step.length_ms, index: COLOURS[step.step] ?? 1 }))} />
      <//>
      ${r.explanation && html`<${Decision} id=${id} />`}
      ${(r.failed?.length || r.fell_back?.length || r.hedged?.length || r.steps?.length || r.passed_over?.length || r.limits?.length || r.degraded) && html`<${Panel} title="What happened to it">
        <${Several} title="Limits that it crossed softly" items=${r.limits} />
        <${Several} title="Backends that failed before" items=${r.failed} />
        <${Several} title="Models that failed before" items=${r.fell_back} />
        <${Several} title="Sent to two backends" items=${r.hedged} />
        <${Several} title="Degraded" items=${r.steps} />
        <${Several} title="Degradation that did not apply" items=${r.passed_over} />
        ${r.degraded && html`<p>Its limits were decided without the shared counters.</p>`}
      <//>`}
      ${r.content && html`<${Panel} title="Prompt and answer" side=${r.content.redacted.length > 0 && html`<span class="small soft">redacted: ${r.content.redacted.join(", ")}</span>`}>
        <h3>Prompt${r.content.prompt_cut ? " (its beginning)" : ""}</h3><pre tabindex="0">${r.content.prompt}</pre>
        <h3>Answer${r.content.answer_cut ? " (its beginning)" : ""}</h3><pre tabindex="0">${r.content.answer}</pre>
      <//>`}
      <${Panel} title="Facts">
        <dl class="facts">${FACTS.map(([key, words]) => [words, r[key] ?? r.record?.[key]]).filter(([, value]) => value !== undefined && value !== null && value !== "").map(([words, value]) => html`<dt key=${words}>${words}</dt><dd>${String(value)}</dd>`)}
          <dt>Bytes</dt><dd>${bytes(r.request_bytes)} asked, ${bytes(r.reply_bytes)} answered</dd></dl>
        <details><summary>The record, as programs get it</summary><pre tabindex="0">${JSON.stringify(r.record, null, 2)}</pre></details>
      <//>`;
    }}<//>`}`;
}

export function Requests({ me, parts, params }) {
  return parts.length ? html`<${One} id=${parts[0]} />` : html`<${List} me=${me} params=${params} />`;
}
