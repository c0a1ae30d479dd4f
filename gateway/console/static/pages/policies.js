// Policies: what is active and where it comes from, versions of the database with their differences, a change with its check, and what if.
import { html, useState } from "../vendor/preact-htm.js";
import { api, path } from "../lib/api.js";
import { FilesDiff } from "../lib/diff.js";
import { NONE, count } from "../lib/format.js";
import { Badge, Confirm, Empty, Failure, Field, Found, Head, Loading, Panel, Table, Tabs, Tile, Tiles, Time, useAsk, useChange } from "../lib/ui.js";
import { WhatIf } from "./what_if.js";

const RUNNERS = ["owner", "admin", "operator"];
const ADMINS = ["owner", "admin"];
const POLL_MS = 20_000;
const bytesOf = (files) => Object.values(files).reduce((sum, text) => sum + text.length, 0);

export function Policies({ me, parts }) {
  const active = useAsk(() => api.get("/policies/active"), [], POLL_MS);
  const mayRun = me.roles.some((role) => RUNNERS.includes(role));
  const mayApply = me.roles.some((role) => ADMINS.includes(role));
  const owned = active.data?.source === "database";
  const tabs = [["files", "Files"], ...(owned ? [["versions", "Versions"]] : []), ...(mayRun ? [["change", "Try a change"], ["what-if", "What if"]] : [])];
  const tab = tabs.some(([key]) => key === parts[0]) ? parts[0] : parts[0] === "versions" && !active.data ? "versions" : "files";
  const sub = active.data && (owned ? `Version ${active.data.version} of the database` : `Files in ${active.data.folder} on the gateway's machine`);
  return html`
    <${Head} title="Policies" sub=${sub}>${mayRun && html`<${Reload} done=${active.again} />`}<//>
    <${Found} of=${active} what="Asking for the active policies">${(now) => html`
      <${State} now=${now} />
      <${Tabs} label="Views of the policies" tabs=${tabs} now=${tab} onTab=${(key) => (location.hash = `#/policies/${key}`)} />
      ${tab === "files" && html`<${Panel} title="Files that workers read"><${Files} files=${now.files} note=${now.left_out ? `${count(now.left_out)} more files are not shown: all together are over 2 MiB.` : ""} /><//>`}
      ${tab === "versions" && html`<${Versions} picked=${parts[1]} mayApply=${mayApply} changed=${active.again} />`}
      ${tab === "change" && (now.left_out || now.unreadable ? html`<${Empty} title="This folder cannot be edited here">${now.unreadable || "It is too large for a page. Use tidegate policy diff and check."}<//>` : html`<${Change} now=${now} mayApply=${mayApply} changed=${active.again} />`)}
      ${tab === "what-if" && html`<${WhatIf} />`}`}<//>`;
}

function State({ now }) {
  const digests = Object.entries(now.digests);
  const workers = digests.reduce((sum, [, n]) => sum + n, 0);
  return html`
    ${now.unreadable && html`<div class="banner bad" role="alert"><strong>The folder cannot be read.</strong> <span class="break">${now.unreadable}</span></div>`}
    ${now.problems.length > 0 && html`<div class="banner bad" role="alert"><strong>The files as they are now are refused; the policies before stay active.</strong><ul>${now.problems.map((problem) => html`<li class="break" key=${problem}>${problem}</li>`)}</ul>${now.problem_count > now.problems.length && html`<p>… and ${now.problem_count - now.problems.length} more.</p>`}</div>`}
    ${now.warnings.length > 0 && html`<div class="banner" role="status"><strong>Active, and hardly meant</strong><ul>${now.warnings.map((warning) => html`<li class="break" key=${warning}>${warning}</li>`)}</ul></div>`}
    ${digests.length > 1 && html`<div class="banner" role="status">The workers have different policies. They were changed a moment ago, or a worker cannot read them: reload, and look at the gateway's page.</div>`}
    <${Tiles}>
      <${Tile} label="Owned by" value=${now.source === "database" ? "Database" : "Files"} under=${now.source === "database" ? `version ${now.version}` : "policies_from: files"} />
      <${Tile} label="Workers" value=${workers ? `${count(Math.max(...digests.map(([, n]) => n)))} of ${count(workers)}` : NONE} under=${workers ? "have the same policies" : "no worker answers"} />
      <${Tile} label="Digest" value=${html`<span class="mono digest" title=${digests[0]?.[0]}>${digests[0]?.[0].slice(0, 8) ?? NONE}</span>`} under="in each line of the access log" />
      <${Tile} label="Read" value=${html`<${Time} unix=${now.loaded_unix} />`} />
      <${Tile} label="Files" value=${count(Object.keys(now.files).length + now.left_out)} under=${`${count(bytesOf(now.files))} characters`} />
    <//>`;
}

function Reload({ done }) {
  const change = useChange();
  const [said, setSaid] = useState("");
  const go = async () => {
    setSaid("");
    const { done: finished, result } = await change.run(() => api.post("/policies/reload"));
    if (finished) setSaid(`${result.workers} ${result.workers === 1 ? "worker has" : "workers have"} ${result.digest.slice(0, 8)}.`);
    done();
  };
  return html`<span role="status" class="small soft">${said}</span>
    <button type="button" disabled=${change.busy} onClick=${go}>${change.busy ? "Reading…" : "Reload"}</button>
    ${change.error && html`<div class="break"><${Failure} error=${change.error} /></div>`}`;
}

/** Texts by name: a list, and the one that was picked. */
function Files({ files, note }) {
  const names = Object.keys(files).sort();
  const [picked, setPicked] = useState(null);
  const name = picked in files ? picked : names[0];
  if (!names.length) return html`<${Empty} title="No policy file">Put a file such as default.yaml into the folder; docs/reference/policies.md says what it holds.<//>`;
  return html`<div class="beside">
    <${Table} caption="Policy files" rows=${names.map((file) => ({ file, lines: files[file].split("\n").length }))} id=${(row) => row.file} onPick=${(row) => setPicked(row.file)} pickLabel=${(row) => `Show ${row.file}`} most=${100} columns=${[
      { key: "file", title: "File", show: (row) => html`<span class="break">${row.file}</span>${row.file === name && html` <${Badge}>shown<//>`}` },
      { key: "lines", title: "Lines", num: true },
    ]} />
    <section aria-label=${`Text of ${name}`}><h3 class="break">${name}</h3><pre tabindex="0">${files[name]}</pre></section>
  </div>${note && html`<p class="soft small">${note}</p>`}`;
}

function Versions({ picked, mayApply, changed }) {
  const list = useAsk(() => api.list("/policies/versions", {}, "items", 200), [], POLL_MS);
  const again = () => {
    list.again();
    changed();
  };
  return html`<${Found} of=${list} what="Asking for the versions">${(versions) => html`
    <${Panel} title="Versions">
      <${Table} caption="Versions of the policies, newest first" rows=${versions} id=${(v) => v.version} most=${25} onPick=${(v) => (location.hash = `#/policies/versions/${v.version}`)} pickLabel=${(v) => `Show version ${v.version}`} columns=${[
        { key: "version", title: "Version", show: (v) => html`${v.version}${v === versions[0] && html` <${Badge} kind="good">newest<//>`}` },
        { key: "at_unix", title: "When", show: (v) => html`<${Time} unix=${v.at_unix} />` },
        { key: "author", title: "Who", show: (v) => html`<span class="break">${v.author}</span>` },
        { key: "note", title: "Why", show: (v) => html`<span class="break">${v.note || NONE}</span>` },
        { key: "file_count", title: "Files", num: true },
        { key: "digest", title: "Digest", show: (v) => html`<span class="mono" title=${v.digest}>${v.digest.slice(0, 8)}</span>` },
        ...(mayApply ? [{ key: "back", title: "Actions", fixed: true, show: (v) => v !== versions[0] && html`<${Confirm} label="Roll back" title=${`Back to version ${v.version}?`} work=${() => api.post("/policies/rollback", { version: v.version })} done=${again}>A new version with the files of version ${v.version} takes effect within seconds on every gateway. It is refused where the files no longer fit the pools.<//>` }] : []),
      ]} />
    <//>
    ${versions.length > 1 && html`<${Compare} versions=${versions} key=${versions[0].version} />`}
    ${picked && html`<${OneVersion} version=${picked} />`}`}<//>`;
}

function OneVersion({ version }) {
  const asked = useAsk(() => api.get(path`/policies/versions/${version}`), [version]);
  return html`<${Panel} title=${`Version ${version}`}><${Found} of=${asked} what="Asking for the version">${(shown) => html`<${Files} files=${shown.files} />`}<//><//>`;
}

function Compare({ versions }) {
  const [before, setBefore] = useState(versions[1].version);
  const [after, setAfter] = useState(versions[0].version);
  const both = useAsk(() => Promise.all([before, after].map((version) => api.get(path`/policies/versions/${version}`))), [before, after]);
  const pick = (label, name, value, set) => html`<${Field} label=${label} name=${name}><select name=${name} value=${value} onChange=${(event) => set(Number(event.target.value))}>${versions.map((v) => html`<option key=${v.version} value=${v.version}>${v.version}${v.note ? `: ${v.note.slice(0, 60)}` : ""}</option>`)}</select><//>`;
  return html`<${Panel} title="Differences">
    <form class="filters" onSubmit=${(event) => event.preventDefault()}>${pick("From version", "before", before, setBefore)}${pick("To version", "after", after, setAfter)}</form>
    <${Found} of=${both} what="Asking for both versions">${([old, now]) => html`<${FilesDiff} before=${old.files} after=${now.files} />`}<//>
  <//>`;
}

function Change({ now, mayApply, changed }) {
  const [base, setBase] = useState({ files: now.files, version: now.version });
  const [files, setFiles] = useState(now.files);
  const [name, setName] = useState(Object.keys(now.files).sort()[0] ?? "");
  const [added, setAdded] = useState("");
  const [note, setNote] = useState("");
  const [found, setFound] = useState(null);
  const [said, setSaid] = useState("");
  const change = useChange();
  const owned = now.source === "database";
  const edited = (next) => {
    setFiles(next);
    setFound(null);
    setSaid("");
  };
  const check = async () => {
    const { done, result } = await change.run(() => api.post("/policies/check", { files }));
    setFound(done ? result : null);
  };
  const apply = () => api.post("/policies", { files, note, after: base.version });
  const applied = (version) => {
    setBase({ files, version: version.version });
    setFound(null);
    setNote("");
    setSaid(`Version ${version.version} is in the database; every gateway follows within seconds.`);
    changed();
  };
  const add = (event) => {
    event.preventDefault();
    if (!added || added in files) return;
    edited({ ...files, [added]: "" });
    setName(added);
    setAdded("");
  };
  const stale = owned && now.version > base.version;
  const same = JSON.stringify(Object.entries(files).sort()) === JSON.stringify(Object.entries(base.files).sort());
  return html`
    ${stale && html`<div class="banner" role="status">Version ${now.version} is newer than the one that this change began with (${base.version}). Load the page again to begin with it.</div>`}
    <${Panel} title="Change the files, and see what it would do">
      <p class="soft">Nothing is changed by a check. ${owned ? (mayApply ? "Apply makes a new version of what was checked." : "An admin applies it.") : "Files own these policies: write what was checked into the folder on the gateway's machine, and reload."}</p>
      <div class="row bottom">
        <${Field} label="File" name="file"><select name="file" value=${name} onChange=${(event) => setName(event.target.value)}>${Object.keys(files).sort().map((file) => html`<option key=${file} value=${file}>${file}${files[file] === base.files[file] ? "" : " (changed)"}</option>`)}</select><//>
        <form class="filters" onSubmit=${add}><${Field} label="New file" name="added" value=${added} onInput=${(event) => setAdded(event.target.value)} placeholder="acme.yaml" autocomplete="off" /><button>Add</button></form>
        <button type="button" disabled=${!name} onClick=${() => { const next = { ...files }; delete next[name]; edited(next); setName(Object.keys(next).sort()[0] ?? ""); }}>Remove this file</button>
        <button type="button" disabled=${same} onClick=${() => { edited(base.files); setName(Object.keys(base.files).sort()[0] ?? ""); }}>Undo all</button>
      </div>
      ${name in files && html`<${Field} label=${`Text of ${name}`} name="text"><textarea name="text" rows="18" spellcheck=${false} value=${files[name]} onInput=${(event) => edited({ ...files, [name]: event.target.value })}></textarea><//>`}
      ${change.error && html`<${Failure} error=${change.error} />`}
      ${said && html`<div class="banner good" role="status">${said}</div>`}
      <div class="row"><button type="button" class="primary" disabled=${change.busy || !Object.keys(files).length} onClick=${check}>${change.busy ? "Checking…" : "Check"}</button></div>
    <//>
    ${change.busy && !found && html`<${Loading} what="Compiling the policies" />`}
    ${found && html`<${Checked} found=${found} />`}
    ${found?.ok && !same && html`<${Panel} title="Changed lines"><${FilesDiff} before=${base.files} after=${files} /><//>`}
    ${found?.ok && owned && mayApply && !same && !said && html`<${Panel} title="Apply">
      <${Field} label="Reason" name="note" hint="For readers of the history." value=${note} onInput=${(event) => setNote(event.target.value)} maxlength="500" autocomplete="off" />
      <div class="row"><${Confirm} label="Apply" title="Make this the newest version?" danger=${false} work=${apply} done=${applied}>It takes effect on every gateway within seconds. Requests in flight end under the policies with which they began.<//></div>
    <//>`}`;
}

function Checked({ found }) {
  if (!found.ok)
    return html`<div class="banner bad" role="alert"><strong>${found.problem_count} ${found.problem_count === 1 ? "mistake" : "mistakes"}; these files would be refused.</strong><ul>${found.problems.map((problem) => html`<li class="break" key=${problem}>${problem}</li>`)}</ul></div>`;
  return html`<${Panel} title="What would change, and for whom">
    <p role="status"><${Badge} kind="good">no mistake<//> digest <span class="mono">${found.digest}</span></p>
    ${found.warnings.length > 0 && html`<div class="banner"><strong>Hardly meant</strong><ul>${found.warnings.map((warning) => html`<li class="break" key=${warning}>${warning}</li>`)}</ul></div>`}
    ${found.changes.length ? html`<ul>${found.changes.map((line, at) => html`<li class="break" key=${at}>${line}</li>`)}</ul>` : html`<p class="soft">The files mean the same as those that workers read now.</p>`}
    ${found.change_count > found.changes.length && html`<p class="soft">… and ${count(found.change_count - found.changes.length)} more.</p>`}
  <//>`;
}
