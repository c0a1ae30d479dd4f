// Server-sent events over fetch (EventSource cannot send the header that marks the console's own requests), and the live feed.
import { useEffect, useState } from "../vendor/preact-htm.js";
import { api } from "./api.js";

const RETRY_MS = [500, 1000, 2000, 5000];

/** Read events until the stream ends or `signal` aborts. `take(event, data)` gets each one. */
export async function readEvents(reply, take) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const blocks = rest.split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      let event = "message";
      const data = [];
      for (const line of block.split("\n")) {
        if (line.startsWith("event:")) event = line.slice(6).trim();
        else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
      }
      if (data.length) take(event, JSON.parse(data.join("\n")));
    }
  }
}

/** Follow a stream of the API for as long as the page wants it; a stream that ends is asked for again. Returns the way to stop. */
export function follow(where, params, { take, state }) {
  const stopper = new AbortController();
  (async () => {
    for (let tried = 0; !stopper.signal.aborted; tried++) {
      try {
        const reply = await api.stream(where, params, stopper.signal);
        state("live");
        await readEvents(reply, (event, data) => {
          tried = 0;
          take(event, data);
        });
      } catch (cause) {
        if (stopper.signal.aborted || cause.status === 401) return;
        if (cause.status === 403) return state("forbidden");
      }
      state("lost");
      await new Promise((go) => setTimeout(go, RETRY_MS[Math.min(tried, RETRY_MS.length - 1)]));
    }
  })();
  return () => stopper.abort();
}

const KEPT = 600;
const feed = { samples: [], state: "connecting", listeners: new Set(), stop: null, closing: 0 };
const tell = () => feed.listeners.forEach((listener) => listener({}));

function take(event, data) {
  if (event === "history") feed.samples = data;
  else if (event === "sample") feed.samples = [...feed.samples.slice(-(KEPT - 1)), data];
  else return;
  tell();
}

/** The live samples, oldest first, and whether they still come. One stream serves every part of the page, and none runs in a hidden tab. */
export function useLive() {
  const [, again] = useState({});
  useEffect(() => {
    feed.listeners.add(again);
    const begin = () => {
      clearTimeout(feed.closing);
      if (!feed.stop && !document.hidden)
        feed.stop = follow("/live", {}, {
          take,
          state: (state) => {
            feed.state = state;
            tell();
          },
        });
    };
    const end = () => {
      feed.stop?.();
      feed.stop = null;
    };
    const seen = () => (document.hidden ? end() : begin());
    begin();
    document.addEventListener("visibilitychange", seen);
    return () => {
      feed.listeners.delete(again);
      document.removeEventListener("visibilitychange", seen);
      // the next page may want it in a moment
      if (!feed.listeners.size) feed.closing = setTimeout(end, 1000);
    };
  }, []);
  return { samples: feed.samples, now: feed.samples.at(-1) ?? null, state: feed.state };
}
