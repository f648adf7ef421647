// Requests to the gateway this page comes from. The only module that knows credentials.

import { TidelogClient } from "./client.js";

const BASE = new URL("../", import.meta.url);
const KEPT = "tidelog.credentials";

/** An error that the gateway answered (RFC 9457), or status 0 for a missing answer. */
export class ApiError extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `the gateway answered ${status}`);
    this.status = status;
    this.code = problem.code || "";
    this.retryable = Boolean(problem.retryable);
    this.requestId = problem.request_id || "";
    const faults = (problem.errors || []).map((one) => `${one.pointer || one.parameter || ""} ${one.detail}`.trim());
    if (faults.length && faults.join("; ") !== problem.detail) this.message = `${this.message}: ${faults.slice(0, 3).join("; ")}`;
  }
}

let credentials = read();
const listeners = new Set();

function read() {
  const text = sessionStorage.getItem(KEPT) || localStorage.getItem(KEPT);
  try {
    return text ? JSON.parse(text) : null;
  } catch {
    return null;
  }
}

/** Stores credentials, {token} or {user, password}: until the tab is closed, or with `lasting` in the browser. null removes them. */
export function signIn(shown, lasting = false) {
  sessionStorage.removeItem(KEPT);
  localStorage.removeItem(KEPT);
  credentials = shown;
  if (shown) (lasting ? localStorage : sessionStorage).setItem(KEPT, JSON.stringify(shown));
}

export function signedIn() {
  return credentials;
}

/** Calls `listener` when a request was answered with 401. */
export function onUnauthenticated(listener) {
  listeners.add(listener);
}

export function address(path, query = {}) {
  const url = new URL(path.replace(/^\//, ""), BASE);
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") url.searchParams.set(name, value);
  }
  return url;
}

async function request(method, path, { query = {}, body = undefined, signal = undefined } = {}) {
  const headers = { Accept: "application/json" };
  if (credentials) headers.Authorization = authorization(credentials);
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    const text = body === undefined ? undefined : typeof body === "string" ? body : JSON.stringify(body);
    answer = await fetch(address(path, query), { method, headers, body: text, signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, { detail: "the gateway does not answer; check that it is running, and that this browser can reach it" });
  }
  if (answer.status === 204) return null;
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok) {
    if (answer.status === 401) for (const listener of listeners) listener();
    throw new ApiError(answer.status, told);
  }
  return told;
}

function authorization({ token, user, password }) {
  if (token) return `Bearer ${token}`;
  const octets = new TextEncoder().encode(`${user}:${password}`);
  return `Basic ${btoa(String.fromCharCode(...octets))}`;
}

export const get = (path, query, signal) => request("GET", path, { query, signal });
export const post = (path, body) => request("POST", path, { body });
export const put = (path, body) => request("PUT", path, { body });
export const patch = (path, body) => request("PATCH", path, { body });
export const remove = (path, query) => request("DELETE", path, { query });

/** Returns the entries of all pages of a list, and the last page. `name`: the member of a page with its entries. */
export async function all(path, name, query = {}, signal = undefined) {
  const found = [];
  let cursor = null;
  let page = null;
  do {
    page = await get(path, { limit: 1000, ...query, cursor }, signal);
    found.push(...page[name]);
    cursor = page.next_cursor;
  } while (cursor);
  return { [name]: found, last: page };
}

/** Returns the path of a topic, or with `rest` of a resource below it. */
export const topicPath = (topic, rest = "") => `/v1/topics/${encodeURIComponent(topic)}${rest}`;
export const groupPath = (group, rest = "") => `/v1/groups/${encodeURIComponent(group)}${rest}`;

/** Returns a client with the present credentials, which publishes and reads records. */
export function client() {
  return new TidelogClient({ url: BASE, ...(credentials || {}) });
}
