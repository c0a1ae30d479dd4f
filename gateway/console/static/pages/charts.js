// Charts: the panels of the dashboards, as Grafana has them, drawn from the operator's Prometheus over the admin API.
import { html } from "../vendor/preact-htm.js";
import { api, path } from "../lib/api.js";
import { Bars, Chart } from "../lib/chart.js";
import { NONE, bytes, count, ms, percent, usd } from "../lib/format.js";
import { Badge, Empty, Failure, Field, Found, Head, Loading, useAsk } from "../lib/ui.js";

const RANGES = { "5 minutes": 300, "15 minutes": 900, "1 hour": 3600, "6 hours": 21_600, "24 hours": 86_400, "7 days": 604_800, "30 days": 2_592_000 };
const USUAL = "1 hour";
const LOOK_MS = 10_000;
const each = (format, unit) => (value) => (value === null || value === undefined ? NONE : `${format(value)}${unit}`);
/** How values of each unit of `gateway/dashboards/panels.py` are written. */
const UNITS = {
  count,
  times: each(count, " times"),
  seconds: (value) => ms(value === null || value === undefined ? value : value * 1000),
  ratio: percent,
  "yes or no": (value) => (value === null || value === undefined ? NONE : value >= 1 ? "yes" : value > 0 ? "in part" : "no"),
  "requests/s": each(count, "/s"),
  "tokens/s": each(count, "/s"),
  "tokens/J": each(count, "/J"),
  "per second": each(count, "/s"),
  bytes,
  "bytes/s": each(bytes, "/s"),
  usd,
  "usd/h": each(usd, "/h"),
  watts: each(count, " W"),
};

/** Whether a value is good, a warning or bad. Where the highest value is the best, thresholds lead up to it, as `grafana.py` has it. */
export function judged(value, { thresholds, most }) {
  if (value === null || value === undefined || !thresholds.length) return "";
  const passed = thresholds.filter((threshold) => value >= threshold.value);
  if (most !== null && !thresholds.some(({ is_bad }) => is_bad)) return passed.length === thresholds.length ? "good" : passed.length ? "warn" : "bad";
  return passed.length ? (passed.at(-1).is_bad ? "bad" : "warn") : "good";
}

const WORDS = { good: "good", warn: "warning", bad: "bad" };
const SHADES = { "": 1, good: 3, warn: 5, bad: 2 };
const last = ({ values }) => values.findLast((value) => value !== null) ?? null;
const nothing = (panel) => (panel.empty_until ? `Empty until ${panel.empty_until}` : "Nothing in this time");

function Present({ panel, series, format }) {
  const some = series.filter((one) => last(one) !== null);
  if (!some.length) return html`<p class="none">${nothing(panel)}</p>`;
  if (panel.kind === "value" && some.length === 1) {
    const value = last(some[0]);
    const kind = judged(value, panel);
    return html`<p class="present">${format(value)} ${kind && html`<${Badge} kind=${kind}>${WORDS[kind]}<//>`}</p>`;
  }
  const bars = some.map((one) => ({ label: one.label, value: last(one), kind: judged(last(one), panel) }));
  return html`<${Bars} title=${panel.title} most=${panel.most ?? undefined} bars=${bars.map(({ label, value, kind }) => ({ label, value, index: SHADES[kind], words: `${format(value)}${kind === "warn" || kind === "bad" ? `, ${WORDS[kind]}` : ""}` }))} />`;
}

/** A threshold is drawn once the values come near it; an axis up to a threshold that is far away would press them flat. */
function bounds(panel, times, series, format) {
  const highest = Math.max(0, ...series.flatMap(({ values }) => values));
  return panel.thresholds.filter(({ value }) => value > 0 && highest >= value / 2).map(({ value, is_bad }) => ({ label: `${is_bad ? "bad" : "warning"} from`, values: times.map(() => value), index: is_bad ? 2 : 5, dash: [6, 4], words: format(value) }));
}

function One({ board, panel, asked }) {
  const found = useAsk(() => api.get(path`/dashboards/${board.uid}/panels/${panel.id}`, asked), [board.uid, panel.id, JSON.stringify(asked)], LOOK_MS);
  const format = UNITS[panel.unit] ?? count;
  const { times = [], series = [], left_out: leftOut = 0 } = found.data ?? {};
  const note = html`<p class="small soft">${panel.description}</p>`;
  const under = html`
    ${found.error && html`<p class="small mistake">${found.error.message}</p>`}
    ${leftOut > 0 && html`<p class="small soft">${count(leftOut)} more series have smaller values and are not drawn. Choose above.</p>`}
    <details class="small"><summary>Query</summary>${panel.queries.map(({ expr }) => html`<pre key=${expr} tabindex="0">${expr}</pre>`)}</details>`;
  if (panel.kind === "lines" || panel.kind === "stacked") {
    const drawn = series.length ? [...series, ...bounds(panel, times, series, format)] : [];
    return html`<${Chart} title=${panel.title} times=${times} series=${drawn} format=${format} stacked=${panel.kind === "stacked"} range=${panel.most === null ? undefined : [0, panel.most]} note=${note} under=${under} empty=${found.loading ? "Asking Prometheus…" : nothing(panel)} />`;
  }
  return html`<figure class="chart panel" style=${{ margin: 0 }} role="group" aria-label=${panel.title}><figcaption><h3>${panel.title}</h3>${note}</figcaption>
    ${found.loading ? html`<p class="none">Asking Prometheus…</p>` : html`<${Present} panel=${panel} series=${series} format=${format} />`}${under}</figure>`;
}

const move = (params) => {
  location.hash = `#/charts?${new URLSearchParams(Object.entries(params).filter(([, value]) => value))}`;
};

function Board({ boards, board, params }) {
  const rangeS = RANGES[params.last] ?? RANGES[USUAL];
  const choices = useAsk(() => api.get(path`/dashboards/${board.uid}/choices`, { range_s: rangeS }), [board.uid, rangeS]);
  const chosen = Object.fromEntries(board.choices.map((name) => [name, params[name]]));
  const change = (event) => move({ ...Object.fromEntries(new FormData(event.currentTarget)) });
  const values = (name) => [...new Set([...(choices.data?.choices[name] ?? []), ...(params[name] ? [params[name]] : [])])];
  return html`
    <form class="filters" onChange=${change} onSubmit=${(event) => event.preventDefault()}>
      <${Field} label="Dashboard"><select name="board" value=${board.uid}>${boards.map(({ uid, title }) => html`<option key=${uid} value=${uid} selected=${uid === board.uid}>${title.replace("Tidegate: ", "")}</option>`)}</select><//>
      <${Field} label="Of the last"><select name="last">${Object.keys(RANGES).map((words) => html`<option key=${words} value=${words} selected=${words === (params.last ?? USUAL)}>${words}</option>`)}</select><//>
      ${board.choices.map((name) => html`<${Field} key=${name} label=${name[0].toUpperCase() + name.slice(1)}><select name=${name}><option value="">all</option>${values(name).map((value) => html`<option key=${value} value=${value} selected=${value === params[name]}>${value}</option>`)}</select><//>`)}
    </form>
    <p class="soft">${board.description}</p>
    ${choices.data ? board.rows.map((row) => html`<section class="page" key=${`${board.uid} ${row.title}`} aria-label=${row.title}><h2>${row.title}</h2>
      <div class="grid">${row.panels.map((panel) => html`<${One} key=${panel.id} board=${board} panel=${panel} asked=${{ range_s: rangeS, ...chosen }} />`)}</div></section>`)
      : choices.error ? html`<${Failure} error=${choices.error} again=${choices.again} />` : html`<${Loading} what="Asking Prometheus" />`}`;
}

const WITHOUT = html`<${Empty} title="The settings name no Prometheus">
  The gateway keeps no history of its metrics: Prometheus does. Set <code>console.prometheus_url</code> to the address of the one that reads this gateway's
  metrics, and reload the settings (docs/start/prometheus.md). The last ten minutes are on <a href="#/fleet">Fleet</a>, <a href="#/overload">Overload</a>,
  <a href="#/cache">Cache</a> and <a href="#/guards">Guards</a>, live.<//>`;

export function Charts({ params }) {
  const found = useAsk(() => api.get("/dashboards"), []);
  return html`
    <${Head} title="Charts" sub="The dashboards that Grafana gets, drawn from Prometheus." />
    <${Found} of=${found} what="Asking for the dashboards">${({ prometheus, dashboards }) => {
      const board = dashboards.find(({ uid }) => uid === params.board) ?? dashboards[0];
      return prometheus ? html`<${Board} boards=${dashboards} board=${board} params=${params} />` : html`<section class="panel">${WITHOUT}</section>`;
    }}<//>`;
}
