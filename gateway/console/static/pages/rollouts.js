// Rollouts: a list, one rollout with its verdict over time and the operator's decisions, and the form that starts one (rollout_start.js).
import { html, useRef, useState } from "../vendor/preact-htm.js";
import { api, path } from "../lib/api.js";
import { Chart, Interval } from "../lib/chart.js";
import { NONE, count, ms, percent } from "../lib/format.js";
import { Badge, Confirm, Dialog, Empty, Failure, Field, Found, Head, Meter, Panel, Table, Tile, Tiles, Time, useAsk, useChange, valuesOf } from "../lib/ui.js";
import { StartRollout } from "./rollout_start.js";

const RUNNERS = ["owner", "admin", "operator"];
const STATUS = { running: "good", done: "good", "at gate": "warn", held: "warn", paused: "warn", "rolled back": "bad" };
const JUDGED = { worse: "bad", "good enough": "good", undecided: "" };
const METRICS = {
  errors: "Error rate",
  broken_streams: "Broken streams",
  refusals: "Refusals and guard hits",
  ttft: "Time to first token",
  itl: "Inter-token latency",
  output_tokens: "Length of answers",
  token_cost: "Cost per output token",
};
const KEPT = 900;

/** A difference from the baseline: points of a share, else as part of the baseline's value. */
export const difference = (value, scale) => {
  if (value === null || value === undefined) return NONE;
  const size = 100 * value;
  const sign = size > 0 ? "+" : "";
  return scale === "share" ? `${sign}${size.toFixed(2)} points` : `${sign}${size.toFixed(1)} %`;
};

const Status = ({ rollout }) => html`<${Badge} kind=${STATUS[rollout.status] ?? ""}>${rollout.status}<//>${rollout.experiment && html` <${Badge}>experiment<//>`}`;
const Judged = ({ judgement }) => html`<${Badge} kind=${JUDGED[judgement] ?? ""}>${judgement}<//>`;

export function Rollouts({ me, parts }) {
  const mayRun = me.roles.some((role) => RUNNERS.includes(role));
  if (parts[0] === "new" && mayRun) return html`<${StartRollout} />`;
  if (parts[0]) return html`<${One} key=${parts[0]} id=${parts[0]} mayRun=${mayRun} />`;
  return html`<${List} mayRun=${mayRun} />`;
}

function List({ mayRun }) {
  const active = useAsk(() => api.list("/rollouts"), [], 5000);
  const closed = useAsk(() => api.list("/rollouts", { closed: true }, "items", 200), [], 60_000);
  const open = (rollout) => (location.hash = `#/rollouts/${encodeURIComponent(rollout.id)}`);
  const columns = [
    { key: "name", title: "Rollout", show: (r) => html`<strong class="break">${r.name}</strong>` },
    { key: "status", title: "Status", show: (r) => html`<${Status} rollout=${r} />` },
    { key: "baseline", title: "From → to", show: (r) => html`<span class="break">${r.baseline} → ${r.canary}</span>` },
    { key: "phase_index", title: "Phase", show: (r) => `${r.phase_index + 1} of ${r.phases}: ${r.phase}` },
    { key: "share", title: "Share", num: true, show: (r) => percent(r.share || r.mirrored) },
    { key: "counted_in_all", title: "Requests", num: true, show: (r) => count(r.counted_in_all) },
    { key: "judgement", title: "Verdict", show: (r) => html`<${Judged} judgement=${r.judgement} />` },
    { key: "reason", title: "Last reason", show: (r) => html`<span class="small break">${r.reason || NONE}</span>` },
    { key: "entered_unix", title: "In this phase", show: (r) => html`<${Time} unix=${r.entered_unix} />` },
  ];
  const label = (r) => `Open rollout ${r.name}`;
  return html`
    <${Head} title="Rollouts" sub="A new model, engine or prompt takes over in steps, is compared with the old one in each, and goes back by itself when it is worse.">
      ${mayRun && html`<a class="button" href="#/rollouts/new">Start a rollout</a>`}
    <//>
    <${Panel} title="Active"><${Found} of=${active} what="Asking for the active rollouts">${(rows) => html`
      <${Table} caption="Active rollouts" columns=${columns} rows=${rows} onPick=${open} pickLabel=${label}
        empty=${html`<${Empty} title="No rollout is active">${mayRun ? html`<a href="#/rollouts/new">Start one</a>, or use tidegate rollout start FILE.` : "An operator starts one here, or with tidegate rollout start FILE."}<//>`} />`}<//><//>
    <${Panel} title="Ended"><${Found} of=${closed} what="Asking for the ended rollouts">${(rows) => html`
      <${Table} caption="Ended rollouts" columns=${columns} rows=${rows} onPick=${open} pickLabel=${label} most=${50}
        empty=${html`<${Empty} title="None has ended yet">A rollout that was closed or went back is listed here.<//>`} />`}<//><//>`;
}

function One({ id, mayRun }) {
  const asked = useAsk(() => api.get(path`/rollouts/${id}`), [id], 2000);
  const [said, setSaid] = useState(null);
  const past = useRef({ times: [], metrics: new Map() });
  const changed = (result) => {
    setSaid(result?.pending ? `The database is away. This gateway alone has sent its traffic back to ${result.baseline}; the decision is written when the database is there again. Tell the other gateways one by one.` : null);
    asked.again();
  };
  return html`
    <${Head} title=${asked.data?.name ?? id} sub=${asked.data && `${asked.data.baseline} → ${asked.data.canary}`}>
      ${asked.data && mayRun && html`<${Decisions} rollout=${asked.data} changed=${changed} />`}
      <a class="button" href="#/rollouts">All rollouts</a>
    <//>
    ${said && html`<div class="banner" role="status">${said}</div>`}
    <${Found} of=${asked} what="Asking for the rollout">${(rollout) => html`<${Shown} rollout=${rollout} past=${past.current} />`}<//>`;
}

function Shown({ rollout, past }) {
  const now = Date.now() / 1000;
  remember(past, rollout, now);
  const kind = rollout.status === "rolled back" ? "bad" : STATUS[rollout.status] === "good" ? "good" : "";
  const left = rollout.max_s - rollout.spent_s;
  return html`
    <div class=${`banner ${kind}`} role="status"><strong>${rollout.status}</strong>${rollout.reason && html`: <span class="break">${rollout.reason}</span>`}</div>
    <${Tiles}>
      <${Tile} label="Phase" value=${`${rollout.phase_index + 1} of ${rollout.phases}`} under=${html`<span>${rollout.phase}, since <${Time} unix=${rollout.entered_unix} /></span>`} />
      <${Tile} label="Share of the canary" value=${percent(rollout.share)} under=${rollout.mirrored ? `${percent(rollout.mirrored)} mirrored` : "of conversations"} />
      <${Tile} label="Counted in this phase" value=${count(rollout.counted)} under=${html`<${Meter} share=${Math.min(1, rollout.counted / rollout.min_requests)} warn=${2} bad=${2} label="Requests counted of those needed" words=${`of ${count(rollout.min_requests)} requests`} />`} />
      <${Tile} label="Time in this phase" value=${ms(rollout.spent_s * 1000)} under=${rollout.open && left > 0 ? `times out after ${ms(rollout.max_s * 1000)}` : ""} />
      <${Tile} label="Verdict" value=${html`<${Judged} judgement=${rollout.judgement} />`} under=${`${count(rollout.counted_in_all)} requests in all`} />
    <//>
    <${Panel} title="Metrics">
      ${rollout.findings.length ? html`<${Findings} rollout=${rollout} />` : html`<${Empty} title="Nothing is measured yet">${rollout.open ? "The first values come a few seconds after requests have reached both variants. The warm-up is not counted." : "It ended before a request was counted."}<//>`}
    <//>
    ${rollout.open && rollout.findings.length > 0 && html`<p class="soft small">The band is the confidence interval of the difference to the baseline: it holds at every look. Seen since this page was opened.</p>
    <div class="grid">${rollout.findings.map((found) => html`<${Band} key=${found.metric} found=${found} times=${past.times} seen=${past.metrics.get(found.metric)} />`)}</div>`}
    <${History} name=${rollout.name} id=${rollout.id} changed=${`${rollout.status} ${rollout.phase_index}`} />
    <${Panel} title="Document"><details><summary>What was asked for</summary><pre tabindex="0">${JSON.stringify(rollout.document, null, 2)}</pre></details><//>`;
}

/** Keep what this page has seen of the intervals, one point a poll. */
function remember(past, rollout, now) {
  if (past.times.at(-1) > now - 1) return;
  past.times.push(now);
  for (const name of Object.keys(METRICS)) {
    const found = rollout.findings.find(({ metric }) => metric === name);
    const seen = past.metrics.get(name) ?? { low: past.times.slice(1).map(() => null), high: past.times.slice(1).map(() => null) };
    // too early to say: there is no band yet
    seen.low.push(found && found.high !== null ? found.low : null);
    seen.high.push(found ? found.high : null);
    past.metrics.set(name, seen);
  }
  if (past.times.length > KEPT) {
    past.times.shift();
    for (const seen of past.metrics.values()) {
      seen.low.shift();
      seen.high.shift();
    }
  }
}

function Findings({ rollout }) {
  const columns = [
    { key: "metric", title: "Metric", show: (f) => html`<div class="words"><strong>${METRICS[f.metric] ?? f.metric}</strong><div class="small soft break">${f.words}</div></div>` },
    { key: "judgement", title: "Verdict", show: (f) => html`<${Judged} judgement=${f.judgement} />` },
    { key: "interval", title: "Difference and margin", fixed: true, show: (f) => html`<${Interval} low=${f.low} high=${f.high} margin=${f.margin} either=${f.either} kind=${JUDGED[f.judgement]} words=${`Interval from ${difference(f.low, f.scale)} to ${difference(f.high, f.scale)}, margin ${difference(f.margin, f.scale)}`} />` },
    { key: "low", title: "At least", num: true, show: (f) => (f.high === null ? NONE : difference(f.low, f.scale)) },
    { key: "high", title: "At most", num: true, show: (f) => difference(f.high, f.scale) },
    { key: "margin", title: "Margin", num: true, show: (f) => `${f.either ? "±" : ""}${difference(f.margin, f.scale).replace("+", f.either ? "" : "+")}` },
    { key: "requests", title: "Samples", num: true, show: (f) => count(f.requests) },
  ];
  return html`<${Table} caption="What is found of each metric" columns=${columns} rows=${rollout.findings} id=${(f) => f.metric} />`;
}

function Band({ found, times, seen }) {
  const { margin, either, scale } = found;
  const series = [
    { label: "at most", values: seen.high, index: 1 },
    { label: "at least", values: seen.low, index: 1 },
    { label: "margin", values: times.map(() => margin), index: 2, dash: [6, 4] },
    ...(either ? [{ label: "lower margin", values: times.map(() => -margin), index: 2, dash: [6, 4] }] : []),
  ];
  // the margin keeps its place on the page; an interval that is far wider is cut off
  const range = (_plot, low, high) => [Math.max(Math.min(-margin * 1.3, low ?? 0), -margin * 8), Math.min(Math.max(margin * 1.3, high ?? 0), margin * 8)];
  return html`<${Chart} title=${`${METRICS[found.metric] ?? found.metric}: difference to the baseline, ${scale === "share" ? "points" : "%"}`} times=${times} series=${series} bands=${[{ upper: 0, lower: 1, index: 1 }]} range=${range} format=${(value) => difference(value, scale)} ticks=${(value) => (100 * value).toFixed(Math.abs(margin) < 0.01 ? 1 : 0)} empty=${found.high === null ? "Too few samples for an interval" : "Waiting for the next interval"} />`;
}

function History({ name, id, changed }) {
  const rows = useAsk(async () => (await api.list("/audit", { action: "rollout" }, "items", 500)).filter(({ target, after }) => target === `rollout/${name}` && (!after?.id || after.id === id)), [name, changed]);
  if (rows.error?.status === 403) return null;
  return html`<${Panel} title="History"><${Found} of=${rows} what="Asking the audit">${(found) => html`<${Table} caption="Decisions about rollouts of this name" id=${(row) => row.seq} rows=${found} most=${50} empty=${html`<${Empty} title="No change in the last 500 of rollouts">The audit has all of them: tidegate audit list.<//>`} columns=${[
    { key: "at_unix_ms", title: "When", show: (row) => html`<${Time} unix=${row.at_unix_ms / 1000} />` },
    { key: "action", title: "What", show: (row) => row.action.replace("rollout.", "") },
    { key: "actor", title: "Who", show: (row) => html`<span class="break">${row.actor}</span>` },
    { key: "status", title: "Then", fixed: true, show: (row) => (row.after?.status ? `${row.after.status}, ${row.after.phase}, ${percent(row.after.share)}` : NONE) },
    { key: "reason", title: "Reason", fixed: true, show: (row) => html`<span class="small break">${row.after?.reason ?? NONE}</span>` },
  ]} />`}<//><//>`;
}

function Decisions({ rollout, changed }) {
  if (!rollout.open) return null;
  const { name, status, experiment } = rollout;
  const decide = (what) => () => api.post(path`/rollouts/${name}/` + what);
  const ended = status === "done";
  return html`
    ${status === "running" && html`<${Confirm} label="Pause" title=${`Pause ${name}?`} danger=${false} work=${decide("pause")} done=${changed}>The canary keeps its share and the time stops. A canary that is worse still goes back.<//>`}
    ${status === "paused" && html`<${Confirm} label="Resume" title=${`Resume ${name}?`} danger=${false} work=${decide("resume")} done=${changed}>The time of the phase goes on.<//>`}
    ${!ended && html`<${Confirm} label="Promote" title=${`Promote ${name}?`} danger=${false} work=${decide("promote")} done=${changed}>${experiment ? `The canary ${rollout.canary} gets all of the traffic.` : `It goes on to the next phase at once, whatever this one (${rollout.phase}) still lacks.`}<//>`}
    ${(ended || experiment) && html`<${Close} rollout=${rollout} changed=${changed} />`}
    ${!ended && html`<${Abort} rollout=${rollout} changed=${changed} />`}`;
}

function Abort({ rollout, changed }) {
  const [open, setOpen] = useState(false);
  const change = useChange();
  const submit = async (event) => {
    event.preventDefault();
    const { reason } = valuesOf(event.target);
    const { done, result } = await change.run(() => api.post(path`/rollouts/${rollout.name}/abort`, { reason: reason ?? "" }));
    if (!done) return;
    setOpen(false);
    changed(result);
  };
  return html`<button type="button" class="danger" onClick=${() => { change.clear(); setOpen(true); }}>Abort</button>
    <${Dialog} title=${`Abort ${rollout.name}?`} open=${open} onClose=${() => setOpen(false)}>
      <form class="stack" onSubmit=${submit}>
        <p>Within a second new requests go to ${rollout.baseline}. What runs on ${rollout.canary} ends there. An aborted rollout cannot be taken up again.</p>
        <${Field} label="Reason" name="reason" hint="For readers of the history." error=${change.error} required maxlength="500" autocomplete="off" />
        ${change.error && change.error.param !== "reason" && html`<${Failure} error=${change.error} />`}
        <div class="row"><button class="danger" disabled=${change.busy}>Abort the rollout</button><button type="button" onClick=${() => setOpen(false)}>Cancel</button></div>
      </form>
    <//>`;
}

function Close({ rollout, changed }) {
  const [open, setOpen] = useState(false);
  const change = useChange();
  const refused = change.error?.code === "policies_lead_to_baseline";
  const submit = async (event) => {
    event.preventDefault();
    const back = !!valuesOf(event.target).back;
    const { done, result } = await change.run(() => api.post(path`/rollouts/${rollout.name}/close`, undefined, back ? { back: true } : {}));
    if (!done) return;
    setOpen(false);
    changed(result);
  };
  return html`<button type="button" onClick=${() => { change.clear(); setOpen(true); }}>Close</button>
    <${Dialog} title=${`Close ${rollout.name}?`} open=${open} onClose=${() => setOpen(false)}>
      <form class="stack" onSubmit=${submit}>
        <p>Afterwards requests go where the policies say. They should lead to ${rollout.canary} by now.</p>
        ${change.error && html`<${Failure} error=${change.error} />`}
        ${refused && html`<label class="check"><input type="checkbox" name="back" /> Send all traffic back to ${rollout.baseline}</label>`}
        <div class="row"><button class="primary" disabled=${change.busy}>Close the rollout</button><button type="button" onClick=${() => setOpen(false)}>Cancel</button></div>
      </form>
    <//>`;
}
