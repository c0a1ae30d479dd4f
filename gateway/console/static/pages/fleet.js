// The fleet: what the gateway carries now, and each backend's queue, KV cache, hits and health. Backends are drained and resumed here.
import { html, useRef } from "../vendor/preact-htm.js";
import { api, path } from "../lib/api.js";
import { Chart, Spark } from "../lib/chart.js";
import { NONE, count, ms, percent, usd } from "../lib/format.js";
import { useLive } from "../lib/live.js";
import { Badge, Confirm, Empty, Head, Loading, Meter, Panel, Table, Tile, Tiles } from "../lib/ui.js";

const RUNNERS = ["owner", "admin", "operator"];
const STATES = { up: "good", draining: "warn", unknown: "warn" };
const total = (rates) => (rates ? Object.values(rates).reduce((sum, rate) => sum + rate, 0) : null);
const mean = (samples, pick) => {
  const values = samples.map(pick).filter((value) => value !== null && value !== undefined);
  return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
};

function State({ backend }) {
  const kind = STATES[backend.state] ?? "bad";
  return html`<${Badge} kind=${kind}>${backend.state}<//>${backend.breaker && html` <${Badge} kind="bad">breaker ${backend.breaker.replace("_", " ")}<//>`}${backend.why && html`<div class="small soft">${backend.why}</div>`}`;
}

function Drain({ backend }) {
  if (backend.state === "draining")
    return html`<${Confirm} label="Resume" title=${`Resume ${backend.id}?`} danger=${false} work=${() => api.post(path`/backends/${backend.id}/resume`)}>The backend takes new requests again, once a poll finds it well.<//>`;
  return html`<${Confirm} label="Drain" title=${`Drain ${backend.id}?`} work=${() => api.post(path`/backends/${backend.id}/drain`)}>The backend gets no new requests. What runs on it may finish within the grace.<//>`;
}

export function Fleet({ me }) {
  const { samples, now } = useLive();
  const past = useRef(new Map());
  if (!now) return html`<${Head} title="Fleet" /><${Loading} what="Waiting for the first values" />`;
  for (const backend of now.backends ?? []) {
    const kept = past.current.get(backend.id) ?? { at: 0, queue: [], kv: [] };
    if (kept.at !== now.at_unix) {
      kept.at = now.at_unix;
      kept.queue = [...kept.queue.slice(-119), (backend.running ?? backend.in_flight) + (backend.waiting ?? 0)];
      kept.kv = [...kept.kv.slice(-119), backend.kv_usage];
      past.current.set(backend.id, kept);
    }
  }
  const recent = samples.slice(-10);
  const times = samples.map(({ at_unix }) => at_unix);
  const column = (pick) => samples.map(pick);
  const mayRun = me.roles.some((role) => RUNNERS.includes(role));
  const failed = (sample) => (sample.requests ? total(sample.requests) - sample.requests.ok : null);
  const waiting = Object.values(now.waiting).reduce((sum, n) => sum + n, 0);
  const columns = [
    { key: "id", title: "Backend", show: (b) => html`<strong>${b.id}</strong><div class="small soft">${b.pool}</div>` },
    { key: "state", title: "State", show: (b) => html`<${State} backend=${b} />` },
    { key: "in_flight", title: "In flight", num: true, show: (b) => count(b.in_flight) },
    { key: "running", title: "Running", num: true, show: (b) => count(b.running) },
    { key: "waiting", title: "Queue", num: true, show: (b) => html`${count(b.waiting)} <${Spark} values=${past.current.get(b.id)?.queue ?? []} label=${`Load of ${b.id} over the last two minutes`} />` },
    { key: "kv_usage", title: "KV cache", num: true, show: (b) => html`<${Meter} share=${b.kv_usage} words=${percent(b.kv_usage)} label=${`KV cache of ${b.id} in use`} />` },
    { key: "hit_ratio", title: "Prefix hits", num: true, show: (b) => percent(b.hit_ratio) },
    { key: "limit_requests", title: "Limit", num: true, show: (b) => (b.limit_requests === null ? html`<span title="No concurrency limit is configured for this pool.">${NONE}</span>` : count(b.limit_requests)) },
    { key: "ttft_error_s", title: "Prediction off by", num: true, show: (b) => (b.ttft_error_s ? ms(b.ttft_error_s * 1000) : NONE) },
    { key: "signals_age_s", title: "Seen", num: true, show: (b) => (b.signals_age_s === null ? NONE : ms(b.signals_age_s * 1000)) },
    ...(mayRun ? [{ key: "drain", title: "Actions", fixed: true, show: (b) => html`<${Drain} backend=${b} />` }] : []),
  ];
  const backends = now.backends ?? [];
  return html`
    <${Head} title="Fleet" sub=${`${backends.filter((b) => b.state === "up").length} of ${backends.length} backends up, ${now.workers} ${now.workers === 1 ? "worker" : "workers"} answering`} />
    <${Tiles}>
      <${Tile} label="Requests" value=${count(mean(recent, (s) => total(s.requests)))} unit="/s" under=${`${count(mean(recent, failed))} failed /s`} />
      <${Tile} label="In flight" value=${count(now.in_flight)} under=${`${count(waiting)} queued`} />
      <${Tile} label="First token, p50" value=${ms(now.ttft_ms.p50)} under=${`p95 ${ms(now.ttft_ms.p95)}`} />
      <${Tile} label="Output token, p50" value=${ms(now.tpot_ms.p50)} under=${`p95 ${ms(now.tpot_ms.p95)}`} />
      <${Tile} label="Output tokens" value=${count(mean(recent, (s) => s.tokens?.completion))} unit="/s" under=${`${count(mean(recent, (s) => s.tokens?.prompt))} prompt /s`} />
      <${Tile} label="Cost" value=${usd(mean(recent, (s) => s.cost_usd) * 3600 || 0)} unit="/h" under=${now.slo_met === null ? "no promises in force" : `${percent(now.slo_met)} of promises kept`} />
    <//>
    <div class="grid">
      <${Chart} title="Requests per second" times=${times} series=${[{ label: "ok", values: column((s) => s.requests?.ok) }, { label: "failed", values: column(failed) }]} stacked />
      <${Chart} title="Time to the first token" times=${times} series=${["p50", "p95", "p99"].map((q) => ({ label: q, values: column((s) => s.ttft_ms[q]) }))} format=${ms} empty="No streamed request in the last half minute" />
      <${Chart} title="Tokens per second" times=${times} series=${[{ label: "prompt", values: column((s) => s.tokens?.prompt) }, { label: "of them cached", values: column((s) => s.tokens?.cached) }, { label: "output", values: column((s) => s.tokens?.completion) }]} />
      <${Chart} title="In flight and queued" times=${times} series=${[{ label: "in flight", values: column((s) => s.in_flight) }, { label: "queued", values: column((s) => Object.values(s.waiting).reduce((sum, n) => sum + n, 0)) }]} />
    </div>
    <${Panel} title="Backends">
      <${Table} caption="Backends" columns=${columns} rows=${backends} empty=${html`<${Empty} title="No backend yet">Add one to pools in tidegate.yaml, or register it: tidegate backend add.<//>`} />
    <//>`;
}
