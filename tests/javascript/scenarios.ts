// What the client does, against the real service: `deno run … scenarios.ts NAME FACTS`. A scenario that throws fails.

import { createClient, PlatformError } from "./client.js";
import type { ClientOptions, SessionStorage, User } from "./client.js";

interface Facts {
  base_url: string;
  publishable_key: string;
  server_key: string;
  environment: string;
  users: { id: string; email: string; password: string }[];
}
const facts: Facts = JSON.parse(Deno.args[1]);
const [ada, grace] = facts.users;

function equal(found: unknown, expected: unknown): void {
  const [left, right] = [JSON.stringify(found), JSON.stringify(expected)];
  if (left !== right) throw new Error(`found ${left} instead of ${right}`);
}

async function failing(promise: Promise<unknown>): Promise<PlatformError> {
  const error = await promise.then(() => undefined, (error) => error);
  if (error instanceof PlatformError) return error;
  throw new Error(`expected a PlatformError, not ${error}`);
}

type Fault = "lost" | "html" | (() => Response | Promise<void>);

/** The network, which records requests and, for those that match, does something else once per fault. */
class Network {
  readonly calls: { method: string; path: string; key: string | null; status: number }[] = [];
  readonly faults: { matches: string; fault: Fault }[] = [];

  fetch = async (input: string | URL | Request, init: RequestInit = {}): Promise<Response> => {
    const path = String(input).slice(facts.base_url.length);
    const at = this.faults.findIndex((each) => `${init.method} ${path}`.startsWith(each.matches));
    const [found] = at < 0 ? [] : this.faults.splice(at, 1);
    if (typeof found?.fault === "function") {
      const response = await found.fault();
      if (response) return response;
    }
    const response = await fetch(input, init);
    const key = new Headers(init.headers).get("Idempotency-Key");
    this.calls.push({ method: init.method ?? "GET", path, key, status: response.status });
    if (found?.fault === "lost") {
      await response.arrayBuffer(); // processed, and then the connection is cut
      throw new TypeError("connection reset");
    }
    if (found?.fault === "html") return new Response("<html>Sign in to the airport's network</html>");
    return response;
  };

  count = (matches: string): number =>
    this.calls.filter((each) => `${each.method} ${each.path}`.startsWith(matches)).length;
}

class Memory implements SessionStorage {
  readonly values = new Map<string, string>();
  getItem = (name: string) => Promise.resolve(this.values.get(name) ?? null);
  setItem = (name: string, value: string) => void this.values.set(name, value);
  removeItem = (name: string) => void this.values.delete(name);

  /** Lets the access token seem to be at its end. */
  expire(token?: string): void {
    for (const [name, text] of this.values) {
      const session = JSON.parse(text);
      this.values.set(name, JSON.stringify({ ...session, expires_at: 0, access_token: token ?? session.access_token }));
    }
  }
  get session() {
    return JSON.parse([...this.values.values()][0] ?? "null");
  }
}

function make(more: Partial<ClientOptions> = {}) {
  const network = new Network();
  const client = createClient({
    url: facts.base_url,
    key: facts.publishable_key,
    environment: facts.environment,
    fetch: network.fetch,
    ...more,
  });
  return { network, client };
}

async function signedIn(more: Partial<ClientOptions> = {}, who = ada) {
  const made = make(more);
  await made.client.auth.signIn({ email: who.email, password: who.password });
  return made;
}

async function newList(client: ReturnType<typeof make>["client"], name = `List ${crypto.randomUUID()}`) {
  return await client.rows("lists").insert({ name });
}

const scenarios: Record<string, () => Promise<void>> = {
  async a_user_signs_in_reads_writes_and_signs_out() {
    const { client } = make({ url: `${facts.base_url}/v1/` });
    const users: (User | null)[] = [];
    client.auth.onChange((user) => users.push(user));
    equal((await failing(client.rows("lists").list())).status, 404); // `anonymous` has no rules
    equal((await client.auth.signIn({ email: ada.email, password: ada.password })).id, ada.id);
    const list = await newList(client);
    const task = await client.rows("tasks").insert({ title: "a", list_id: list.id });
    const several = await client.rows("tasks").insert([{ title: "b", list_id: list.id }, {
      title: "c",
      list_id: list.id,
    }]);
    equal(several.map((each) => each.title), ["b", "c"]);
    const where = { list_id: list.id };
    const found = await client.rows("tasks").list({
      where,
      order: ["title.desc"],
      with: ["list"],
      count: "exact",
      limit: 2,
    });
    equal([found.data.map((each) => each.title), found.data[0].list.name, found.count], [["c", "b"], list.name, 3]);
    equal(await client.rows("tasks").get(task.id, { columns: ["title"] }), { id: task.id, title: "a" });
    const read = await client.rows("tasks").get(task.id);
    const changed = await client.rows("tasks").update(task.id, { done: true }, { ifMatch: read });
    equal(changed.done, true);
    equal((await failing(client.rows("tasks").update(task.id, { done: false }, { ifMatch: read }))).status, 412);
    const [{ row }] = await client.batch([
      { op: "update", table: "tasks", id: task.id, values: { done: false }, if_match: changed },
    ]);
    const stale = { op: "delete", table: "tasks", id: task.id, if_match: changed } as const;
    equal((await failing(client.batch([stale]))).status, 412);
    await client.rows("tasks").update(task.id, { done: true }, { ifMatch: row });
    for (const unknown of [found.data[0], { ...changed }]) {
      const refused = client.rows("tasks").update(task.id, { done: false }, { ifMatch: unknown });
      equal(await refused.catch((error) => `${error}`.includes("Read the whole row with get")), true);
    }
    equal((await client.rows("tasks").updateAll({ where }, { due_on: "2030-01-01" })).ids.length, 3);
    await client.rows("tasks").delete(task.id);
    equal((await failing(client.rows("tasks").get(task.id))).code, "not_found");
    equal((await client.rows("tasks").deleteAll({ where, limit: 1 })).ids.length, 1);
    await client.auth.signOut();
    equal(await client.auth.user(), null);
    equal((await failing(client.rows("lists").list())).status, 404);
    equal(users.map((each) => each?.id ?? null), [null, ada.id, null]);
  },

  async a_filter_with_what_json_cannot_hold_is_refused() {
    const { client, network } = await signedIn();
    const rows = client.rows("tasks");
    const made = await newList(client);
    const task = await rows.insert({ title: "a", list_id: made.id });
    const before = network.calls.length;
    const filters: Record<string, unknown>[] = [
      { title: undefined },
      { $or: [{ done: true }, { title: undefined }] },
      { title: { $in: [undefined] } },
      { priority: { $gt: NaN } },
      { created_at: { $lt: new Date(NaN) } },
    ];
    const names: string[] = [];
    for (const where of filters) {
      const calls = [
        () => rows.list({ where }),
        () => rows.query({ where }),
        () => rows.pages({ where }).next(),
        () => rows.each({ where }).next(),
        () => rows.updateAll({ where }, { done: true }),
        () => rows.deleteAll({ where }),
        () => rows.aggregate({ count: true, where }),
        () => rows.aggregate({ count: true, having: where as Record<string, string> }),
        async () => await rows.changes({ where }).next(),
      ];
      const errors = await Promise.all(calls.map((call) => call().then(() => undefined, (error) => error)));
      equal(errors.map((error) => error instanceof TypeError), calls.map(() => true));
      equal(new Set(errors.map((error) => error.message)).size, 1);
      names.push(errors[0].message);
    }
    equal(names, [
      `The filter's "title" is undefined, which JSON cannot hold.`,
      `The filter's "title" is undefined, which JSON cannot hold.`,
      `The filter's "0" is undefined, which JSON cannot hold.`,
      `The filter's "$gt" is NaN, which JSON cannot hold.`,
      `The filter's "$lt" is Invalid Date, which JSON cannot hold.`,
    ]);
    equal(network.calls.length, before);
    const where = { list_id: made.id, due_on: null, created_at: { $lt: new Date(Date.now() + 60_000) } };
    equal((await rows.list({ where, limit: undefined })).data.map((each) => each.id), [task.id]);
    await rows.list({ where: undefined, limit: 1 });
    equal((await rows.deleteAll({ where })).ids, [task.id]);
  },

  async an_unknown_field_of_a_query_is_refused_by_its_name() {
    const { client } = await signedIn();
    const rows = client.rows("tasks");
    const query = { where: {}, wher: {} } as { where: Record<string, never> };
    const calls = [
      () => rows.list(query),
      () => rows.query(query),
      () => rows.get("x", query as object),
      () => rows.updateAll(query, { done: true }),
      () => rows.deleteAll(query),
      () => rows.aggregate({ count: true, ...query }),
      () => rows.changes(query).next(),
    ];
    for (const call of calls) equal(/\bwher: /.test((await failing(call())).message), true);
  },

  async changes_go_on_after_a_cut_connection_and_a_new_token() {
    let connection = new AbortController();
    const opened: (string | null)[] = [];
    const storage = new Memory();
    const { client } = await signedIn({
      storage,
      fetch: (input, init = {}) => {
        if (!String(input).endsWith("/changes")) return fetch(input, init);
        connection = new AbortController();
        opened.push(new Headers(init.headers).get("Last-Event-ID"));
        return fetch(input, { ...init, signal: AbortSignal.any([init.signal!, connection.signal]) });
      },
    });
    const list = await newList(client);
    const add = (title: string) => client.rows("tasks").insert({ title, list_id: list.id });
    const stop = new AbortController();
    const where = { list_id: list.id };
    const changes = client.rows("tasks").changes({ where, columns: ["title"] }, { signal: stop.signal });
    const next = async () => (await changes.next()).value;
    equal(await next(), { type: "reset" });
    const first = await add("first");
    equal(await next(), { type: "row", id: first.id, row: { id: first.id, title: "first" } });
    const waiting = next();
    connection.abort(); // within the wait for the next event
    const missed = await add("missed");
    equal(await waiting, { type: "row", id: missed.id, row: { id: missed.id, title: "missed" } });
    equal([opened.length, opened[0], opened[1] !== null], [2, null, true]);
    storage.expire();
    const later = next();
    connection.abort();
    await client.rows("tasks").delete(first.id);
    equal(await later, { type: "gone", id: first.id });
    const ended = next();
    stop.abort();
    equal(await ended.then(() => "returned", (error) => error.name), "AbortError");
  },

  async changes_go_on_with_a_reset_after_other_rules() {
    const reset = 'event: reset\nid: two\ndata: {"subscription":"rows"}\n\n';
    const streams = ["event: ready\nid: one\ndata: {}\n\n", reset];
    const opened: (string | null)[] = [];
    const { client } = await signedIn({
      fetch: (input, init = {}) => {
        if (!String(input).endsWith("/changes")) return fetch(input, init);
        opened.push(new Headers(init.headers).get("Last-Event-ID"));
        const stream = streams.shift();
        return stream ? Promise.resolve(new Response(stream)) : fetch(input, init);
      },
    });
    const stop = new AbortController();
    const changes = client.rows("tasks").changes({}, { signal: stop.signal });
    for (let number = 1; number <= 3; number++) equal((await changes.next()).value, { type: "reset" });
    equal(opened, [null, "one", "two", null]); // the service refuses `two`
    stop.abort();
  },

  async changes_embed_relations() {
    const { client } = await signedIn();
    const list = await newList(client);
    const stop = new AbortController();
    const query = { where: { list_id: list.id }, with: ["list"], columns: ["title"] };
    const changes = client.rows("tasks").changes(query, { signal: stop.signal });
    const next = async () => (await changes.next()).value;
    equal(await next(), { type: "reset" });
    await client.rows("tasks").insert({ title: "embedded", list_id: list.id });
    const change = await next();
    if (!change || change.type !== "row") throw new Error("no row");
    equal([change.row.title, change.row.list.id], ["embedded", list.id]);
    stop.abort();
  },

  async changes_of_a_table_that_is_not_there_are_an_error() {
    const { client } = await signedIn();
    equal((await failing(client.rows("missing").changes().next())).status, 404);
    const error = await failing(client.rows("tasks").changes({ where: { nme: 1 } }).next());
    equal([error.status, error.fields[0].field], [422, "subscriptions.rows.where"]);
  },

  async an_error_has_code_fields_and_request_id() {
    const { client } = await signedIn();
    const error = await failing(client.rows("tasks").insert({ titel: "a" }));
    equal([error.status, error.code], [422, "validation_failed"]);
    equal(error.fields.map((each) => [each.field, each.code]).slice(0, 1), [["titel", "unknown"]]);
    equal(error.message.startsWith("One or more fields are invalid. titel: "), true);
    equal([/^req_/.test(error.requestId!), error.name, error instanceof Error], [true, "PlatformError", true]);
  },

  async a_wrong_password_signs_nobody_in() {
    const storage = new Memory();
    const { client, network } = make({ storage });
    const error = await failing(client.auth.signIn({ email: ada.email, password: "not it at all" }));
    equal([error.status, error.code], [400, "invalid_grant"]);
    equal([await client.auth.user(), storage.values.size, network.calls.length], [null, 0, 1]);
  },

  async a_sign_in_is_stored_for_the_next_page() {
    const storage = new Memory();
    await signedIn({ storage });
    const { client, network } = make({ storage });
    const users: (User | null)[] = [];
    client.auth.onChange((user) => users.push(user));
    const stop = client.auth.onChange(() => users.push(null));
    stop();
    equal((await client.auth.user())!.id, ada.id);
    await client.rows("lists").list();
    equal([network.calls.length, users.map((each) => each?.id)], [1, [ada.id]]);
  },

  async an_access_token_that_ends_is_renewed_once_for_all_requests() {
    const storage = new Memory();
    await signedIn({ storage });
    const before = storage.session;
    storage.expire();
    const { client, network } = make({ storage });
    await Promise.all(Array.from({ length: 10 }, () => client.rows("lists").list()));
    equal([network.count("POST /v1/auth/token"), network.count("GET /v1/rows/lists")], [1, 10]);
    equal(storage.session.refresh_token === before.refresh_token, false);
  },

  async ten_clients_with_one_storage_renew_once() {
    const storage = new Memory();
    await signedIn({ storage });
    storage.expire();
    const clients = Array.from({ length: 10 }, () => make({ storage }));
    await Promise.all(clients.map(({ client }) => client.rows("lists").list()));
    const renewals = clients.map(({ network }) => network.count("POST /v1/auth/token"));
    equal(renewals.reduce((sum, each) => sum + each), 1);
    storage.expire(); // and nobody has a token that is used up
    await Promise.all(clients.map(({ client }) => client.rows("lists").list()));
  },

  async a_401_renews_and_repeats() {
    const storage = new Memory();
    const { client, network } = await signedIn({ storage });
    network.faults.push({ matches: "GET", fault: () => new Response('{"error": {}}', { status: 401 }) });
    await client.rows("lists").list();
    equal(network.calls.map((each) => each.path.split("?")[0]), ["/v1/auth/token", "/v1/auth/token", "/v1/rows/lists"]);
  },

  async a_lost_response_to_a_renewal_signs_nobody_out() {
    const storage = new Memory();
    const { client } = await signedIn({ storage });
    for (const _ of [1, 2]) {
      storage.expire();
      const again = make({ storage });
      again.network.faults.push({ matches: "POST /v1/auth/token", fault: "lost" });
      await again.client.rows("lists").list();
      equal(again.network.count("POST /v1/auth/token"), 2);
    }
    equal((await client.auth.user())!.id, ada.id);
  },

  async a_session_that_was_ended_elsewhere_ends_here() {
    const [here, elsewhere] = [new Memory(), new Memory()];
    const { client, network } = await signedIn({ storage: here });
    await signedIn({ storage: elsewhere });
    const users: (User | null)[] = [];
    client.auth.onChange((user) => users.push(user));
    await client.auth.user();
    const headers = { Authorization: `Bearer ${elsewhere.session.access_token}`, "Content-Type": "application/json" };
    const body = JSON.stringify({ scope: "others" });
    await (await fetch(`${facts.base_url}/v1/auth/revoke`, { method: "POST", headers, body })).body?.cancel();
    equal((await failing(client.rows("lists").list())).status, 401);
    equal([await client.auth.user(), here.values.size, network.count("GET")], [null, 0, 1]);
    equal(users.map((each) => each?.id ?? null), [ada.id, null]);
  },

  async a_request_of_a_user_is_not_made_with_the_key() {
    const [here, elsewhere] = [new Memory(), new Memory()];
    await signedIn({ storage: here });
    await signedIn({ storage: elsewhere });
    const headers = { Authorization: `Bearer ${elsewhere.session.access_token}`, "Content-Type": "application/json" };
    const body = JSON.stringify({ scope: "others" });
    await (await fetch(`${facts.base_url}/v1/auth/revoke`, { method: "POST", headers, body })).body?.cancel();
    here.expire(); // so that the end is noticed by the renewal, before the request
    const { client, network } = make({ storage: here });
    equal((await failing(client.rows("lists").insert({ name: "as nobody" }))).status, 401);
    equal([await client.auth.user(), here.values.size, network.count("POST /v1/rows")], [null, 0, 0]);
    here.values.clear();
    await signedIn({ storage: here });
    here.expire();
    const other = make({ storage: here });
    const switched = () => signedIn({ storage: here }, grace).then(() => undefined);
    other.network.faults.push({ matches: "POST /v1/auth/token", fault: switched });
    equal((await failing(other.client.rows("lists").insert({ name: "as Grace" }))).status, 401);
    equal([other.network.count("POST /v1/rows"), (await other.client.auth.user())!.id], [0, grace.id]);
  },

  async a_request_is_never_repeated_as_another_user() {
    const storage = new Memory();
    const { client, network } = await signedIn({ storage });
    const fault = async () => { // another tab signs somebody else in, while this request is refused
      await signedIn({ storage }, grace);
      return new Response('{"error": {"code": "unauthorized", "message": "…"}}', { status: 401 });
    };
    network.faults.push({ matches: "POST /v1/rows/lists", fault: fault as () => Promise<never> });
    equal((await failing(client.rows("lists").insert({ name: "Ada's" }))).status, 401);
    equal(network.count("POST /v1/rows"), 0);
    equal((await client.auth.user())!.id, grace.id);
  },

  async signing_out_during_a_renewal_wins() {
    for (const where of ["here", "in another tab"]) {
      const storage = new Memory();
      await signedIn({ storage });
      storage.expire();
      const { client, network } = make({ storage });
      const begun = Promise.withResolvers<void>();
      const fault = () => {
        if (where !== "here") storage.values.clear();
        begun.resolve();
        return Promise.resolve();
      };
      network.faults.push({ matches: "POST /v1/auth/token", fault });
      const call = client.rows("lists").list().catch(() => undefined);
      await begun.promise;
      if (where === "here") await client.auth.signOut();
      await call;
      equal([await client.auth.user(), storage.values.size], [null, 0]);
    }
  },

  async a_storage_that_fails_costs_only_the_memory() {
    const storage = {
      getItem: () => Promise.reject(new Error("blocked")),
      setItem: () => Promise.reject(new Error("full")),
      removeItem: () => Promise.reject(new Error("blocked")),
    };
    const { client } = make({ storage });
    await client.auth.signIn({ email: ada.email, password: ada.password });
    await client.rows("lists").list();
    await client.auth.signOut();
    equal(await client.auth.user(), null);
  },

  async a_lost_response_to_an_insert_inserts_once() {
    const { client, network } = await signedIn();
    network.faults.push({ matches: "POST /v1/rows/lists", fault: "lost" });
    const name = crypto.randomUUID();
    const list = await newList(client, name);
    equal((await client.rows("lists").list({ where: { name } })).data, [list]);
    const keys = network.calls.filter((each) => each.path === "/v1/rows/lists").map((each) => each.key);
    equal([keys.length, new Set(keys).size, keys[0]!.length >= 32], [2, 1, true]);
    await newList(client, name);
    equal((await client.rows("lists").list({ where: { name } })).data.length, 2); // another call, another key
  },

  async a_lost_response_to_a_delete_is_no_error() {
    const { client, network } = await signedIn();
    const list = await newList(client);
    network.faults.push({ matches: "DELETE", fault: "lost" });
    await client.rows("lists").delete(list.id);
    equal((await failing(client.rows("lists").delete(list.id))).status, 404);
  },

  async a_busy_service_is_asked_again_when_it_says() {
    const { client, network } = await signedIn();
    const busy = (after: string) => () => new Response("{}", { status: 503, headers: { "Retry-After": after } });
    network.faults.push({ matches: "GET", fault: busy("1") });
    const began = performance.now();
    await client.rows("lists").list();
    equal(performance.now() - began >= 1000, true);
    network.faults.push({ matches: "GET", fault: busy("Wed, 25 Nov 2099 00:00:00 GMT") });
    await client.rows("lists").list();
    network.faults.push({ matches: "GET", fault: busy("3600") });
    equal((await failing(client.rows("lists").list())).status, 503); // at once
    equal(performance.now() - began < 10_000, true);
  },

  async a_service_that_is_gone_is_an_error() {
    const { client } = make({ url: "http://127.0.0.1:9" });
    const error = await failing(client.rows("lists").list());
    equal([error.status, error.code], [0, "network_error"]);
    equal(error.message, "http://127.0.0.1:9/v1 did not respond.");
  },

  // deno-lint-ignore require-await
  async a_missing_option_is_named() {
    for (const [options, missing] of [[{}, "url"], [{ url: "http://127.0.0.1:9" }, "key"]]) {
      try {
        createClient(options as Parameters<typeof createClient>[0]);
        throw new Error("it was accepted");
      } catch (error) {
        equal((error as Error).message, `createClient: the option "${missing}" is missing.`);
      }
    }
  },

  async a_call_can_be_aborted() {
    const { client, network } = await signedIn();
    const refused = () => new Response("{}", { status: 503, headers: { "Retry-After": "10" } });
    network.faults.push({ matches: "GET", fault: refused });
    const call = client.rows("lists").list({}, { signal: AbortSignal.timeout(100) });
    equal(await call.catch((error) => error.name), "TimeoutError");
    const ended = client.rows("lists").list({}, { signal: AbortSignal.abort() });
    equal(await ended.catch((error) => error.name), "AbortError");
  },

  async a_response_that_is_not_json_is_an_error() {
    const { client, network } = await signedIn();
    network.faults.push({ matches: "GET", fault: "html" });
    const error = await failing(client.rows("lists").list());
    equal([error.status, error.code], [200, "unknown"]);
  },

  async pages_are_read_to_their_end() {
    const { client, network } = await signedIn();
    const list = await newList(client);
    const titles = Array.from({ length: 7 }, (_, number) => `t${number}`);
    await client.rows("tasks").insert(titles.map((title) => ({ title, list_id: list.id })));
    const query = { where: { list_id: list.id }, order: "title" as const, limit: 3 };
    const sizes: number[] = [];
    for await (const page of client.rows("tasks").pages(query)) sizes.push(page.data.length);
    equal(sizes, [3, 3, 1]);
    const found: string[] = [];
    for await (const row of client.rows("tasks").each(query)) found.push(row.title);
    equal(found, titles);
    const before = network.calls.length;
    for await (const _ of client.rows("tasks").each(query)) break;
    equal(network.calls.length - before, 1); // no page that nobody wants
  },

  async a_long_filter_is_sent_in_a_body() {
    const { client, network } = await signedIn();
    const where = { name: { $in: Array.from({ length: 300 }, (_, number) => `name ${number}`) } };
    equal((await client.rows("lists").list({ where, order: "name.asc", with: [] })).data, []);
    equal((await client.rows("lists").query({ where: { name: "no" } })).data, []);
    equal(network.count("POST /v1/rows/lists/query"), 2);
  },

  async an_upsert_updates_what_is_there() {
    const { client } = make({ key: facts.server_key });
    const [list] = (await client.rows("lists").list({ limit: 1 })).data;
    const values = { title: crypto.randomUUID(), list_id: list.id, owner_id: ada.id };
    const first = await client.rows("tasks").upsert(values, ["list_id", "title"]);
    const second = await client.rows("tasks").upsert([{ ...values, done: true }], ["list_id", "title"]);
    equal([second[0].id, second[0].done], [first.id, true]);
    await client.rows("tasks").delete(first.id);
  },

  async a_batch_is_all_or_nothing() {
    const { client } = await signedIn();
    const name = crypto.randomUUID();
    const operations = [
      { op: "insert" as const, table: "lists", values: { name }, name: "list" },
      { op: "insert" as const, table: "tasks", values: { title: "a", list_id: { $ref: "list.id" } } },
    ];
    equal((await client.batch(operations, { dryRun: true })).map((each) => each.status), [201, 201]);
    equal((await client.rows("lists").list({ where: { name } })).data.length, 0);
    const [list, task] = await client.batch(operations);
    equal(task.row!.list_id, list.row!.id);
    const error = await failing(client.batch([operations[0], { ...operations[1], values: { title: 1 } }]));
    equal([error.status, error.operation], [422, 1]);
    equal((await client.rows("lists").list({ where: { name } })).data.length, 1);
  },

  async groups_are_counted() {
    const { client } = await signedIn();
    const list = await newList(client);
    await client.rows("tasks").insert(["a", "b"].map((title) => ({ title, list_id: list.id })));
    const request = { where: { list_id: list.id }, group: ["done"], count: true, order: ["count.desc"] };
    equal((await client.rows("tasks").aggregate(request)).data, [{ done: false, count: 2 }]);
  },

  async a_function_is_invoked() {
    const { client, network } = await signedIn();
    network.faults.push({ matches: "POST /v1/functions", fault: "lost" });
    const run = await client.functions.invoke<{ sum: number }>("sum", { a: 2, b: 3 });
    equal([run.status, run.output], ["succeeded", { sum: 5 }]);
    const started = await client.functions.invoke("sum", { a: 1, b: 1 }, { async: true });
    equal([started.status, "output" in started], ["running", false]);
    equal((await failing(client.functions.invoke("missing"))).status, 404);
  },

  // deno-lint-ignore require-await
  async what_cannot_be_right_is_refused_before_anything_is_sent() {
    const { client, network } = make();
    const refused = (call: () => unknown) => {
      try {
        call();
      } catch (error) {
        return equal(error instanceof TypeError, true);
      }
      throw new Error(`not refused: ${call}`);
    };
    for (const name of ["", ".", ".."]) {
      refused(() => client.rows(name));
      refused(() => client.rows("lists").get(name));
    }
    refused(() => make({ url: "javascript:alert(1)" }));
    refused(() => make({ url: "api.example.com" }));
    equal(network.calls, []);
    (globalThis as { document?: unknown }).document = {};
    refused(() => make({ key: facts.server_key, storage: null }));
  },

  async a_name_never_leaves_its_place_in_the_path() {
    const { client, network } = await signedIn();
    for (const id of ["../lists", "a/b", "a?where={}", "a#b", "%2e%2e"]) {
      equal((await failing(client.rows("tasks").get(id))).status, 404);
    }
    equal(network.calls.slice(1).every((each) => each.path.startsWith("/v1/rows/tasks/")), true);
  },

  async a_password_reset_is_always_accepted() {
    const { client } = make();
    await client.auth.requestPasswordReset({ email: "nobody@example.com" });
    const error = await failing(client.auth.resetPassword({ token: "lnk_0", password: "correct horse battery" }));
    equal([error.status, error.code], [400, "invalid_grant"]);
  },

  async a_user_changes_the_name() {
    const storage = new Memory();
    const { client } = make({ storage });
    await client.auth.signIn({ email: ada.email, password: ada.password });
    const before = await client.auth.user();
    try {
      const user = await client.auth.update({ name: "Countess" });
      equal([user.id, user.name, storage.session.user], [ada.id, "Countess", user]);
      equal(await make({ storage }).client.auth.user(), user);
    } finally {
      await client.auth.update({ name: before!.name });
    }
    const error = await failing(client.auth.update({ password: "correct horse battery" }));
    equal(error.fields.map((each) => each.field), ["current_password"]);
  },

  async a_sign_up_is_always_accepted() {
    const { client } = make();
    await client.auth.signUp({ email: "nia@example.com", password: "correct horse battery" });
    const error = await failing(client.auth.confirmSignUp({ token: "lnk_0", password: "correct horse battery" }));
    equal([error.status, error.code, await client.auth.user()], [400, "invalid_grant", null]);
  },
};

if (Deno.args[0] === "--list") console.log(Object.keys(scenarios).join("\n"));
else await scenarios[Deno.args[0]]();
