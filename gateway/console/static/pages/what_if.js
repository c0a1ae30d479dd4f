// What if: a simulation of routing policies on a modelled fleet, its progress, and its results as plots and tables.
import { html, useEffect, useState } from "../vendor/preact-htm.js";
import { ApiError, api } from "../lib/api.js";
import { Bars, Chart } from "../lib/chart.js";
import { NONE, count, ms, percent } from "../lib/format.js";
import { Badge, Confirm, Empty, Failure, Field, Found, Panel, Table, Time, useAsk, useChange, valuesOf } from "../lib/ui.js";

const SHARES = ["goodput", "hit_rate", "hit_rate_predicted"];
const STATES = { running: "", done: "good", failed: "bad", cancelled: "warn" };
const PLOTTED = [["ttft_p99_s", "Time to first token, p99"], ["goodput", "Goodput: requests within both objectives"], ["hit_rate", "Prompt tokens found in caches"]];
const USUAL = ["predicted_latency", "least_load"];

/** A figure of a result with its unit. */
function figure(name, value) {
  if (value === null || value === undefined) return NONE;
  if (SHARES.includes(name)) return percent(value);
  return name.endsWith("_s") && name !== "output_tokens_per_s" ? ms(value * 1000) : value.toFixed(2);
}

export function WhatIf() {
  const [running, setRunning] = useState(false);
  const asked = useAsk(() => api.get("/simulations"), [], running ? 1000 : 15_000);
  const last = asked.data?.last ?? null;
  useEffect(() => setRunning(last?.state === "running"), [last?.state]);
  return html`<${Found} of=${asked} what="Asking what can be simulated">${(known) => html`
    <${Panel} title="What would another routing policy do?">
      <p class="soft">A trace is replayed against modelled engines under each policy, by the gateway's own decision code. It runs on the gateway's machine with the lowest priority. No engine gets a request. The figures compare policies; they are no measurement.</p>
      <${Form} known=${known} busy=${last?.state === "running"} started=${asked.again} />
    <//>
    ${last && html`<${Last} last=${last} figures=${known.figures} changed=${asked.again} />`}`}<//>`;
}

function Form({ known, busy, started }) {
  const [source, setSource] = useState("workload");
  const [own, setOwn] = useState(false);
  const change = useChange();
  const { error } = change;
  const submit = async (event) => {
    event.preventDefault();
    const form = event.target;
    const { done } = await change.run(async () => api.post("/simulations", await asked(form, known)));
    if (done) started();
  };
  return html`<form class="stack" onSubmit=${submit}>
    <div class="fields">
      <${Field} label="Requests" name="source" error=${error?.param === "recent" ? { ...error, param: "source" } : null}><select name="source" value=${source} onChange=${(event) => setSource(event.target.value)}><option value="workload">a made-up workload</option>${known.recent && html`<option value="recent">the last ones of the request log</option>`}<option value="trace">a file: yesterday's access log, or another trace</option></select><//>
      ${source === "workload" && html`<${Field} label="Workload" name="workload" error=${error}><select name="workload">${known.workloads.map((name) => html`<option key=${name} value=${name} selected=${name === "chat"}>${name}</option>`)}</select><//>`}
      ${source === "trace" && html`<${Field} label="Trace" name="trace" hint=${`At most ${known.bounds.trace_chars >> 20} MiB of text.`} error=${error}><input type="file" id="trace-file" required accept=".log,.jsonl,.csv,.json,.txt" /><//>`}
      <${Field} label="Requests at most" name="limit" hint=${`Up to ${count(known.bounds.requests)}.`} error=${error} type="number" min="1" max=${known.bounds.requests} defaultValue="2000" required />
      <${Field} label="Arrivals, times as dense" name="speed" error=${error} type="number" min="0.001" max="1000" step="any" defaultValue="1" required />
      <${Field} label="Seeds" name="seeds" hint="Two or more give intervals." error=${error} type="number" min="1" max=${known.bounds.seeds} defaultValue="1" required />
    </div>
    <fieldset>
      <legend>Modelled fleet</legend>
      <label class="check"><input type="checkbox" checked=${own} onChange=${(event) => setOwn(event.target.checked)} /> A fleet file of my own, as JSON</label>
      ${own ? html`<${Field} label="Fleet" name="fleet" hint="The keys of a fleet file: engines of several kinds, signals, faults, tenants." error=${error}><textarea name="fleet" rows="8" required spellcheck=${false}>${'{"engines": [{"machine": "h100-8b", "count": 7}, {"machine": "h100-8b", "slower": 2.0}],\n "replicas": 2, "slo": {"ttft_s": 2.0, "tpot_s": 0.05}}'}</textarea><//>` : html`<div class="fields">
        <${Field} label="Machine and model" name="machine"><select name="machine">${known.machines.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select><//>
        <${Field} label="Engines" name="engines" type="number" min="1" max="1024" defaultValue="8" required />
        <${Field} label="Gateway processes" name="replicas" type="number" min="1" max="64" defaultValue="2" required />
        <${Field} label="First token within, s" name="ttft_s" hint="For goodput." type="number" min="0.001" step="any" defaultValue="2" required />
        <${Field} label="Per output token, ms" name="tpot_ms" hint="For goodput." type="number" min="0.01" step="any" defaultValue="50" required />
      </div>${error?.param?.startsWith("fleet") && html`<p class="mistake" role="alert">${error.message}</p>`}`}
    </fieldset>
    <fieldset>
      <legend>Policies to compare, at most ${known.bounds.policies}</legend>
      <div class="checks">${known.policies.map((name) => html`<label class="check" key=${name}><input type="checkbox" name=${`policy.${name}`} defaultChecked=${USUAL.includes(name)} /> ${name}</label>`)}</div>
      <${Field} label="Further ones with parameters, as JSON" name="policies" error=${error} placeholder=${'[{"policy": "weighted", "prefix": 0.8}]'} autocomplete="off" />
    </fieldset>
    ${error && !["workload", "trace", "recent", "limit", "speed", "seeds", "fleet", "policies"].includes(error.param?.split(".")[0]) && html`<${Failure} error=${error} />`}
    <div class="row"><button class="primary" disabled=${busy || change.busy}>${busy ? "A simulation runs" : change.busy ? "Starting…" : "Simulate"}</button></div>
  </form>`;
}

const json = (text, param) => {
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw new ApiError(400, `This is no JSON: ${cause.message}`, "invalid_json", param);
  }
};

/** The request that the form describes. */
async function asked(form, known) {
  const file = form.elements["trace-file"]?.files?.[0];
  if (file && file.size > known.bounds.trace_chars) throw new ApiError(400, `The file has over ${known.bounds.trace_chars >> 20} MiB. Take its last lines, or use tidegate simulate.`, "too_large", "trace");
  const trace = file ? await file.text() : undefined;
  const values = valuesOf(form);
  const policies = known.policies.filter((name) => values[`policy.${name}`]);
  if (values.policies) policies.push(...[json(values.policies, "policies")].flat());
  if (!policies.length) throw new ApiError(400, "Choose a policy.", "invalid_value", "policies");
  const fleet = values.fleet !== undefined ? json(values.fleet, "fleet") : {
    engines: [{ machine: values.machine, count: Number(values.engines) }],
    replicas: Number(values.replicas),
    slo: { ttft_s: Number(values.ttft_s), tpot_s: Number(values.tpot_ms) / 1000 },
  };
  return { workload: values.source === "workload" ? values.workload : undefined, recent: values.source === "recent" ? true : undefined, trace, fleet, policies, limit: Number(values.limit), speed: Number(values.speed), seeds: Number(values.seeds) };
}

function Last({ last, figures, changed }) {
  return html`<${Panel} title="The last simulation" side=${last.state === "running" && html`<${Confirm} label="Cancel it" title="Cancel the simulation?" work=${() => api.post("/simulations/cancel")} done=${changed}>What it has found so far is lost.<//>`}>
      <p class="row"><${Badge} kind=${STATES[last.state]}>${last.state}<//> <span>started by <span class="break">${last.by}</span> <${Time} unix=${last.started_unix} /></span></p>
      ${last.state === "running" && html`<div><label for="simulated">${last.words}${last.of > 0 && `: ${count(last.done)} of ${count(last.of)} requests`}</label><progress id="simulated" max=${last.of || null} value=${last.of ? last.done : null}></progress></div>`}
      ${last.error && html`<${Failure} error=${{ message: last.error }} />`}
    <//>
    ${last.result && html`<${Result} result=${last.result} figures=${figures} />`}`;
}

function Result({ result, figures }) {
  const { policies } = result;
  const points = Math.max(...policies.map(({ ttft_curve_s }) => ttft_curve_s.length));
  const names = Object.keys(figures);
  const lost = policies.filter(({ mean }) => mean.refused || mean.failed || mean.retries || mean.preemptions);
  const intervalOf = (policy, name) => policy.interval[name];
  const cell = (name) => (row) => html`<span title=${intervalOf(row, name) ? `95 %: ${figure(name, intervalOf(row, name)[0])} to ${figure(name, intervalOf(row, name)[1])}` : null}>${figure(name, row.mean[name])}</span>`;
  return html`
    <${Panel} title=${`${result.workload}: ${count(result.requests)} requests, simulated`}>
      <p class="soft small">${count(result.prompt_tokens)} prompt tokens, ${count(result.output_tokens)} output tokens, ${result.seeds} ${result.seeds === 1 ? "seed" : "seeds"}. If all caches were one, ${percent(result.pooled_hit_rate)} of the prompt tokens would be found.</p>
      <div class="grid">
        <${Chart} title="Time to first token, requests from the fastest to the slowest" tall times=${Array.from({ length: points }, (_, at) => ((at + 1) / 200) * 100)} along=${(value) => `${value} %`} format=${(value) => (value === undefined || value === null ? NONE : ms(value * 1000))} series=${policies.map((policy) => ({ label: policy.policy, values: Array.from({ length: points }, (_, at) => policy.ttft_curve_s[at] ?? null) }))} />
        ${PLOTTED.map(([name, title]) => html`<div class="panel" key=${name}><h3>${title}</h3><${Bars} title=${title} bars=${policies.map((policy, at) => ({ label: policy.policy, value: policy.mean[name], index: (at % 8) + 1, words: figure(name, policy.mean[name]) }))} most=${SHARES.includes(name) ? 1 : undefined} /></div>`)}
      </div>
    <//>
    <${Panel} title="Figures">
      <${Table} caption="Figures of each policy" rows=${policies} id=${(row) => row.policy} columns=${[{ key: "policy", title: "Policy", show: (row) => html`<strong class="nowrap">${row.policy}</strong>` }, ...names.map((name) => ({ key: name, title: figures[name].replace(/ (s|ms)$/, ""), num: true, sort: (row) => row.mean[name], show: cell(name) }))]} />
      ${lost.length > 0 && html`<ul>${lost.map(({ policy, mean }) => html`<li key=${policy}>${policy}: ${count(mean.refused)} refused, ${count(mean.failed)} failed, ${count(mean.retries)} retried, ${count(mean.preemptions)} preempted</li>`)}</ul>`}
    <//>
    ${policies.length > 1 && html`<${Panel} title=${`Against ${policies[0].policy}, on the same requests`}><${Differences} policies=${policies.slice(1)} /><//>`}
    ${result.notes.length > 0 && html`<${Panel} title="Assumed"><ul>${result.notes.map((note) => html`<li class="break" key=${note}>${note}</li>`)}</ul><//>`}`;
}

function Differences({ policies }) {
  const rows = policies.flatMap(({ policy, against_first }) => [["ttft_mean_s", "Mean time to first token"], ["hit_rate", "Hit rate"]].flatMap(([name, title]) => (against_first[name] ? [{ id: `${policy} ${name}`, policy, name, title, ...against_first[name] }] : [])));
  const signed = (name, value) => (name === "hit_rate" ? `${value > 0 ? "+" : ""}${(value * 100).toFixed(1)} points` : `${value > 0 ? "+" : "−"}${ms(Math.abs(value) * 1000)}`);
  return html`<${Table} caption="Differences from the first policy" rows=${rows} empty=${html`<${Empty} title="Too few requests to compare">Take more requests or seeds.<//>`} columns=${[
    { key: "policy", title: "Policy", show: (row) => html`<span class="break">${row.policy}</span>` },
    { key: "title", title: "Figure" },
    { key: "mean", title: "Difference", num: true, show: (row) => signed(row.name, row.mean) },
    { key: "low", title: "95 % from", num: true, show: (row) => signed(row.name, row.low) },
    { key: "high", title: "to", num: true, show: (row) => signed(row.name, row.high) },
    { key: "clear", title: "Says", show: (row) => (row.low > 0 || row.high < 0 ? html`<${Badge} kind="good">they differ<//>` : html`<${Badge}>no difference shown<//>`) },
  ]} />`;
}
