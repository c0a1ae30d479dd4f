// The form that starts a rollout or an experiment: fields for what most rollouts need, or a whole document as JSON.
import { html, useState } from "../vendor/preact-htm.js";
import { ApiError, api } from "../lib/api.js";
import { Failure, Field, Head, Panel, Tabs, useAsk, useChange, valuesOf } from "../lib/ui.js";

const MARGINS = { errors: [0.5, "points"], broken_streams: [0.5, "points"], refusals: [2, "points"], ttft: [10, "%"], itl: [5, "%"], output_tokens: [15, "%, either way"], token_cost: [10, "%"] };
const NEW_STEP = { share: "", min_requests: "100", min_minutes: "10", max_hours: "4", needs: "not_worse", gate: false };
const FIRST_STEPS = [{ ...NEW_STEP, share: "1" }, { ...NEW_STEP, share: "10" }, { ...NEW_STEP, share: "50", needs: "good_enough" }, { ...NEW_STEP, share: "100" }];
const ROOTS = ["name", "baseline", "canary", "tenants", "models", "on_timeout", "steps", "shadow", "experiment", "margins", "alpha", "min_samples", "warm_up_s", "warm_up_requests", "document"];

const names = (text) => text?.split(/[\s,]+/).filter(Boolean);
const number = (text) => (text === undefined || text === "" ? undefined : Number(text));
const part = (text) => (number(text) === undefined ? undefined : Number((number(text) / 100).toPrecision(12)));

/** The document that the form's values describe; a field that is left out gets the gateway's default. */
export function documentOf(values, steps) {
  const margins = Object.fromEntries(Object.keys(MARGINS).map((metric) => [metric, part(values[`margin.${metric}`])]).filter(([, margin]) => margin !== undefined));
  const written = {
    name: values.name,
    of: values.of === "prompt" ? "prompt" : undefined,
    baseline: values.baseline,
    canary: values.canary,
    tenants: names(values.tenants),
    models: names(values.models),
    steps: values.plan === "steps" ? steps.map((step) => ({ share: part(step.share), min_requests: number(step.min_requests), min_s: number(step.min_minutes) * 60, max_s: number(step.max_hours) * 3600, needs: step.needs, gate: step.gate })) : undefined,
    experiment: values.plan === "experiment" ? { share: part(values["experiment.share"]), min_requests: number(values["experiment.min_requests"]) } : undefined,
    shadow: values.shadow && values.plan !== "experiment" && values.of !== "prompt" ? { share: part(values["shadow.share"]), min_requests: number(values["shadow.min_requests"]), max_in_flight: number(values["shadow.max_in_flight"]) } : undefined,
    on_timeout: values.on_timeout === "hold" ? "hold" : undefined,
    margins: Object.keys(margins).length ? margins : undefined,
    alpha: part(values.alpha),
    min_samples: number(values.min_samples),
    warm_up_s: number(values.warm_up_s),
    warm_up_requests: number(values.warm_up_requests),
  };
  return JSON.parse(JSON.stringify(written)); // without the fields that are undefined
}

/** What is wrong in a part of the form that has no field of its own. */
function Mistake({ error, of }) {
  return error?.param?.split(".")[0] === of ? html`<p class="mistake" role="alert">${error.message}</p>` : null;
}

export function StartRollout() {
  const [tab, setTab] = useState("form");
  const [text, setText] = useState("");
  const change = useChange();
  const start = async (make) => {
    const { done, result } = await change.run(async () => api.post("/rollouts", make()));
    if (done) location.hash = `#/rollouts/${encodeURIComponent(result.id)}`;
  };
  const placed = change.error?.param && ROOTS.includes(change.error.param.split(".")[0]);
  return html`
    <${Head} title="Start a rollout" sub="Policies keep naming the baseline. The canary gets a growing share, and goes back by itself when it is worse."><a class="button" href="#/rollouts">All rollouts</a><//>
    <${Panel}>
      <${Tabs} label="How to write it" tabs=${[["form", "Form"], ["document", "Document"]]} now=${tab} onTab=${setTab} />
      ${tab === "form" ? html`<${Form} change=${change} onStart=${(doc) => start(() => doc)} onDocument=${(doc) => { setText(JSON.stringify(doc, null, 2)); change.clear(); setTab("document"); }} />` : html`
        <form class="stack" onSubmit=${(event) => { event.preventDefault(); start(() => parsed(text)); }}>
          <${Field} label="Document" name="document" hint="The rollout file as JSON; every field of the reference works. A YAML file is started with tidegate rollout start FILE." error=${change.error}>
            <textarea name="document" rows="20" spellcheck=${false} required value=${text} onInput=${(event) => setText(event.target.value)}></textarea>
          <//>
          ${change.error && change.error.param !== "document" && html`<${Failure} error=${change.error} />`}
          <div class="row"><button class="primary" disabled=${change.busy}>Start</button></div>
        </form>`}
      ${tab === "form" && change.error && !placed && html`<${Failure} error=${change.error} />`}
    <//>`;
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw new ApiError(400, `This is no JSON: ${cause.message}`, "invalid_json", "document");
  }
}

function Form({ change, onStart, onDocument }) {
  const pools = useAsk(() => api.port("/pools"));
  const [of, setOf] = useState("pool");
  const [plan, setPlan] = useState("usual");
  const [shadow, setShadow] = useState(false);
  const [steps, setSteps] = useState(FIRST_STEPS);
  const { error } = change;
  const read = (form) => documentOf(valuesOf(form), steps);
  const submit = (event) => {
    event.preventDefault();
    onStart(read(event.target));
  };
  const which = (name, label, hint) => of === "pool" && pools.data
    ? html`<${Field} label=${label} name=${name} hint=${hint} error=${error}><select name=${name} required><option value="">Choose a pool</option>${pools.data.pools.map((pool) => html`<option key=${pool.name} value=${pool.name}>${pool.name}</option>`)}</select><//>`
    : html`<${Field} label=${label} name=${name} hint=${of === "pool" ? hint : `${hint} Written ID@VERSION.`} error=${error} required autocomplete="off" />`;
  return html`<form class="stack" onSubmit=${submit}>
    <div class="fields">
      <${Field} label="Name" name="name" hint="Lower-case letters, digits, inner dots and dashes." error=${error} required maxlength="63" autocomplete="off" />
      <${Field} label="What changes" name="of" error=${error}><select name="of" value=${of} onChange=${(event) => setOf(event.target.value)}><option value="pool">a pool: model, engine, options</option><option value="prompt">the version of a prompt</option></select><//>
      ${which("baseline", "Baseline", "What answers now.")}
      ${which("canary", "Canary", "What is to take over.")}
    </div>
    <fieldset>
      <legend>Plan</legend>
      <div class="checks">
        ${[["usual", "The usual steps: 1, 5, 25, 50 and 100 %"], ["steps", "Steps of my own"], ["experiment", "An experiment: one share, and nothing follows from the verdict"]].map(([key, words]) => html`<label class="check" key=${key}><input type="radio" name="plan" value=${key} checked=${plan === key} onChange=${() => setPlan(key)} /> ${words}</label>`)}
      </div>
      ${plan === "steps" && html`<${Steps} steps=${steps} onSteps=${setSteps} error=${error} />`}
      ${plan === "experiment" && html`<div class="fields">
        <${Field} label="Share of the canary, %" name="experiment.share" type="number" min="0.1" max="99.9" step="any" defaultValue="50" required />
        <${Field} label="Requests until the verdict" name="experiment.min_requests" type="number" min="1" defaultValue="1000" required />
      </div>`}
      <${Mistake} error=${error} of="experiment" />
      ${plan !== "experiment" && of === "pool" && html`<label class="check"><input type="checkbox" name="shadow" checked=${shadow} onChange=${(event) => setShadow(event.target.checked)} /> Mirror requests to the canary first; its answers are thrown away</label>`}
      ${plan !== "experiment" && of === "pool" && shadow && html`<div class="fields">
        <${Field} label="Mirrored, % of requests" name="shadow.share" type="number" min="0.1" max="100" step="any" defaultValue="10" required />
        <${Field} label="Requests to mirror" name="shadow.min_requests" type="number" min="1" defaultValue="100" required />
        <${Field} label="In flight for each worker, at most" name="shadow.max_in_flight" type="number" min="1" max="1000" defaultValue="4" required />
      </div>`}
      <${Mistake} error=${error} of="shadow" />
      <${Field} label="When a step has not passed in its time" name="on_timeout" error=${error}><select name="on_timeout"><option value="rollback">go back to the baseline</option><option value="hold">hold until an operator decides</option></select><//>
    </fieldset>
    <fieldset>
      <legend>Margins: how much worse the canary may be</legend>
      <div class="fields">${Object.entries(MARGINS).map(([metric, [usual, unit]]) => html`<${Field} key=${metric} label=${`${metric}, ${unit}`} name=${`margin.${metric}`} type="number" min="0.01" step="any" placeholder=${usual} />`)}</div>
      <${Mistake} error=${error} of="margins" />
    </fieldset>
    <details>
      <summary>Whom it concerns, and how sure the verdict is</summary>
      <div class="fields">
        <${Field} label="Tenants" name="tenants" hint="Separated by commas; empty for all." error=${error} autocomplete="off" />
        <${Field} label="Models" name="models" hint="Public names; empty for all of the pool." error=${error} autocomplete="off" />
        <${Field} label="False alarms, %" name="alpha" hint="Chance that a canary within its margins is sent back." error=${error} type="number" min="0.01" max="20" step="any" placeholder="1" />
        <${Field} label="Samples before a verdict" name="min_samples" error=${error} type="number" min="1" placeholder="50" />
        <${Field} label="Warm-up, seconds" name="warm_up_s" hint="Not counted." error=${error} type="number" min="0" step="any" placeholder="120" />
        <${Field} label="Warm-up, requests" name="warm_up_requests" hint="Not counted." error=${error} type="number" min="0" placeholder="20" />
      </div>
    </details>
    <div class="row"><button class="primary" disabled=${change.busy}>${change.busy ? "Starting…" : "Start"}</button><button type="button" onClick=${(event) => onDocument(read(event.target.form))}>Show as a document</button></div>
  </form>`;
}

function Steps({ steps, onSteps, error }) {
  const set = (at, key, value) => onSteps(steps.map((step, n) => (n === at ? { ...step, [key]: value } : step)));
  const input = (step, at, key, label, more) => html`<input type="number" step="any" required aria-label=${`${label} of step ${at + 1}`} value=${step[key]} onInput=${(event) => set(at, key, event.target.value)} ...${more} />`;
  return html`
    <div class="scroll" tabindex="0" role="region" aria-label="Steps"><table>
      <caption class="hidden">Steps of the rollout</caption>
      <thead><tr>${["Share, %", "Requests, at least", "Minutes, at least", "Hours, at most", "Passes when", "Waits for a person", ""].map((title) => html`<th scope="col" key=${title}>${title || html`<span class="hidden">Remove</span>`}</th>`)}</tr></thead>
      <tbody>${steps.map((step, at) => html`<tr key=${at}>
        <td>${input(step, at, "share", "Share", { min: 0.01, max: 100 })}</td>
        <td>${input(step, at, "min_requests", "Requests", { min: 1 })}</td>
        <td>${input(step, at, "min_minutes", "Minutes", { min: 0 })}</td>
        <td>${input(step, at, "max_hours", "Hours", { min: 0 })}</td>
        <td><select aria-label=${`When step ${at + 1} passes`} value=${step.needs} onChange=${(event) => set(at, "needs", event.target.value)}><option value="not_worse">no metric is worse</option><option value="good_enough">every metric is good enough</option></select></td>
        <td><input type="checkbox" aria-label=${`Step ${at + 1} waits for a person`} checked=${step.gate} onChange=${(event) => set(at, "gate", event.target.checked)} /></td>
        <td><button type="button" disabled=${steps.length <= 2} onClick=${() => onSteps(steps.filter((_, n) => n !== at))} aria-label=${`Remove step ${at + 1}`}>✕</button></td>
      </tr>`)}</tbody>
    </table></div>
    <div class="row"><button type="button" onClick=${() => onSteps([...steps.slice(0, -1), { ...NEW_STEP }, ...steps.slice(-1)])}>Add a step</button></div>
    <${Mistake} error=${error} of="steps" />`;
}
