// Overload: who waits, who is refused and why, what the next request would meet, and the concurrency limits that were found.
import { html, useState } from "../vendor/preact-htm.js";
import { api } from "../lib/api.js";
import { Chart } from "../lib/chart.js";
import { NONE, count, ms, percent } from "../lib/format.js";
import { useLive } from "../lib/live.js";
import { Badge, Empty, Field, Found, Head, Loading, Meter, Panel, Table, Tile, Tiles, useAsk } from "../lib/ui.js";

const USUAL_TOKENS = 500;
const CLASSES = ["critical", "interactive", "default", "batch"];

/** The words of `tidegate_queue_refused_total` as sentences. */
export const REASONS = {
  too_long: "would wait longer than it may",
  count: "the queue is full",
  size_bytes: "the queue's memory is full",
  tenant_count: "the tenant's share of the queue is full",
  tenant_bytes: "the tenant's share of the queue's memory is full",
  timed_out: "waited as long as it may",
  displaced: "gave its place to a more urgent one",
  gone: "the caller left",
  nobody: "no backend can serve it",
  stopped: "the gateway was stopping",
};
const reason = (word) => REASONS[word] ?? word;

function wait(row) {
  if (!row.waits) return "none";
  if (!row.most_wait_s) return html`<span title="Too few requests have left the queue to tell how fast it drains">not known yet</span>`;
  const [least, most] = [ms(row.least_wait_s * 1000), ms(row.most_wait_s * 1000)];
  return row.least_wait_s && least !== most ? `${least} to ${most}` : row.least_wait_s ? most : `up to ${most}`;
}

function Meets({ row }) {
  const [word, workers] = Object.entries(row.refused)[0] ?? [];
  if (word) return html`<${Badge} kind="bad">refused<//> <span class="small">${reason(word)}${workers < row.workers ? `, in ${workers} of ${row.workers} workers` : ""}</span>`;
  return row.waits ? html`<${Badge} kind="warn">waits<//>` : html`<${Badge} kind="good">goes at once<//>`;
}

const NEXT_COLUMNS = [
  { key: "priority", title: "Class and tenant", sort: (row) => CLASSES.indexOf(row.priority), show: (row) => html`${row.priority}<div class="small soft break">${row.tenant || "anybody with nothing waiting"}</div>` },
  { key: "meets", title: "The next request", sort: (row) => Object.keys(row.refused).length * 2 + (row.waits ? 1 : 0), show: (row) => html`<${Meets} row=${row} />` },
  { key: "most_wait_s", title: "Predicted wait", num: true, show: wait },
  { key: "waiting", title: "Waiting now", num: true, show: (row) => count(row.waiting) },
  { key: "may_wait_s", title: "May wait", num: true, show: (row) => ms(row.may_wait_s * 1000) },
  { key: "pool", title: "Pool" },
];

function Next() {
  const [tokens, setTokens] = useState(USUAL_TOKENS);
  const queues = useAsk(() => api.get("/queues", { tokens }), [tokens], 2000);
  const change = (event) => setTokens(Math.max(1, Math.min(Number(event.target.value) || USUAL_TOKENS, 10_000_000)));
  const side = html`<${Field} label="Prompt tokens not cached"><input type="number" min="1" max="10000000" step="100" value=${tokens} onChange=${change} /><//>`;
  return html`<${Panel} title="What the next request would meet" side=${side}>
    <${Found} of=${queues} what="Asking the queues">${({ pools }) => {
      const away = pools.filter(({ unreached }) => unreached);
      const rows = pools.flatMap((pool) => pool.prospects.map((row) => ({ ...row, pool: pool.pool, workers: pool.workers - pool.unreached })));
      return html`
        ${away.map((pool) => html`<div class="banner bad" role="alert" key=${pool.pool}>No backend of the pool ${pool.pool} can be reached${pool.unreached < pool.workers ? ` from ${pool.unreached} of ${pool.workers} workers` : ""}. That is an outage, not overload: see the page Fleet.</div>`)}
        <p class="small soft">${pools.map(({ pool, tokens_per_s }) => `${pool} drains ${tokens_per_s ? `${count(tokens_per_s)} tokens/s` : "at a rate not known yet"}`).join("; ")}. Waits are bounds that most requests keep; nothing is sent or counted.</p>
        <${Table} caption="What the next request would meet" rows=${rows} columns=${NEXT_COLUMNS} id=${(row) => `${row.pool} ${row.priority} ${row.tenant}`} empty=${html`<${Empty} title="No queue to show">Each pool of tidegate.yaml has one. Add a pool, or look at Fleet for backends that are down.<//>`} />`;
    }}<//>
  <//>`;
}

function Refused() {
  const found = useAsk(() => api.get("/queues/refusals"), [], 10_000);
  const columns = [
    { key: "pool", title: "Pool" },
    { key: "priority", title: "Class", sort: (row) => CLASSES.indexOf(row.priority) },
    { key: "word", title: "Reason", show: (row) => html`${reason(row.word)} <span class="soft mono small">${row.word}</span>` },
    { key: "count", title: "Requests", num: true, show: (row) => count(row.count) },
  ];
  return html`<${Panel} title="Refused or left unserved since the workers started"><${Found} of=${found} what="Counting">${({ refusals }) => {
    const rows = refusals.flatMap(({ pool, priority, reasons }) => Object.entries(reasons).map(([word, number]) => ({ pool, priority, word, count: number })));
    return html`<${Table} caption="Refusals by reason" rows=${rows} columns=${columns} id=${(row) => `${row.pool} ${row.priority} ${row.word}`} empty=${html`<${Empty} title="Nothing was refused">Every request found a backend, or still waits for one.<//>`} />`;
  }}<//><//>`;
}

const LIMIT_COLUMNS = [
  { key: "id", title: "Backend", show: (b) => html`<span class="break">${b.id}</span>` },
  { key: "pool", title: "Pool" },
  { key: "share", title: "In flight of the limit", sort: (b) => b.in_flight / (b.limit_requests ?? Infinity), show: (b) => html`<${Meter} share=${b.limit_requests ? b.in_flight / b.limit_requests : null} words=${b.limit_requests ? percent(b.in_flight / b.limit_requests) : NONE} label=${`Requests in flight on ${b.id}, of its limit`} warn=${0.9} bad=${1.01} />` },
  { key: "in_flight", title: "In flight", num: true, show: (b) => count(b.in_flight) },
  { key: "limit_requests", title: "Limit found", num: true, show: (b) => count(b.limit_requests) },
  { key: "waiting", title: "Waiting at the engine", num: true, show: (b) => count(b.waiting) },
];

export function Overload() {
  const { samples, now } = useLive();
  if (!now) return html`<${Head} title="Overload" /><${Loading} what="Waiting for the first values" />`;
  const times = samples.map(({ at_unix }) => at_unix);
  const classes = Object.keys(now.waiting);
  const results = Object.keys(now.requests ?? {}).filter((result) => result !== "ok");
  const words = [...new Set(samples.flatMap((s) => Object.keys(s.queue_reasons ?? {})))].sort();
  return html`
    <${Head} title="Overload" sub="Requests wait for room on a backend by class; beyond the bounds of the queue they are refused." />
    <${Tiles}>
      ${classes.map((word) => html`<${Tile} key=${word} label=${`Queued, ${word}`} value=${count(now.waiting[word])} />`)}
      <${Tile} label="Refused by the queue" value=${count(now.queue_refused)} unit="/s" />
      <${Tile} label="Gateway's own time, p95" value=${ms(now.overhead_ms.p95)} />
    <//>
    <div class="grid">
      <${Chart} title="Queued requests by class" times=${times} series=${classes.map((word) => ({ label: word, values: samples.map((s) => s.waiting[word]) }))} stacked />
      <${Chart} title="Refused per second, by reason" times=${times} series=${words.length ? words.map((word) => ({ label: reason(word), values: samples.map((s) => (s.queue_reasons ? (s.queue_reasons[word] ?? 0) : null)) })) : [{ label: "refused", values: samples.map((s) => s.queue_refused) }]} />
      <${Chart} title="Failed requests per second, by side" times=${times} series=${results.map((word) => ({ label: word, values: samples.map((s) => s.requests?.[word]) }))} />
    </div>
    <${Next} />
    <${Refused} />
    <${Panel} title="Concurrency limits found">
      <${Table} caption="Concurrency limits found" rows=${now.backends ?? []} columns=${LIMIT_COLUMNS} empty=${html`<${Empty} title="No backend yet">Add one to pools in tidegate.yaml, or register it: tidegate backend add.<//>`} />
    <//>`;
}
