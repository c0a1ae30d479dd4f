// The admin API. The browser's session cookie stands for the credential; the header says that the request is the console's own.
const PREFIX = "/admin/v1";
export const HEADER = { "x-tidegate-console": "1" };

/** A refusal: its message is a sentence for people, `param` the field that is wrong. */
export class ApiError extends Error {
  constructor(status, message, code = null, param = null) {
    super(message);
    this.status = status;
    this.code = code;
    this.param = param;
  }
}

let signedOut = () => {};
/** Called when the session is over. */
export function onSignedOut(call) {
  signedOut = call;
}

export async function refusalOf(reply) {
  let error = {};
  try {
    error = (await reply.json()).error ?? {};
  } catch {
    // a proxy's page, or nothing
  }
  return new ApiError(reply.status, error.message || `The gateway answered ${reply.status}.`, error.code, error.param);
}

async function send(method, url, { body, headers = {}, signal } = {}) {
  const options = { method, headers: { ...HEADER, ...headers }, credentials: "same-origin", signal, cache: "no-store" };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["content-type"] = "application/json";
  }
  let reply;
  try {
    reply = await fetch(url, options);
  } catch (cause) {
    if (cause.name === "AbortError") throw cause;
    throw new ApiError(0, "The gateway cannot be reached. It may be restarting; the page tries again.", "unreachable");
  }
  if (!reply.ok) {
    const refusal = await refusalOf(reply);
    if (reply.status === 401) signedOut(refusal);
    throw refusal;
  }
  return reply;
}

const query = (params) => {
  const pairs = Object.entries(params ?? {}).flatMap(([name, value]) => (Array.isArray(value) ? value.map((one) => [name, one]) : [[name, value]])).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return pairs.length ? `?${new URLSearchParams(pairs)}` : "";
};

/** Path parts are quoted one by one: a name never leaves its place. */
export const path = (strings, ...values) => strings.reduce((text, part, at) => text + part + (at < values.length ? encodeURIComponent(values[at]) : ""), "");

async function read(reply) {
  const text = await reply.text();
  return text ? JSON.parse(text) : null;
}

export const api = {
  /** The body of a GET. */
  get: async (where, params, options) => read(await send("GET", PREFIX + where + query(params), options)),
  /** The body of a GET together with the ETag that a change of it names. */
  getTagged: async (where) => {
    const reply = await send("GET", PREFIX + where);
    return { shown: await read(reply), etag: reply.headers.get("etag") };
  },
  /** Up to `most` items of a list of pages. */
  list: async (where, params = {}, field = "items", most = 500) => {
    const found = [];
    let cursor;
    do {
      const page = await api.get(where, { ...params, cursor, limit: Math.min(most, 500) });
      found.push(...(page[field] ?? []));
      cursor = page.next_cursor;
    } while (cursor && found.length < most);
    return found;
  },
  post: async (where, body, params) =>
    read(await send("POST", PREFIX + where + query(params), { body, headers: { "idempotency-key": crypto.randomUUID() } })),
  put: async (where, body, etag) => read(await send("PUT", PREFIX + where, { body, headers: etag ? { "if-match": etag } : {} })),
  remove: async (where, etag = "*") => read(await send("DELETE", PREFIX + where, { headers: { "if-match": etag } })),
  /** What the port itself shows beside the API: `/backends`, `/pools`, `/version`, `/readyz`. */
  port: async (where) => {
    const reply = await fetch(where, { headers: HEADER, cache: "no-store" });
    return reply.json();
  },
  signIn: async (token) => read(await send("POST", "/console/session", { body: { token } })),
  /** How a person may sign in: `provider` names the identity provider, or is null. */
  waysIn: async () => api.port("/console/session"),
  signOut: async () => send("DELETE", "/console/session"),
  stream: (where, params, signal) => send("GET", PREFIX + where + query(params), { signal }),
};
