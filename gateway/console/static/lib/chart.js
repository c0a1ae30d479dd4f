// Charts over time (uPlot) and small ones in tables. Colours come from the style sheet, so that light and dark need nothing here.
import { html, useEffect, useRef } from "../vendor/preact-htm.js";
import { count } from "./format.js";

const DAY_S = 86_400;
/** A chart over time is at least so wide: its first values do not fill it, and its ticks are whole seconds. */
const LEAST_S = 60;
const TICKS_S = [1, 5, 10, 15, 30, 60, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, DAY_S, 2 * DAY_S, 5 * DAY_S, 7 * DAY_S, 14 * DAY_S, 28 * DAY_S];

/** Words for the ticks of the time axis: the day where ticks are days apart, seconds where they are seconds apart. */
function timeWords(ticks, spaceS) {
  const form = spaceS >= DAY_S ? { day: "numeric", month: "short" } : spaceS >= 60 ? { hour: "2-digit", minute: "2-digit" } : { hour: "2-digit", minute: "2-digit", second: "2-digit" };
  const words = new Intl.DateTimeFormat("en-GB", form);
  return ticks.map((tick) => words.format(new Date(tick * 1000)));
}

/** The values of stacked series as they are drawn: each upon the sum of those before it. A series that stays at 0 would hide the line below. */
export function piled(series) {
  const sums = [];
  return series.map(({ values, dash }) => {
    if (dash) return values.map((value) => value ?? null);
    return values.map((value, at) => {
      if (value) sums[at] = (sums[at] ?? 0) + value;
      const alone = !value && !values[at - 1] && !values[at + 1];
      return alone && (sums[at] || value !== 0) ? null : (sums[at] ?? (value === 0 ? 0 : null));
    });
  });
}

/** The bands between stacked series: each down to the one before it. */
const piles = (series) => series.flatMap(({ index, dash }, at) => (at && !dash ? [{ upper: at, lower: at - 1, index }] : []));

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function options(box, series, { ticks, stacked, range, bands, along }) {
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  return {
    width: box.clientWidth,
    height: box.clientHeight,
    cursor: { y: false, points: { size: 6 } },
    legend: { show: false },
    scales: { x: along ? { time: false } : { time: true, range: (_plot, low, high) => (low === null ? [low, high] : [Math.min(low, high - LEAST_S), high]) }, y: { range: range ?? ((_plot, _low, high) => [0, high > 0 ? high * 1.1 : 1]) } },
    padding: [8, 26, 0, 0],
    axes: [{ ...axis, size: 28, space: 70, incrs: along ? undefined : TICKS_S, values: (_plot, ticks, _axis, _space, apart) => (along ? ticks.map(along) : timeWords(ticks, apart)) }, { ...axis, size: 62, values: (_plot, values) => values.map((value) => ticks(value)) }],
    bands: (stacked ? piles(series) : bands)?.map(({ upper, lower, index }) => ({ series: [upper + 1, lower + 1], fill: `${colour(`--s${index}`)}33` })),
    series: [
      {},
      ...series.map(({ label, index, dash }) => ({
        label,
        dash,
        stroke: colour(`--s${index}`),
        fill: stacked && !dash ? `${colour(`--s${index}`)}33` : undefined,
        width: 1.75,
        points: { show: false },
        spanGaps: false,
      })),
    ],
  };
}

/** The format without zeros at the end of its digits: an axis has little room. */
const shorter = (format) => (value) => String(format(value)).replace(/(\.\d*?)0+(?!\d)/, "$1").replace(/\.(?!\d)/, "");

/**
 * Values over time. `times`: seconds since the epoch; `series`: {label, values} with one value or null for each time; `format` gives a value
 * its unit. The last values are in the legend as text, so that the chart can be read without seeing it. A series may have an `index` of its
 * colour and a `dash`. `bands` fill the room between two series: {upper, lower, index}, places in `series` and a colour. `along` gives the
 * units of a first axis that is no time, `ticks` the format of the second axis where it is shorter; `legend` false leaves it to the page.
 * With `stacked`, each line stands on the sum of those before it, but for a series with a `dash`. `note` and `under` are views below the title
 * and below the legend; a series with `words` has them in the legend in place of its last value.
 */
export function Chart({ title, times, series, format = count, stacked = false, tall = false, range, bands, along, ticks = shorter(format), legend = true, note, under, empty = "No data yet" }) {
  const box = useRef(null);
  const plot = useRef(null);
  const drawn = series.map((one, at) => ({ index: (at % 8) + 1, ...one }));
  const some = times.length > 1 && drawn.some(({ values }) => values.some((value) => value !== null && value !== undefined));
  const shape = drawn.map(({ label }) => label).join("\n");
  useEffect(() => {
    const make = () => {
      plot.current?.destroy();
      plot.current = new window.uPlot(options(box.current, drawn, { ticks, stacked, range, bands, along }), [[]], box.current);
    };
    make();
    const sizes = new ResizeObserver(() => box.current.clientWidth && plot.current?.setSize({ width: box.current.clientWidth, height: box.current.clientHeight }));
    sizes.observe(box.current);
    const themes = new MutationObserver(make);
    themes.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    return () => {
      sizes.disconnect();
      themes.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape, stacked]);
  useEffect(() => {
    plot.current?.setData([times, ...(stacked ? piled(drawn) : drawn.map(({ values }) => values.map((value) => value ?? null)))]);
  });
  const last = (values) => values.findLast((value) => value !== null && value !== undefined);
  return html`<figure class="chart panel" style=${{ margin: 0 }} role="group" aria-label=${title}>
    <figcaption><h3>${title}</h3>${note}</figcaption>
    <div class=${`plot ${tall ? "tall" : ""}`} ref=${box} aria-hidden="true">${!some && html`<div class="none">${empty}</div>`}</div>
    ${legend && html`<ul class="legend">${drawn.map(({ label, values, index, words }) => html`<li key=${label} class="break"><i class=${`c${index}`} aria-hidden="true"></i>${label} <strong>${words ?? format(last(values))}</strong></li>`)}</ul>`}
    ${under}
  </figure>`;
}

/** A round number that is at least so large: 1, 2, 2.5 or 5 times a power of ten. */
function roundTop(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((top) => top >= value * 0.999999);
}

/**
 * Amounts per day as stacked columns. `days`: texts as 2026-11-28; `series`: {label, values} with one amount for each day. The sum of each
 * series is in the legend as text.
 */
export function Columns({ title, days, series, format = count, empty = "Nothing in this time" }) {
  const drawn = series.map((one, at) => ({ ...one, index: (at % 8) + 1, sum: one.values.reduce((sum, value) => sum + (value ?? 0), 0) }));
  const highest = Math.max(0, ...days.map((_day, at) => drawn.reduce((sum, { values }) => sum + (values[at] ?? 0), 0)));
  const top = highest > 0 ? roundTop(highest) : 1;
  const short = (day) => new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", timeZone: "UTC" }).format(new Date(day));
  return html`<figure class="chart panel" style=${{ margin: 0 }} role="group" aria-label=${title}>
    <figcaption><h3>${title}</h3></figcaption>
    <div class="columns" aria-hidden="true">
      <div class="scale">${highest > 0 ? [top, top / 2, 0].map((value) => html`<span key=${value}>${format(value)}</span>`) : null}</div>
      <div class="plot">${highest > 0 ? html`<svg viewBox=${`0 0 ${days.length} 100`} preserveAspectRatio="none">
        ${[0, 50].map((y) => html`<line key=${y} class="grid-line" x1="0" x2=${days.length} y1=${y + 0.2} y2=${y + 0.2} />`)}
        ${days.map((day, at) => {
          let y = 100;
          return drawn.map(({ label, values, index }) => {
            const height = ((values[at] ?? 0) / top) * 100;
            y -= height;
            return height > 0 ? html`<rect key=${label} class=${`c${index}`} x=${at + 0.1} width="0.8" y=${y} height=${height}><title>${`${label}, ${day}: ${format(values[at])}`}</title></rect>` : null;
          });
        })}</svg>` : html`<div class="none">${empty}</div>`}</div>
      <div class="days"><span>${days.length > 0 && short(days[0])}</span>${days.length > 2 && html`<span>${short(days[Math.floor(days.length / 2)])}</span>`}${days.length > 1 && html`<span>${short(days.at(-1))}</span>`}</div>
    </div>
    <ul class="legend">${drawn.map(({ label, index, sum }) => html`<li key=${label} class="break"><i class=${`c${index}`} aria-hidden="true"></i>${label} <strong>${format(sum)}</strong></li>`)}</ul>
  </figure>`;
}

/** Named values as horizontal bars, each with its words: [{label, value, words?, kind?}]. */
export function Bars({ title, bars, format = count, most }) {
  const top = most ?? Math.max(...bars.map(({ value }) => Math.abs(value ?? 0)), 1e-9);
  return html`<div class="waterfall" role="list" aria-label=${title}>${bars.map(({ label, value, words, index = 1 }) => html`
    <span role="listitem" class="small break">${label}</span>
    <svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true"><rect class="bar-back" width="100" height="10" /><rect class=${`c${index}`} width=${Math.max((Math.abs(value ?? 0) / top) * 100, value ? 0.5 : 0)} height="10" /></svg>
    <span class="small nowrap num">${words ?? format(value)}</span>`)}</div>`;
}

/** Steps of one request: [{label, startMs, lengthMs, index}], drawn from their start. */
export function Waterfall({ title, steps, format, totalMs }) {
  const total = totalMs ?? Math.max(...steps.map(({ startMs, lengthMs }) => startMs + lengthMs), 1e-9);
  return html`<div class="waterfall" role="list" aria-label=${title}>${steps.map(({ label, startMs, lengthMs, index = 1 }) => html`
    <span role="listitem" class="small">${label}</span>
    <svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true"><rect class="bar-back" width="100" height="10" /><rect class=${`c${index}`} x=${(startMs / total) * 100} width=${Math.max((lengthMs / total) * 100, 0.4)} height="10" /></svg>
    <span class="small nowrap num">${format(lengthMs)}</span>`)}</div>`;
}

/** The last values of something as a line of the height of text. */
export function Spark({ values, most, label, kind = "" }) {
  const top = most ?? Math.max(...values.map((value) => value ?? 0), 1e-9);
  const step = values.length > 1 ? 100 / (values.length - 1) : 100;
  const line = values.map((value, at) => (value === null || value === undefined ? "" : `${at && values[at - 1] !== null ? "L" : "M"}${(at * step).toFixed(1)} ${(20 - (Math.min(value, top) / top) * 18 - 1).toFixed(1)}`)).join("");
  return html`<svg class=${`spark ${kind}`} viewBox="0 0 100 20" preserveAspectRatio="none" role="img" aria-label=${label}><path d=${line} /></svg>`;
}

/** A confidence interval against its margin: the tolerated room is shaded, and `words` say the same. `high` null: no end is known yet. */
export function Interval({ low, high, margin, either, kind, words }) {
  const reach = Math.min(Math.max(margin * 2, Math.abs(low), Math.abs(high ?? 0)) * 1.05, margin * 8);
  const x = (value) => ((Math.max(-reach, Math.min(reach, value)) + reach) / (2 * reach)) * 100;
  const open = high === null || high === undefined;
  const [from, to] = open ? [-reach, reach] : [low, high];
  return html`<svg class=${`interval ${kind} ${open ? "open" : ""}`} viewBox="0 0 100 12" preserveAspectRatio="none" role="img" aria-label=${words}>
    <rect class="room" x=${either ? x(-margin) : 0} width=${x(margin) - (either ? x(-margin) : 0)} height="12" />
    <line class="zero" x1="50" x2="50" y1="0" y2="12" />
    <line class="margin" x1=${x(margin)} x2=${x(margin)} y1="0" y2="12" />
    ${either && html`<line class="margin" x1=${x(-margin)} x2=${x(-margin)} y1="0" y2="12" />`}
    <rect class="span" x=${x(from)} width=${Math.max(x(to) - x(from), 0.8)} y="3" height="6" />
  </svg>`;
}
