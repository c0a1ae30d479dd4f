// The forms and buttons that organisations, tenants and projects share: make, change, disable and enable.
import { html, useState } from "../vendor/preact-htm.js";
import { api } from "../lib/api.js";
import { Badge, Confirm, Dialog, Field, useChange } from "../lib/ui.js";
import { RIGHTS, Rest, RightsFields, rightsFrom } from "./tenant_forms.js";

const FIELDS = ["name", "label", "organisation", ...RIGHTS];
export const State = ({ of }) => (of.disabled ? html`<${Badge} kind="warn">disabled<//>` : html`<${Badge} kind="good">active<//>`);

/** The form of an organisation, a tenant or a project: made where nothing is shown, else changed as it was read. */
function AccountForm({ shown, withOrganisation, organisations, change, words, onSubmit, onClose }) {
  const { error, busy } = change;
  return html`<form class="stack" onSubmit=${onSubmit}>
    ${!shown && html`<${Field} label="Name" hint="1 to 63 lower-case letters, digits and inner dashes. It cannot be changed." name="name" error=${error}><input name="name" required maxlength="63" autofocus spellcheck=${false} /><//>`}
    <${Field} label="Label" hint="A note for people." name="label" error=${error}><input name="label" defaultValue=${shown?.label ?? ""} /><//>
    ${withOrganisation && html`<${Field} label="Organisation" hint="Tenants of one organisation are limited together." name="organisation" error=${error}><select name="organisation">${[...new Set([...organisations.map(({ name }) => name), shown?.organisation ?? "default"])].map((name) => html`<option key=${name} value=${name} selected=${name === (shown?.organisation ?? "default")}>${name}</option>`)}</select><//>`}
    <${RightsFields} rights=${shown?.rights} error=${error} />
    <${Rest} error=${error} fields=${FIELDS} />
    <div class="row"><button class="primary" disabled=${busy}>${words}</button><button type="button" onClick=${onClose}>Cancel</button></div>
  </form>`;
}

function bodyFrom(form, withOrganisation) {
  const data = new FormData(form);
  return { label: data.get("label").trim(), rights: rightsFrom(data), ...(withOrganisation ? { organisation: data.get("organisation") } : {}) };
}

/** A button that opens the form. `where` is the list for a new account, and the account itself for a change. */
export function AccountButton({ label, title, where, isNew, primary, withOrganisation, organisations = [], done, about }) {
  const [found, setFound] = useState(null);
  const change = useChange();
  const close = () => { setFound(null); change.clear(); };
  const begin = async () => setFound(isNew ? { shown: null } : ((await change.run(() => api.getTagged(where))).result ?? null));
  const submit = async (event) => {
    event.preventDefault();
    const form = event.target;
    const body = bodyFrom(form, withOrganisation);
    const { done: saved, result } = await change.run(() => (isNew ? api.post(where, { ...body, name: form.elements.name.value.trim() }) : api.put(where, { ...body, disabled: found.shown.disabled }, found.etag)));
    if (saved) { close(); done(result); }
  };
  return html`<button type="button" class=${primary ? "primary" : ""} aria-label=${about} onClick=${begin}>${label}</button>
    <${Dialog} title=${title} open=${!!found} onClose=${close}><${AccountForm} shown=${found?.shown} withOrganisation=${withOrganisation} organisations=${organisations} change=${change} words=${isNew ? label : "Save"} onSubmit=${submit} onClose=${close} /><//>`;
}

/** Disable or enable what is at `where`, as it is now. */
async function setDisabled(where, disabled) {
  const { shown, etag } = await api.getTagged(where);
  const { label, rights, organisation } = shown;
  return api.put(where, { label, rights, disabled, ...(organisation === undefined ? {} : { organisation }) }, etag);
}

export function Disable({ where, of, what, done }) {
  return of.disabled
    ? html`<${Confirm} label="Enable" title=${`Enable ${of.name}?`} danger=${false} work=${() => setDisabled(where, false)} done=${done}>Its keys work again within 5 s.<//>`
    : html`<${Confirm} label="Disable" title=${`Disable ${of.name}?`} work=${() => setDisabled(where, true)} done=${done}>Every key of this ${what} is refused within 5 s. All settings stay.<//>`;
}
