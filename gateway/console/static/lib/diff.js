// The difference between two texts, line by line.
import { html } from "../vendor/preact-htm.js";

const MOST_CELLS = 4_000_000;
const AROUND = 3;

/** Lines of both texts in order: {sign, text, before, after} with sign " ", "-" or "+", and line numbers from 1. */
export function lineDiff(before, after) {
  const [a, b] = [before.split("\n"), after.split("\n")];
  let [head, tail] = [0, 0];
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
  const [x, y] = [a.slice(head, a.length - tail), b.slice(head, b.length - tail)];
  const lines = a.slice(0, head).map((text) => ({ sign: " ", text }));
  lines.push(...(x.length * y.length > MOST_CELLS ? replaced(x, y) : aligned(x, y)));
  lines.push(...a.slice(a.length - tail).map((text) => ({ sign: " ", text })));
  let [before_, after_] = [0, 0];
  return lines.map(({ sign, text }) => ({ sign, text, before: sign === "+" ? null : ++before_, after: sign === "-" ? null : ++after_ }));
}

const replaced = (x, y) => [...x.map((text) => ({ sign: "-", text })), ...y.map((text) => ({ sign: "+", text }))];

/** The longest common subsequence by dynamic programming from the end. */
function aligned(x, y) {
  const wide = y.length + 1;
  const common = new Uint32Array((x.length + 1) * wide);
  for (let i = x.length - 1; i >= 0; i--)
    for (let j = y.length - 1; j >= 0; j--)
      common[i * wide + j] = x[i] === y[j] ? common[(i + 1) * wide + j + 1] + 1 : Math.max(common[(i + 1) * wide + j], common[i * wide + j + 1]);
  const lines = [];
  let [i, j] = [0, 0];
  while (i < x.length && j < y.length) {
    if (x[i] === y[j]) {
      lines.push({ sign: " ", text: x[i] });
      i++;
      j++;
    } else if (common[(i + 1) * wide + j] >= common[i * wide + j + 1]) lines.push({ sign: "-", text: x[i++] });
    else lines.push({ sign: "+", text: y[j++] });
  }
  return [...lines, ...replaced(x.slice(i), y.slice(j))];
}

/** The changed lines with a few around them; null stands for lines that are left out. */
export function around(lines) {
  const near = lines.map(() => false);
  lines.forEach(({ sign }, at) => sign !== " " && near.fill(true, Math.max(0, at - AROUND), at + AROUND + 1));
  const shown = [];
  lines.forEach((line, at) => (near[at] ? shown.push(line) : shown.at(-1) !== null && shown.push(null)));
  return shown;
}

const WORDS = { "+": "added", "-": "removed" };

/** What changes in files from one set of texts by name to another. */
export function FilesDiff({ before, after }) {
  const names = [...new Set([...Object.keys(before), ...Object.keys(after)])].sort().filter((name) => before[name] !== after[name]);
  if (!names.length) return html`<p class="soft">No line differs.</p>`;
  return html`<div class="stack-gap">${names.map((name) => {
    const lines = name in before && name in after ? lineDiff(before[name], after[name]) : lineDiff(before[name] ?? "", after[name] ?? "").filter(({ text }) => text);
    const [plus, minus] = ["+", "-"].map((sign) => lines.filter((line) => line.sign === sign).length);
    return html`<section key=${name} aria-label=${`Changes of ${name}`}>
      <h3 class="break">${name} <span class="small soft">${name in before ? (name in after ? "" : "removed, ") : "new, "}${plus} added, ${minus} removed</span></h3>
      <div class="diff" tabindex="0" role="region" aria-label=${`Changed lines of ${name}`}>${around(lines).map((line, at) => line === null ? html`<div class="skip-line" key=${at}>⋯</div>` : html`<div class=${WORDS[line.sign] ?? "same"} key=${at}><span class="no" aria-hidden="true">${line.after ?? line.before}</span><span>${WORDS[line.sign] && html`<span class="hidden">${WORDS[line.sign]}: </span>`}<span aria-hidden="true">${line.sign} </span>${line.text}</span></div>`)}</div>
    </section>`;
  })}</div>`;
}
