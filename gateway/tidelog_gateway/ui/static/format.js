// Numbers, sizes and times as people read them. Every number has its unit.

const COUNT = new Intl.NumberFormat("en-US");
const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export const NONE = "–";

export function count(value) {
  return value === null || value === undefined ? NONE : COUNT.format(value);
}

/** 1,234 as 1.2k. */
export function short(value) {
  if (value === null || value === undefined) return NONE;
  const steps = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
  for (const [step, name] of steps) if (Math.abs(value) >= step) return `${digits(value / step)}${name}`;
  return digits(value);
}

function digits(value) {
  const size = Math.abs(value);
  return size >= 100 || Number.isInteger(value) ? String(Math.round(value)) : value.toFixed(size >= 10 ? 1 : 2).replace(/\.?0+$/, "");
}

export function bytes(value) {
  if (value === null || value === undefined) return NONE;
  let rest = value;
  let unit = 0;
  while (Math.abs(rest) >= 1024 && unit < BYTES.length - 1) {
    rest /= 1024;
    unit += 1;
  }
  return `${digits(rest)} ${BYTES[unit]}`;
}

export function rate(value, unit = "") {
  return value === null || value === undefined ? NONE : `${short(value)}${unit}/s`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return NONE;
  const seconds = Math.round(ms / 1000);
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

export function ago(ms) {
  return ms === null || ms === undefined ? NONE : `${duration(Math.max(0, Date.now() - ms))} ago`;
}

/** Time in the zone of the browser, with milliseconds. */
export function time(ms) {
  if (ms === null || ms === undefined) return NONE;
  const date = new Date(ms);
  const part = (value, width = 2) => String(value).padStart(width, "0");
  const day = `${date.getFullYear()}-${part(date.getMonth() + 1)}-${part(date.getDate())}`;
  const clock = `${part(date.getHours())}:${part(date.getMinutes())}:${part(date.getSeconds())}`;
  return `${day} ${clock}.${part(date.getMilliseconds(), 3)}`;
}

export function utc(ms) {
  return ms === null || ms === undefined ? NONE : `${new Date(ms).toISOString().replace("T", " ").replace("Z", "")} UTC`;
}

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/** Returns bytes in hexadecimal, 16 per line, each line followed by their ASCII text. */
export function hexDump(octets) {
  const lines = [];
  for (let at = 0; at < octets.length; at += 16) {
    const row = octets.slice(at, at + 16);
    const hex = [...row].map((octet) => octet.toString(16).padStart(2, "0")).join(" ");
    const text = [...row].map((octet) => (octet >= 32 && octet < 127 ? String.fromCharCode(octet) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${hex.padEnd(47)}  ${text}`);
  }
  return lines.join("\n");
}

export function octetsOf(text, encoding) {
  if (encoding === "base64") return Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
  return new TextEncoder().encode(text);
}
