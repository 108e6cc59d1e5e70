// The session of a user.

import type { CallOptions, Session, SessionStorage, User } from "./client_types.ts";
import type { Access, Connection, Reply, TokenSource } from "./connection.ts";
import { randomKey } from "./connection.ts";
import { PlatformError } from "./errors.ts";

/** An access token is renewed when it has less than this left. */
const RENEW_BEFORE_MS = 30_000;

interface Tokens {
  access_token: string;
  refresh_token: string;
  expires_in: number;
  user: User;
}

/** A sign-in at a provider, stored until the person comes back. */
interface StartedSignIn {
  state: string;
  code_verifier: string;
  redirect_uri: string;
}

/** Signing in and out. One client has one user, in all tabs that share its storage. */
export class Auth implements TokenSource {
  readonly #connection: Connection;
  readonly #name: string;
  readonly #startedName: string;
  readonly #listeners = new Set<(user: User | null) => void>();
  #storage: SessionStorage | null;
  #session: Session | null = null;
  #loading?: Promise<void>;
  #renewing?: Promise<void>;

  /** @ignore */
  constructor(connection: Connection, storage?: SessionStorage | null) {
    this.#connection = connection;
    this.#storage = storage === undefined ? localStorageOf() : storage;
    const pool = connection.environment ?? (connection.key.startsWith("pk_") ? connection.key : "");
    this.#name = `platform:${connection.base}:${pool}`;
    this.#startedName = `${this.#name}:sign-in`; // storage may be sessionStorage
    if (storage === undefined && typeof document !== "undefined") {
      addEventListener("storage", (event) => {
        if (event.key === this.#name || event.key === null) this.#read();
      });
    }
  }

  /** The signed-in user. */
  async user(): Promise<User | null> {
    await this.#loaded();
    return this.#session?.user ?? null;
  }

  /** Calls `listener` with the user, now and whenever another one or none is signed in. Returns a function that ends it. */
  onChange(listener: (user: User | null) => void): () => void {
    let isStopped = false;
    this.user().then((user) => {
      if (isStopped) return;
      this.#listeners.add(listener);
      listener(user);
    });
    return () => {
      isStopped = true;
      this.#listeners.delete(listener);
    };
  }

  /**
   * Leaves the page for an identity provider, or for a choice of them. The person comes back to `redirect_uri`, by
   * default this page, which calls `finishSignIn`.
   */
  async startSignIn({ provider, redirect_uri }: { provider?: string; redirect_uri?: string } = {}): Promise<void> {
    const verifier = randomKey() + randomKey();
    const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(verifier)));
    const digest = btoa(String.fromCharCode(...hash));
    const started: StartedSignIn = {
      state: randomKey(),
      code_verifier: verifier,
      redirect_uri: redirect_uri ?? location.origin + location.pathname,
    };
    sessionStorage.setItem(this.#startedName, JSON.stringify(started));
    const query = new URLSearchParams({
      redirect_uri: started.redirect_uri,
      state: started.state,
      code_challenge: digest.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", ""),
      code_challenge_method: "S256",
    });
    if (this.#connection.environment) query.set("environment", this.#connection.environment);
    if (provider) query.set("provider", provider);
    location.assign(`${this.#connection.base}/auth/authorize?${query}`);
  }

  /** Signs in the person who comes back from a provider. Null if the page was opened in another way. */
  async finishSignIn(options?: CallOptions): Promise<User | null> {
    const url = new URL(location.href);
    const returned = Object.fromEntries(url.searchParams);
    const started: StartedSignIn | null = JSON.parse(sessionStorage.getItem(this.#startedName) ?? "null");
    if (!started?.state || returned.state !== started.state) return null;
    sessionStorage.removeItem(this.#startedName);
    for (const name of ["code", "state", "iss", "error", "error_code", "error_description"]) {
      url.searchParams.delete(name);
    }
    history.replaceState(history.state, "", url); // a code is of no use twice
    if (returned.error) {
      const code = returned.error_code ?? returned.error;
      throw new PlatformError(400, { code, message: returned.error_description ?? code });
    }
    const { code_verifier, redirect_uri } = started;
    return this.signIn({ code: returned.code, code_verifier, redirect_uri }, options);
  }

  /** Signs in with a password, or with the code of an identity provider. */
  async signIn(
    credentials: { email: string; password: string } | { code: string; code_verifier: string; redirect_uri?: string },
    options?: CallOptions,
  ): Promise<User> {
    const grant = "code" in credentials ? "authorization_code" : "password";
    const body = { grant_type: grant, ...credentials };
    return this.#accept(await this.#post("/auth/token", body, options, grant === "password"));
  }

  /** Sends a link to this email. The response does not say whether the account exists. */
  async signUp(account: { email: string; password: string; name?: string }, options?: CallOptions): Promise<void> {
    await this.#post("/auth/signup", account, options);
  }

  /** Signs in with the token of the link and the password that was chosen. */
  async confirmSignUp(confirmation: { token: string; password: string }, options?: CallOptions): Promise<User> {
    return this.#accept(await this.#post("/auth/signup/confirm", confirmation, options, false));
  }

  /** Sends a link to this email. The response does not say whether the account exists. */
  async requestPasswordReset(account: { email: string }, options?: CallOptions): Promise<void> {
    await this.#post("/auth/password-reset", account, options);
  }

  /** Sets the password with the token of the link. This ends all sessions of the user. */
  async resetPassword(reset: { token: string; password: string }, options?: CallOptions): Promise<void> {
    await this.#post("/auth/password-reset/confirm", reset, options, false);
  }

  /** Changes the name or the password. A new password needs the current one, and ends the user's other sessions. */
  async update(
    changes: { name?: string; password?: string; current_password?: string },
    options?: CallOptions,
  ): Promise<User> {
    const { body } = await this.#connection.send({ method: "PATCH", path: "/auth/me", body: changes, options });
    const user = { id: body.id, email: body.email, name: body.name };
    const session = this.#session;
    if (session && session.user.id === user.id) await this.#set({ ...session, user });
    return user;
  }

  /** Ends the session. In this client it has ended even if the request fails. */
  async signOut(options?: CallOptions): Promise<void> {
    await this.#loaded();
    const token = this.#session?.access_token;
    if (!token) return;
    try {
      const body = { scope: "current" };
      await this.#connection.send({ method: "POST", path: "/auth/revoke", body, options });
    } catch (error) {
      if (!(error instanceof PlatformError && error.status === 401)) throw error;
    } finally {
      await this.#set(null);
    }
  }

  /** @ignore */
  async access(): Promise<Access | undefined> {
    await this.#loaded();
    const session = this.#session;
    if (!session) return undefined;
    const current = { token: session.access_token, userId: session.user.id };
    const left = session.expires_at - Date.now();
    if (left >= RENEW_BEFORE_MS) return current;
    let renewed: Access | undefined;
    try {
      renewed = await this.renew(current);
    } catch (error) {
      if (left <= 0) throw error;
      return current;
    }
    // What was meant to be done as this user is not done as another one, nor with the key.
    if (!renewed) {
      throw new PlatformError(401, { code: "unauthorized", message: "The session has ended. Sign in again." });
    }
    return renewed;
  }

  /** Renews once for all that ask at the same time, also in other tabs. @ignore */
  async renew(stale: Access): Promise<Access | undefined> {
    await (this.#renewing ??= this.#alone(() => this.#renew(stale.token)).finally(() => this.#renewing = undefined));
    const session = this.#session;
    return session?.user.id === stale.userId ? { token: session.access_token, userId: session.user.id } : undefined;
  }

  async #renew(stale: string): Promise<void> {
    await this.#read(); // another tab may have been first
    const session = this.#session;
    if (session?.access_token !== stale) return;
    const body = { grant_type: "refresh_token", refresh_token: session.refresh_token };
    let tokens: Tokens | null = null;
    try {
      // A refresh token returns the same successor until that is used, so a lost response loses nothing.
      tokens = await this.#post("/auth/token", body);
    } catch (error) {
      if (!(error instanceof PlatformError && error.status === 400)) throw error;
    }
    await this.#read(); // someone may have signed out meanwhile
    if (this.#session === session) await this.#set(tokens && sessionOf(tokens));
  }

  async #alone(renew: () => Promise<void>): Promise<void> {
    const locks = globalThis.navigator?.locks;
    return locks && this.#storage ? await locks.request(this.#name, renew) : await renew();
  }

  async #post(path: string, body: unknown, options?: CallOptions, isRepeatable = true): Promise<Reply["body"]> {
    return (await this.#connection.send({ method: "POST", path, body, options, isRepeatable, isSignIn: true })).body;
  }

  async #accept(tokens: Tokens): Promise<User> {
    await this.#set(sessionOf(tokens));
    return tokens.user;
  }

  async #set(session: Session | null): Promise<void> {
    this.#loading ??= Promise.resolve();
    this.#change(session);
    try {
      if (session) await this.#storage?.setItem(this.#name, JSON.stringify(session));
      else await this.#storage?.removeItem(this.#name);
    } catch { // full or blocked: the session ends with this client
      this.#storage = null;
    }
  }

  #loaded(): Promise<void> {
    return this.#loading ??= this.#read();
  }

  async #read(): Promise<void> {
    if (!this.#storage) return;
    const before = this.#session;
    let stored: Session | null = null;
    try {
      stored = JSON.parse(await this.#storage.getItem(this.#name) ?? "null");
    } catch { // blocked, or not ours
      return;
    }
    if (this.#session !== before) return; // somebody signed in or out while the storage was read
    if (stored?.access_token !== before?.access_token) this.#change(stored?.user?.id ? stored : null);
  }

  #change(session: Session | null): void {
    const before = this.#session?.user.id;
    this.#session = session;
    if (before === session?.user.id) return;
    for (const listener of this.#listeners) queueMicrotask(() => listener(session?.user ?? null));
  }
}

function sessionOf({ access_token, refresh_token, expires_in, user }: Tokens): Session {
  return { access_token, refresh_token, user, expires_at: Date.now() + expires_in * 1000 };
}

function localStorageOf(): SessionStorage | null {
  try {
    return typeof document === "undefined" ? null : localStorage;
  } catch { // blocked by the browser's settings
    return null;
  }
}
