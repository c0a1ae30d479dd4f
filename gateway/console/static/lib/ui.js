// Building blocks of all pages. Text always reaches the page as text, never as markup.
import { html, useCallback, useEffect, useRef, useState } from "../vendor/preact-htm.js";
import { NONE, moment, relative } from "./format.js";

/** Ask the API, again every `everyMs` while the tab is visible. `ask` gets nothing and returns a promise. */
export function useAsk(ask, needs = [], everyMs = 0) {
  const [found, setFound] = useState({ data: null, error: null, loading: true });
  const alive = useRef(true);
  const again = useCallback(async () => {
    try {
      const data = await ask();
      if (alive.current) setFound({ data, error: null, loading: false });
    } catch (error) {
      if (alive.current && error.name !== "AbortError") setFound((before) => ({ data: before.data, error, loading: false }));
    }
  }, needs);
  useEffect(() => {
    alive.current = true;
    setFound({ data: null, error: null, loading: true }); // another question: the old answer would stand under the new words
    again();
    return () => {
      alive.current = false;
    };
  }, [again]);
  useEffect(() => {
    // a page that begins to ask more often keeps what it shows
    const timer = everyMs ? setInterval(() => document.hidden || again(), everyMs) : 0;
    return () => clearInterval(timer);
  }, [again, everyMs]);
  return { ...found, again };
}

/** The only tenant that a person sees, as the API bounds it: that of the key of a tenant-admin alone; null for everybody else. */
export const onlyTenant = (me) => (me.roles.every((role) => role === "tenant-admin") ? me.tenant : null);

export const Badge = ({ kind = "", children }) => html`<span class=${`badge ${kind}`}>${children}</span>`;

/** A moment: how long ago, and in full where a pointer or a screen reader asks. */
export const Time = ({ unix }) => (unix ? html`<time datetime=${new Date(unix * 1000).toISOString()} title=${moment(unix)}>${relative(unix)}</time>` : NONE);

export const Loading = ({ what = "Loading" }) => html`<div class="loading" role="status">${what}…</div>`;

/** Why something could not be shown, and what to do. */
export const Failure = ({ error, again }) => html`
  <div class="banner bad row spread" role="alert">
    <span>${error.message}</span>
    ${again && html`<button type="button" onClick=${again}>Try again</button>`}
  </div>`;

/** There is nothing yet: what will be here, and how it comes. */
export const Empty = ({ title, children }) => html`<div class="empty"><strong>${title}</strong><span>${children}</span></div>`;

/** What `useAsk` found, or why not. */
export function Found({ of, what, children }) {
  if (of.data === null) return of.error ? html`<${Failure} error=${of.error} again=${of.again} />` : html`<${Loading} what=${what} />`;
  return html`${of.error && html`<${Failure} error=${of.error} again=${of.again} />`}${children(of.data)}`;
}

export const Head = ({ title, sub, children }) => html`
  <header class="head"><div><h1>${title}</h1>${sub && html`<p>${sub}</p>`}</div><div class="row">${children}</div></header>`;

export const Panel = ({ title, side, children }) => html`
  <section class="panel">${title && html`<div class="row spread"><h2>${title}</h2>${side}</div>`}${children}</section>`;

export const Tile = ({ label, value, unit, under }) => html`
  <div class="tile"><dt>${label}</dt><dd class=${typeof value === "string" && value.length > 8 ? "words" : ""}>${value}${unit && html` <small>${unit}</small>`}${under && html`<span class="under">${under}</span>`}</dd></div>`;

export const Tiles = ({ children }) => html`<dl class="tiles" style=${{ margin: 0 }}>${children}</dl>`;

/** A share from 0 to 1 as a bar with its words. */
export function Meter({ share, words, label, warn = 0.8, bad = 0.95 }) {
  if (share === null || share === undefined) return html`<span class="soft">${NONE}</span>`;
  const kept = Math.max(0, Math.min(share, 1));
  return html`<div class="meter" role="meter" aria-valuenow=${Math.round(kept * 100)} aria-valuemin="0" aria-valuemax="100" aria-label=${label}>
    <svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect class="bar-back" width="100" height="8" rx="2" /><rect class=${`bar-fill ${share >= bad ? "bad" : share >= warn ? "warn" : ""}`} width=${kept * 100} height="8" rx="2" /></svg>
    <span class="small nowrap">${words}</span>
  </div>`;
}

/**
 * A table. `columns`: {key, title, num?, show?(row), sort?(row)}; `rows` keep their order until a person sorts. `onPick` makes rows open
 * something: the first cell then holds a button, so that keyboards reach it. At most `most` rows are on the page.
 */
export function Table({ caption, columns, rows, id = (row) => row.id, onPick, pickLabel, most = 200, empty }) {
  const [order, setOrder] = useState(null);
  const [shown, setShown] = useState(most);
  if (!rows.length) return empty ?? html`<${Empty} title="Nothing here" />`;
  let sorted = rows;
  if (order) {
    const value = order.column.sort ?? ((row) => row[order.column.key]);
    sorted = [...rows].sort((a, b) => {
      const [left, right] = [value(a), value(b)];
      if (left === right) return 0;
      if (left === null || left === undefined) return 1;
      if (right === null || right === undefined) return -1;
      return (left < right ? -1 : 1) * (order.down ? -1 : 1);
    });
  }
  const sort = (column) => setOrder(order?.column.key === column.key ? (order.down ? null : { column, down: true }) : { column, down: !!column.num });
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}><table>
    <caption class="hidden">${caption}</caption>
    <thead><tr>${columns.map((column) => {
      const way = order?.column.key === column.key ? (order.down ? "descending" : "ascending") : "none";
      return html`<th scope="col" class=${column.num ? "num" : ""} aria-sort=${way} key=${column.key}>
        ${column.fixed ? column.title : html`<button type="button" onClick=${() => sort(column)}>${column.title}${way === "none" ? "" : way === "ascending" ? " ▲" : " ▼"}</button>`}</th>`;
    })}</tr></thead>
    <tbody>${sorted.slice(0, shown).map((row) => html`<tr key=${id(row)} class=${onPick ? "pick" : ""} onClick=${onPick && ((event) => event.target.closest("button, a, input, select") || onPick(row))}>
      ${columns.map((column, at) => {
        const cell = column.show ? column.show(row) : (row[column.key] ?? NONE);
        return html`<td class=${column.num ? "num nowrap" : ""} key=${column.key}>${onPick && at === 0 ? html`<button type="button" class="plain" aria-label=${pickLabel?.(row)} onClick=${() => onPick(row)}>${cell}</button>` : cell}</td>`;
      })}</tr>`)}</tbody>
  </table></div>
  ${sorted.length > shown && html`<p class="row small soft">${shown} of ${sorted.length} rows. <button type="button" onClick=${() => setShown(shown + most)}>Show ${Math.min(most, sorted.length - shown)} more</button></p>`}`;
}

/** A labelled control; `error` belongs to it when it names this field. */
export function Field({ label, hint, name, error, children, ...rest }) {
  const mistake = error?.param && error.param.split(".")[0] === name ? error.message : null;
  return html`<label class="field">${label}${hint && html`<span class="hint">${hint}</span>`}
    ${children ?? html`<input name=${name} aria-invalid=${mistake ? "true" : null} ...${rest} />`}
    ${mistake && html`<span class="mistake" role="alert">${mistake}</span>`}</label>`;
}

/**
 * A field of a form that stays on the page: it follows `value`, and keeps what a person is writing while the page around it is drawn anew.
 * (Preact sets `value` and `checked` of an element at every drawing; fields of a form in a dialog have `defaultValue` and `defaultChecked`.)
 */
export function Typed({ value, ...rest }) {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  return html`<input value=${text} onInput=${(event) => setText(event.target.value)} ...${rest} />`;
}

/** The form's values by name; empty texts are left out. */
export function valuesOf(form) {
  return Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, value.trim()]).filter(([, value]) => value !== ""));
}

/** Run a change once at a time: `run(work)` keeps its error, and says whether it is under way. */
export function useChange() {
  const [state, setState] = useState({ busy: false, error: null });
  const run = useCallback(async (work) => {
    setState({ busy: true, error: null });
    try {
      const result = await work();
      setState({ busy: false, error: null });
      return { done: true, result };
    } catch (error) {
      setState({ busy: false, error });
      return { done: false };
    }
  }, []);
  return { ...state, run, clear: () => setState({ busy: false, error: null }) };
}

/** A modal dialog; Escape and the browser's own focus handling come with the element. */
export function Dialog({ title, open, onClose, children }) {
  const box = useRef(null);
  useEffect(() => {
    if (open && !box.current.open) box.current.showModal();
    if (!open && box.current.open) box.current.close();
  }, [open]);
  return html`<dialog ref=${box} aria-label=${title} onClose=${onClose}>${open && html`<div class="panel" style=${{ border: 0, padding: 0 }}><div class="row spread"><h2>${title}</h2><button type="button" aria-label="Close" onClick=${onClose}>✕</button></div>${children}</div>`}</dialog>`;
}

/** A button that asks before it does something that cannot be taken back lightly. */
export function Confirm({ label, title, children, danger = true, work, done, disabled }) {
  const [open, setOpen] = useState(false);
  const change = useChange();
  const go = async () => {
    const { done: finished, result } = await change.run(work);
    if (finished) {
      setOpen(false);
      done?.(result);
    }
  };
  return html`<button type="button" class=${danger ? "danger" : ""} disabled=${disabled} onClick=${() => { change.clear(); setOpen(true); }}>${label}</button>
    <${Dialog} title=${title} open=${open} onClose=${() => setOpen(false)}>
      <div>${children}</div>
      ${change.error && html`<${Failure} error=${change.error} />`}
      <div class="row"><button type="button" class=${danger ? "danger" : "primary"} disabled=${change.busy} onClick=${go}>${label}</button><button type="button" onClick=${() => setOpen(false)}>Cancel</button></div>
    <//>`;
}

/** Tabs that the arrow keys move between. `tabs`: [key, title] pairs. */
export function Tabs({ label, tabs, now, onTab }) {
  const keys = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const at = (tabs.findIndex(([key]) => key === now) + step + tabs.length) % tabs.length;
    onTab(tabs[at][0]);
    event.currentTarget.children[at].focus();
  };
  return html`<div class="tabs" role="tablist" aria-label=${label} onKeyDown=${keys}>${tabs.map(([key, title]) => html`<button type="button" role="tab" key=${key} aria-selected=${key === now ? "true" : "false"} tabindex=${key === now ? 0 : -1} onClick=${() => onTab(key)}>${title}</button>`)}</div>`;
}

/** A text that is shown once, with a button that copies it. */
export function Secret({ text, label }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setCopied(true);
    } catch {
      setCopied(false); // without TLS some browsers have no clipboard: the text can be marked by hand
    }
  };
  return html`<div class="banner good"><p><strong>${label}</strong> It is shown once. Keep it now.</p><pre>${text}</pre><button type="button" onClick=${copy}>${copied ? "Copied" : "Copy"}</button></div>`;
}
