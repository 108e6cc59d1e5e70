// Requests: the token, repetition after failures, and error responses as exceptions.

import type { ClientOptions, WriteOptions } from "./client_types.ts";
import { failure, parsed } from "./errors.ts";

const ATTEMPTS = 4;
/** The longest `Retry-After`, in seconds, that a call waits for. */
const LONGEST_WAIT = 20;

export interface Request {
  method: "GET" | "POST" | "PATCH" | "DELETE";
  path: string;
  query?: Record<string, string | undefined>;
  body?: unknown;
  /** No token is sent: the request is about signing in. */
  isSignIn?: boolean;
  /** The request may be sent again although it may have been processed. */
  isRepeatable?: boolean;
  options?: WriteOptions;
}
export interface Reply {
  status: number;
  // deno-lint-ignore no-explicit-any
  body: any;
}

interface Received {
  status: number;
  headers: Headers;
  text: string;
}
export interface Access {
  token: string;
  userId: string;
}
/** The source of access tokens. */
export interface TokenSource {
  access(): Promise<Access | undefined>;
  /** Replaces an access token. Returns the new one of the same user, or none. */
  renew(stale: Access): Promise<Access | undefined>;
}

/** Sends requests: adds the token, repeats after a failure, and turns error responses into exceptions. */
export class Connection {
  readonly base: string;
  readonly key: string;
  readonly environment?: string;
  tokens!: TokenSource;
  readonly etags = new WeakMap<object, string>();
  readonly #fetch: typeof fetch;

  constructor(options: ClientOptions) {
    for (const name of ["url", "key"] as const) {
      if (!options?.[name]) throw new TypeError(`createClient: the option "${name}" is missing.`);
    }
    const url = new URL(options.url);
    if (!/^https?:$/.test(url.protocol)) throw new TypeError("url must begin with http:// or https://.");
    if (options.key.startsWith("sk_") && typeof document !== "undefined") {
      throw new TypeError("A server key must not be used in a page: everyone could read it. Use a publishable key.");
    }
    this.base = (url.origin + url.pathname).replace(/\/+$/, "").replace(/\/v1$/, "") + "/v1";
    this.key = options.key;
    this.environment = options.environment;
    this.#fetch = options.fetch ?? globalThis.fetch.bind(globalThis);
  }

  async send(request: Request): Promise<Reply> {
    const { method, options = {}, isRepeatable = true } = request;
    const headers = new Headers();
    if (this.environment) headers.set("X-Environment", this.environment);
    if (request.body !== undefined) headers.set("Content-Type", "application/json");
    if ((method === "POST" || method === "PATCH") && !request.isSignIn) {
      headers.set("Idempotency-Key", options.idempotencyKey ?? randomKey());
    }
    const etag = this.etagOf(options.ifMatch);
    if (etag) headers.set("If-Match", etag);
    const body = request.body === undefined ? undefined : JSON.stringify(request.body);
    let access = request.isSignIn ? undefined : await this.tokens.access();
    let isRenewed = false;
    for (let attempt = 1;; attempt++) {
      if (!request.isSignIn) headers.set("Authorization", `Bearer ${access?.token ?? this.key}`);
      const received = await this.#attempt(this.#url(request), { method, headers, body, signal: options.signal });
      if (received?.status === 401 && access && !isRenewed) {
        isRenewed = true;
        access = await this.tokens.renew(access); // never another user's: it was not their request
        if (access) continue;
      }
      if (received && received.status < 400) return this.#reply(received);
      if (received?.status === 404 && method === "DELETE" && !request.query && attempt > 1) {
        return { status: 204, body: undefined };
      }
      const wait = received || isRepeatable ? delay(received, attempt) : undefined;
      if (wait === undefined) throw failure(received, this.base);
      await pause(wait, options.signal);
    }
  }

  /** Opens a stream: a response whose body is read as it arrives. Throws a TypeError if the connection fails. */
  async open(path: string, body: unknown, lastId: string | undefined, signal: AbortSignal): Promise<Response> {
    const headers = new Headers({ "Content-Type": "application/json" });
    if (this.environment) headers.set("X-Environment", this.environment);
    if (lastId) headers.set("Last-Event-ID", lastId);
    let access = await this.tokens.access();
    for (let isRenewed = false;; isRenewed = true) {
      headers.set("Authorization", `Bearer ${access?.token ?? this.key}`);
      const init: RequestInit = { method: "POST", headers, body: JSON.stringify(body), signal };
      const response = await this.#fetch(this.base + path, { ...init, redirect: "error", credentials: "omit" });
      if (response.status !== 401 || !access || isRenewed) return response;
      await response.body?.cancel();
      const renewed = await this.tokens.renew(access);
      if (!renewed) return response;
      access = renewed;
    }
  }

  /** The ETag of a row. Rows of lists have none. */
  etagOf(given: string | object | undefined): string | undefined {
    const etag = typeof given === "object" ? this.etags.get(given) : given;
    if (given !== undefined && !etag) {
      throw new TypeError(
        "ifMatch: the client has no ETag of this row. Read the whole row with get, and pass that object, not a copy.",
      );
    }
    return etag;
  }

  #url(request: Request): string {
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(request.query ?? {})) if (value !== undefined) query.set(name, value);
    const text = query.toString();
    return this.base + request.path + (text && `?${text}`);
  }

  /** One request with its whole response; undefined if the connection failed. */
  async #attempt(
    url: string,
    init: RequestInit,
  ): Promise<Received | undefined> {
    try {
      const response = await this.#fetch(url, { ...init, redirect: "error", credentials: "omit" });
      return { status: response.status, headers: response.headers, text: await response.text() };
    } catch (error) {
      init.signal?.throwIfAborted();
      if (error instanceof TypeError || error instanceof DOMException) return undefined;
      throw error;
    }
  }

  #reply(received: Received): Reply {
    const body = received.text ? parsed(received) : undefined;
    const etag = received.headers.get("ETag");
    if (etag && body) this.etags.set(body, etag);
    return { status: received.status, body };
  }
}

export function randomKey(): string {
  // `randomUUID` is missing in pages that are not served over HTTPS.
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The milliseconds to wait before the next attempt; undefined if there should be none. */
export function delay(received: Received | undefined, attempt: number): number | undefined {
  const after = Number(received?.headers.get("Retry-After")) || 0; // a date, from a proxy, is none
  const isTemporary = !received || [429, 500, 502, 503].includes(received.status) ||
    (received.status === 409 && after);
  if (!isTemporary || attempt >= ATTEMPTS || after > LONGEST_WAIT) return undefined;
  // The server's time is the least: clients that were refused together must not come back together.
  return after * 1000 + (1 + Math.random()) * 100 * 2 ** attempt;
}

export function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const stop = () => (clearTimeout(timer), reject(signal!.reason));
    const timer = setTimeout(() => (signal?.removeEventListener("abort", stop), resolve()), ms);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

/** A name or id as one segment of a path. */
export function segment(text: string): string {
  if (!text || text === "." || text === "..") throw new TypeError(`${JSON.stringify(text)} is not a name or id.`);
  return encodeURIComponent(text);
}

/** Names as one parameter. */
export const joined = (names?: string | readonly string[]): string | undefined =>
  names === undefined || typeof names === "string" ? names : names.join(",") || undefined;
