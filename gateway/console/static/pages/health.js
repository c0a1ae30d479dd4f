// The gateway itself: its processes, stores, and what needs a look.
import { html } from "../vendor/preact-htm.js";
import { api } from "../lib/api.js";
import { Chart } from "../lib/chart.js";
import { NONE, count, ms } from "../lib/format.js";
import { useLive } from "../lib/live.js";
import { Badge, Confirm, Empty, Found, Head, Panel, Table, Tile, Tiles, Time, useAsk } from "../lib/ui.js";

const RUNNERS = ["owner", "admin", "operator"];

export function Health({ me }) {
  const { samples, now } = useLive();
  const gateway = useAsk(() => api.get("/gateway"), [], 5000);
  const version = useAsk(() => api.port("/version"));
  const mayRun = me.roles.some((role) => RUNNERS.includes(role));
  const times = samples.map(({ at_unix }) => at_unix);
  return html`
    <${Head} title="Gateway" sub=${version.data && `Tidegate ${version.data.version}, Python ${version.data.python}`}>
      ${mayRun && html`<${Confirm} label="Reload settings" title="Reload the settings?" danger=${false} work=${() => api.post("/gateway/reload", { what: "settings" })} done=${gateway.again}>The processes are replaced one by one with the settings file as it is now. No request is lost; settings with which no process could start are refused.<//>`}
    <//>
    <${Found} of=${gateway} what="Asking the gateway">${(shown) => html`
      ${shown.warnings.length ? html`<div class="banner" role="status"><strong>Needs a look</strong><ul>${shown.warnings.map((warning) => html`<li key=${warning}>${warning}</li>`)}</ul></div>` : html`<div class="banner good" role="status">Nothing needs a look.</div>`}
      <${Tiles}>
        <${Tile} label="Workers ready" value=${`${shown.workers.filter(({ state }) => state === "ready").length} of ${shown.workers.length}`} />
        <${Tile} label="Connections" value=${count(now?.connections)} />
        <${Tile} label="Database" value=${shown.stores.database} />
        <${Tile} label="Counters" value=${shown.stores.counters} under=${shown.stores.counters_shared ? "shared by all workers" : "each worker decides alone for now"} />
        <${Tile} label="Waiting settlements" value=${count(shown.stores.settlements_waiting)} />
        <${Tile} label="Usage events lost" value=${count(shown.stores.usage_dropped)} />
      <//>
      <${Panel} title="Workers"><${Table} caption="Workers" id=${(row) => row.pid} rows=${shown.workers} empty=${html`<${Empty} title="No worker answers">They may be starting; see the log.<//>`} columns=${[
        { key: "index", title: "Worker" },
        { key: "pid", title: "Process" },
        { key: "state", title: "State", show: (w) => html`<${Badge} kind=${w.state === "ready" ? "good" : "warn"}>${w.state}<//>${w.reasons.length > 0 && html`<div class="small soft">${w.reasons.join("; ")}</div>`}` },
        { key: "started_unix", title: "Started", show: (w) => html`<${Time} unix=${w.started_unix} />` },
        { key: "policies", title: "Policies", show: (w) => html`<span class="mono" title=${w.policies}>${w.policies.slice(0, 12) || NONE}</span>` },
      ]} /><//>
      <${Panel} title="Processes"><${Table} caption="Processes" id=${(row) => row.name} rows=${shown.processes} columns=${[
        { key: "name", title: "Slot" },
        { key: "pid", title: "Process" },
        { key: "restarts", title: "Unexpected ends", num: true },
        { key: "last_end", title: "Last end", show: (p) => p.last_end || NONE },
        { key: "refused_replacements", title: "Refused replacements", num: true },
        { key: "last_refusal", title: "Last refusal", show: (p) => p.last_refusal || NONE },
      ]} /><//>`}<//>
    <div class="grid">
      <${Chart} title="The gateway's own share of a request" times=${times} series=${["p50", "p95", "p99"].map((q) => ({ label: q, values: samples.map((s) => s.overhead_ms[q]) }))} format=${ms} />
      <${Chart} title="Open connections" times=${times} series=${[{ label: "connections", values: samples.map((s) => s.connections) }]} />
    </div>`;
}
