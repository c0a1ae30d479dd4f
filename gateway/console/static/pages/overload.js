// Overload: who waits, who is refused, and what the next request would meet.
import { html } from "../vendor/preact-htm.js";
import { Chart } from "../lib/chart.js";
import { count, ms } from "../lib/format.js";
import { useLive } from "../lib/live.js";
import { Head, Loading, Tile, Tiles } from "../lib/ui.js";

export function Overload() {
  const { samples, now } = useLive();
  if (!now) return html`<${Head} title="Overload" /><${Loading} what="Waiting for the first values" />`;
  const times = samples.map(({ at_unix }) => at_unix);
  const classes = Object.keys(now.waiting);
  const results = Object.keys(now.requests ?? {}).filter((result) => result !== "ok");
  return html`
    <${Head} title="Overload" sub="Requests wait for room on a backend by class; beyond the bounds of the queue they are refused." />
    <${Tiles}>
      ${classes.map((word) => html`<${Tile} key=${word} label=${`Queued, ${word}`} value=${count(now.waiting[word])} />`)}
      <${Tile} label="Refused by the queue" value=${count(now.queue_refused)} unit="/s" />
      <${Tile} label="Gateway's own time, p95" value=${ms(now.overhead_ms.p95)} />
    <//>
    <div class="grid">
      <${Chart} title="Queued requests by class" times=${times} series=${classes.map((word) => ({ label: word, values: samples.map((s) => s.waiting[word]) }))} stacked />
      <${Chart} title="Failed requests per second, by side" times=${times} series=${results.map((word) => ({ label: word, values: samples.map((s) => s.requests?.[word]) }))} stacked />
    </div>`;
}
