// Numbers, times and money as people read them. Every value has its unit; a missing one is a dash, never a zero.
export const NONE = "–";

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const missing = (value) => value === null || value === undefined || Number.isNaN(value);

/** A count: 12,345, from a million on 1.23 M. */
export function count(value) {
  if (missing(value)) return NONE;
  const size = Math.abs(value);
  if (size >= 1e12) return `${(value / 1e12).toPrecision(3)} T`;
  if (size >= 1e9) return `${(value / 1e9).toPrecision(3)} G`;
  if (size >= 1e6) return `${(value / 1e6).toPrecision(3)} M`;
  return Number.isInteger(value) || size >= 100 ? grouped.format(value) : size >= 10 ? value.toFixed(1) : value.toFixed(2);
}

/** Milliseconds: 0.42 ms, 87 ms, 1.32 s, 2 min 5 s. */
export function ms(value) {
  if (missing(value)) return NONE;
  if (value < 1) return `${value.toFixed(2)} ms`;
  if (value < 10) return `${value.toFixed(1)} ms`;
  if (value < 1000) return `${value.toFixed(0)} ms`;
  if (value < 60_000) return `${(value / 1000).toFixed(2)} s`;
  const seconds = Math.round(value / 1000);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  if (seconds < 172_800) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86_400)} days`;
}

/** A share of one as a percentage. */
export const percent = (value) => (missing(value) ? NONE : `${(value * 100).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %`);

/** Dollars, as many digits as a small amount needs. */
export function usd(value) {
  if (missing(value)) return NONE;
  if (value === 0) return "$0";
  const size = Math.abs(value);
  return `$${size >= 100 ? grouped.format(value) : size >= 1 ? value.toFixed(2) : size >= 0.001 ? value.toFixed(4) : value.toPrecision(2)}`;
}

export function bytes(value) {
  if (missing(value)) return NONE;
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 1024]]) if (value >= size) return `${(value / size).toPrecision(3)} ${unit}`;
  return `${grouped.format(value)} B`;
}

const clock = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

/** The moment in full, in the browser's time zone and with its name. */
export function moment(unix) {
  if (missing(unix)) return NONE;
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "local";
  return `${clock.format(new Date(unix * 1000))} (${zone})`;
}

/** How long ago, or in how long. */
export function relative(unix, nowUnix = Date.now() / 1000) {
  if (missing(unix)) return NONE;
  const apart = Math.abs(nowUnix - unix);
  if (apart < 1.5) return "now";
  const words = apart < 90 ? `${Math.round(apart)} s` : apart < 5400 ? `${Math.round(apart / 60)} min` : apart < 129_600 ? `${Math.round(apart / 3600)} h` : `${Math.round(apart / 86_400)} days`;
  return unix <= nowUnix ? `${words} ago` : `in ${words}`;
}
