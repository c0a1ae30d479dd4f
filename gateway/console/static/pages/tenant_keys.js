// The keys of one tenant: made, changed, rotated and revoked. A secret is on the page once, in the answer that made it.
import { html, useState } from "../vendor/preact-htm.js";
import { api, path } from "../lib/api.js";
import { NONE } from "../lib/format.js";
import { Badge, Confirm, Dialog, Empty, Field, Found, Panel, Secret, Table, Time, useAsk, useChange } from "../lib/ui.js";
import { RIGHTS, Rest, RightsFields, grantable, listOf, localOf, mayChangeKey, maySetInside, rightsFrom, rightsWords, unixOf } from "./tenant_forms.js";

const OVERLAPS = { 0: "none: the old secret ends now", 3600: "1 hour", 86_400: "1 day", 604_800: "7 days", 2_592_000: "30 days" };
const FIELDS = ["label", "project", "expires_unix", "roles", "inference", "tags", "networks", ...RIGHTS];
const MOST = 2000;

function stateOf(key, nowUnix = Date.now() / 1000) {
  if (key.revoked_unix) return ["bad", "revoked"];
  if (key.expires_unix && key.expires_unix <= nowUnix) return ["warn", "expired"];
  if (key.disabled) return ["warn", "disabled"];
  return ["good", "valid"];
}

const tagsText = (tags) => Object.entries(tags ?? {}).map(([name, value]) => `${name}=${value}`).join("\n");
const tagsFrom = (text) => Object.fromEntries((text ?? "").split("\n").map((line) => line.trim()).filter(Boolean).map((line) => {
  const at = line.indexOf("=");
  return at < 0 ? [line, ""] : [line.slice(0, at).trim(), line.slice(at + 1).trim()];
}));

function bodyFrom(form, before) {
  const data = new FormData(form);
  return {
    label: data.get("label").trim(), disabled: before?.disabled ?? false, expires_unix: unixOf(data.get("expires_unix")), roles: data.getAll("roles"),
    inference: data.get("inference") === "on", rights: rightsFrom(data), tags: tagsFrom(data.get("tags")), networks: listOf(data.get("networks")),
  };
}

function KeyForm({ me, shown, projects, error, busy, words, onSubmit, onClose }) {
  const roles = [...new Set([...grantable(me), ...(shown?.roles ?? [])])];
  return html`<form class="stack" onSubmit=${onSubmit}>
    <${Field} label="Label" hint="A note for people: which program has this key." name="label" error=${error}><input name="label" defaultValue=${shown?.label ?? ""} autofocus /><//>
    ${!shown && html`<${Field} label="Project" name="project" error=${error}><select name="project">${projects.map(({ name }) => html`<option key=${name} value=${name} selected=${name === "default"}>${name}</option>`)}</select><//>`}
    <${Field} label="Expires" hint="In your time zone; empty for never." name="expires_unix" error=${error}><input type="datetime-local" name="expires_unix" defaultValue=${localOf(shown?.expires_unix)} /><//>
    <fieldset class="plain"><legend>What it is for</legend>
      <label class="check"><input type="checkbox" name="inference" defaultChecked=${shown?.inference ?? true} /> Inference: the data port accepts it</label>
      ${roles.map((role) => html`<label class="check" key=${role}><input type="checkbox" name="roles" value=${role} defaultChecked=${shown?.roles.includes(role) ?? false} /> Role ${role} on the admin port</label>`)}
      ${["inference", "roles"].includes(error?.param?.split(".")[0]) && html`<span class="mistake" role="alert">${error.message}</span>`}
    </fieldset>
    <${Field} label="Tags" hint="One name=value a line; rules of policies can test them." name="tags" error=${error}><textarea name="tags" rows="2" class="short" spellcheck=${false}>${tagsText(shown?.tags)}</textarea><//>
    <${Field} label="Networks" hint="Address/bits, one a line; empty for everywhere." name="networks" error=${error}><textarea name="networks" rows="2" class="short" spellcheck=${false}>${(shown?.networks ?? []).join("\n")}</textarea><//>
    <${RightsFields} rights=${shown?.rights} error=${error} />
    <${Rest} error=${error} fields=${FIELDS} />
    <div class="row"><button class="primary" disabled=${busy}>${words}</button><button type="button" onClick=${onClose}>Cancel</button></div>
  </form>`;
}

function NewKey({ me, tenant, projects, done }) {
  const [open, setOpen] = useState(false);
  const [secret, setSecret] = useState(null);
  const change = useChange();
  const close = () => { setOpen(false); setSecret(null); change.clear(); };
  const submit = async (event) => {
    event.preventDefault();
    const form = event.target;
    const { done: made, result } = await change.run(() => api.post(path`/tenants/${tenant}/keys`, { ...bodyFrom(form), project: form.elements.project.value }));
    if (made) { setSecret(result.key); done(); }
  };
  return html`<button type="button" class="primary" onClick=${() => setOpen(true)}>Create key</button>
    <${Dialog} title=${secret ? "The new key" : "Create a key"} open=${open} onClose=${close}>
      ${secret ? html`<${Secret} text=${secret} label="The key of the program that calls the gateway." /><div class="row"><button type="button" class="primary" onClick=${close}>Done</button></div>`
        : html`<${KeyForm} me=${me} projects=${projects} error=${change.error} busy=${change.busy} words="Create key" onSubmit=${submit} onClose=${close} />`}
    <//>`;
}

function EditKey({ me, of, done }) {
  const [found, setFound] = useState(null);
  const change = useChange();
  const close = () => { setFound(null); change.clear(); };
  const where = path`/tenants/${of.tenant}/keys/${of.id}`;
  const open = async () => setFound((await change.run(() => api.getTagged(where))).result ?? null);
  const put = async (body) => {
    const { done: saved } = await change.run(() => api.put(where, body, found.etag));
    if (saved) { close(); done(); }
  };
  const submit = (event) => { event.preventDefault(); put(bodyFrom(event.target, found.shown)); };
  const { label, disabled, expires_unix, roles, inference, rights, tags, networks } = found?.shown ?? {};
  const other = () => put({ label, disabled: !disabled, expires_unix, roles, inference, rights, tags, networks });
  return html`<button type="button" onClick=${open} aria-label=${`Change key ${of.id}`}>Change</button>
    <${Dialog} title=${`Key ${of.id}`} open=${!!found} onClose=${close}>
      <div class="row spread"><span class="small soft">Of project ${found?.shown.project}. A change is in force within 5 s.</span><button type="button" disabled=${change.busy} onClick=${other}>${disabled ? "Enable the key" : "Disable the key"}</button></div>
      <${KeyForm} me=${me} shown=${found?.shown} error=${change.error} busy=${change.busy} words="Save" onSubmit=${submit} onClose=${close} />
    <//>`;
}

function Rotate({ of, done }) {
  const [open, setOpen] = useState(false);
  const [secret, setSecret] = useState(null);
  const change = useChange();
  const close = () => { setOpen(false); setSecret(null); change.clear(); };
  const submit = async (event) => {
    event.preventDefault();
    const overlap = Number(event.target.elements.overlap_s.value);
    const { done: made, result } = await change.run(() => api.post(path`/tenants/${of.tenant}/keys/${of.id}/rotate`, { overlap_s: overlap }));
    if (made) { setSecret(result.key); done(); }
  };
  return html`<button type="button" onClick=${() => setOpen(true)} aria-label=${`Rotate key ${of.id}`}>Rotate</button>
    <${Dialog} title=${`Rotate key ${of.id}`} open=${open} onClose=${close}>
      ${secret ? html`<${Secret} text=${secret} label="The new secret." /><div class="row"><button type="button" class="primary" onClick=${close}>Done</button></div>` : html`<form class="stack" onSubmit=${submit}>
        <p>The key gets a new secret. Its id, project, rights and limits stay.</p>
        <${Field} label="The old secret works beside it for" name="overlap_s" error=${change.error}><select name="overlap_s">${Object.entries(OVERLAPS).map(([s, words]) => html`<option key=${s} value=${s} selected=${s === "86400"}>${words}</option>`)}</select><//>
        <${Rest} error=${change.error} fields=${["overlap_s"]} />
        <div class="row"><button class="primary" disabled=${change.busy}>Rotate</button><button type="button" onClick=${close}>Cancel</button></div></form>`}
    <//>`;
}

function Actions({ me, of, done }) {
  if (of.revoked_unix || !mayChangeKey(me, of)) return null;
  return html`<div class="actions"><${EditKey} me=${me} of=${of} done=${done} /><${Rotate} of=${of} done=${done} />
    <${Confirm} label="Revoke" title=${`Revoke key ${of.id}?`} work=${() => api.post(path`/tenants/${of.tenant}/keys/${of.id}/revoke`)} done=${done}>${of.label ? html`<strong class="break">${of.label}</strong>: ` : ""}every gateway refuses the key within 5 s. It cannot be taken back; make a new key instead.<//></div>`;
}

export function Keys({ me, tenant }) {
  const keys = useAsk(() => api.list(path`/tenants/${tenant}/keys`, {}, "items", MOST), [tenant], 10_000);
  const projects = useAsk(() => api.list(path`/tenants/${tenant}/projects`, {}, "items", MOST), [tenant]);
  const [ended, setEnded] = useState(false);
  const may = maySetInside(me, tenant);
  const columns = [
    { key: "id", title: "Key", show: (k) => html`<span class="mono">${k.id}</span><div class="small soft break">${k.label}</div>` },
    { key: "state", title: "State", sort: (k) => stateOf(k)[1], show: (k) => html`<${Badge} kind=${stateOf(k)[0]}>${stateOf(k)[1]}<//>${k.old_until_unix > Date.now() / 1000 && html`<div class="small soft">old secret ends <${Time} unix=${k.old_until_unix} /></div>`}` },
    { key: "project", title: "Project" },
    { key: "roles", title: "For", sort: (k) => k.roles.join(), show: (k) => [k.inference && "inference", ...k.roles].filter(Boolean).join(", ") },
    { key: "rights", title: "Restricted to", fixed: true, show: (k) => html`<span class="small break">${[rightsWords(k.rights), k.networks.length > 0 && `from ${k.networks.join(", ")}`, Object.keys(k.tags).length > 0 && `tags ${tagsText(k.tags).replaceAll("\n", ", ")}`].filter(Boolean).join("; ") || NONE}</span>` },
    { key: "created_unix", title: "Created", show: (k) => html`<${Time} unix=${k.created_unix} />` },
    { key: "expires_unix", title: "Expires", show: (k) => html`<${Time} unix=${k.expires_unix} />` },
    ...(may ? [{ key: "actions", title: "Actions", fixed: true, show: (k) => html`<${Actions} me=${me} of=${k} done=${keys.again} />` }] : []),
  ];
  return html`<${Found} of=${keys} what="Reading the keys">${(all) => {
    const rows = all.filter((k) => ended || !k.revoked_unix);
    return html`<${Panel} title="Keys" side=${html`<div class="row"><label class="check small"><input type="checkbox" checked=${ended} onChange=${() => setEnded(!ended)} /> also revoked (${all.length - all.filter((k) => !k.revoked_unix).length})</label>${may && html`<${NewKey} me=${me} tenant=${tenant} projects=${projects.data ?? [{ name: "default" }]} done=${keys.again} />`}</div>`}>
      <${Table} caption="Keys" columns=${columns} rows=${rows} most=${100} empty=${html`<${Empty} title="No key yet">${may ? "Create one; its secret is shown once." : "An admin of the tenant creates keys."}<//>`} />
      ${all.length >= MOST && html`<p class="small soft">The first ${MOST} keys are shown; tidegate key list shows all.</p>`}
    <//>`;
  }}<//>`;
}
