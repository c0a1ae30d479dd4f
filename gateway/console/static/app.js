// The frame of the console: who is signed in, which page is shown, and the stream of live values that every page may read.
import { html, render, useCallback, useEffect, useErrorBoundary, useState } from "./vendor/preact-htm.js";
import { api, onSignedOut } from "./lib/api.js";
import { useLive } from "./lib/live.js";
import { Badge, Empty, Failure, Field, Loading, useChange, valuesOf } from "./lib/ui.js";
import { PAGES } from "./pages/index.js";

const READERS = ["owner", "admin", "operator", "billing", "auditor"];

/** The place in the address: `#/page/part/part?name=value`. */
function placeNow() {
  const [where, search = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const parts = where.split("/").filter(Boolean).map(decodeURIComponent);
  return { page: parts[0] ?? "", parts: parts.slice(1), params: Object.fromEntries(new URLSearchParams(search)) };
}

function usePlace() {
  const [drawn] = useState(location.hash);
  const [place, setPlace] = useState(placeNow());
  useEffect(() => {
    const moved = () => setPlace(placeNow());
    addEventListener("hashchange", moved);
    if (location.hash !== drawn) moved(); // it was changed after the first drawing, before anybody listened
    return () => removeEventListener("hashchange", moved);
  }, []);
  return place;
}

function useTheme() {
  const [theme, setTheme] = useState(localStorage.getItem("tidegate-theme") ?? "system");
  useEffect(() => {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    localStorage.setItem("tidegate-theme", theme);
  }, [theme]);
  return [theme, setTheme];
}

const KEPT_PLACE = "tidegate-place";
/** The sign-in at a provider ends on the console's first page; the place before it is kept for this tab. */
const keepPlace = () => sessionStorage.setItem(KEPT_PLACE, location.hash);
function restorePlace() {
  const place = sessionStorage.getItem(KEPT_PLACE);
  sessionStorage.removeItem(KEPT_PLACE);
  if (place?.startsWith("#/") && !location.hash) location.replace(place);
}

function SignIn({ over, afresh, onSignedIn }) {
  const change = useChange();
  const [provider, setProvider] = useState(null);
  useEffect(() => {
    // without an answer the form below still works
    api.waysIn().then((ways) => setProvider(ways.provider), () => {});
  }, []);
  const submit = async (event) => {
    event.preventDefault();
    const { token } = valuesOf(event.target);
    const { done, result } = await change.run(() => api.signIn(token ?? ""));
    if (done) onSignedIn(result);
  };
  return html`<main class="sign-in"><section class="panel">
    <div class="brand"><img src="icon.svg" alt="" /> Tidegate</div>
    <h1>Sign in</h1>
    ${over && html`<p class="banner" role="status">${over}</p>`}
    ${provider && html`<p><a class="button primary" href=${`sign-in${afresh ? "?afresh" : ""}`} onClick=${keepPlace}>Sign in with ${provider}</a></p><p class="small soft">Or with a token or key:</p>`}
    <form class="stack" onSubmit=${submit}>
      <${Field} label="Admin token or key with a role" name="token" hint="The bootstrap token of secrets.admin_token, a key with a role, or a token of your identity provider." error=${change.error}>
        <input name="token" type="password" autocomplete="current-password" required autofocus spellcheck=${false} />
      <//>
      ${change.error && html`<${Failure} error=${change.error} />`}
      <button class=${provider ? "" : "primary"} disabled=${change.busy}>${change.busy ? "Signing in…" : "Sign in"}</button>
    </form>
  </section></main>`;
}

const LIVE = { live: ["good", "live"], connecting: ["", "connecting"], lost: ["warn", "reconnecting"], forbidden: ["", "no live values for this role"] };

function LiveState() {
  const { state, now } = useLive();
  const [kind, words] = LIVE[state];
  return html`<span role="status"><${Badge} kind=${kind}>${words}<//>${now && state === "live" && html` <span class="small soft">${now.in_flight} in flight</span>`}</span>`;
}

function Page({ page, ...rest }) {
  const [error, reset] = useErrorBoundary();
  useEffect(reset, [page.key]);
  if (error) return html`<${Failure} error=${{ message: `This page has a defect: ${error.message}` }} again=${reset} />`;
  return html`<${page.view} key=${page.key} ...${rest} />`;
}

function Console({ me, onSignOut }) {
  const place = usePlace();
  const [theme, setTheme] = useTheme();
  const allowed = PAGES.filter((page) => page.roles.some((role) => me.roles.includes(role)));
  const page = allowed.find(({ key }) => key === place.page) ?? (place.page ? null : allowed[0]);
  useEffect(() => {
    document.title = page ? `${page.title} · Tidegate` : "Tidegate";
  }, [page]);
  const reader = me.roles.some((role) => READERS.includes(role));
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>Skip to the page</a>
    <div class="frame">
      <div class="side">
        <a class="brand" href="#/"><img src="icon.svg" alt="" /> Tidegate</a>
        <nav aria-label="Pages"><ul>${allowed.map(({ key, title }) => html`<li key=${key}><a href=${`#/${key}`} aria-current=${page?.key === key ? "page" : null}>${title}</a></li>`)}</ul></nav>
        <div class="who">
          ${reader && html`<${LiveState} />`}
          <span class="break">${me.actor}, ${me.roles.join(", ")}${me.tenant ? ` of ${me.tenant}` : ""}</span>
          <label class="row">Theme <select value=${theme} onChange=${(event) => setTheme(event.target.value)}><option value="system">system</option><option value="light">light</option><option value="dark">dark</option></select></label>
          <button type="button" onClick=${onSignOut}>Sign out</button>
        </div>
      </div>
      <main id="main" tabindex="-1">${page ? html`<${Page} page=${page} me=${me} parts=${place.parts} params=${place.params} />` : html`<${Empty} title="There is no such page">${place.page ? `“${place.page}” is no page of the console, or your roles do not show it.` : "Your roles show no page of the console."}<//>`}</main>
    </div>`;
}

function App() {
  const [me, setMe] = useState(undefined);
  const [over, setOver] = useState(null);
  const [afresh, setAfresh] = useState(false); // after a sign-out the provider asks for the password again
  const [error, setError] = useState(null);
  const ask = useCallback(async () => {
    setError(null);
    try {
      setMe(await api.get("/self"));
    } catch (cause) {
      if (cause.status === 401) setMe(null);
      else setError(cause);
    }
  }, []);
  useEffect(() => {
    onSignedOut((refusal) => {
      setMe((before) => {
        if (before) setOver(refusal.code === "session_over" ? refusal.message : "Your key does not count any more. Sign in with another one.");
        return null;
      });
    });
    ask();
  }, []);
  if (error) return html`<main class="sign-in"><section class="panel"><${Failure} error=${error} again=${ask} /></section></main>`;
  if (me === undefined) return html`<${Loading} />`;
  const signedIn = (now) => { setOver(null); setMe(now); };
  const signOut = async () => { await api.signOut(); setAfresh(true); setMe(null); };
  return me ? html`<${Console} me=${me} onSignOut=${signOut} />` : html`<${SignIn} over=${over} afresh=${afresh} onSignedIn=${signedIn} />`;
}

restorePlace();
const root = document.getElementById("app");
root.textContent = "";
render(html`<${App} />`, root);
