// The rows of a table.

import type { RelationPathOf, TablesType } from "./table_types.ts";
import type {
  Aggregate,
  BulkQuery,
  CallOptions,
  Change,
  Changed,
  ChangesQuery,
  Choice,
  Found,
  GetQuery,
  Groups,
  ListQuery,
  Page,
  ResultFields,
  TableName,
  UniqueKey,
  WriteOptions,
} from "./client_types.ts";
import { changes } from "./changes.ts";
import { type Connection, joined, type Reply, type Request, segment } from "./connection.ts";

/** A longer filter is sent in a body: proxies limit the length of URLs. */
const LONGEST_QUERY = 2_000;

/** The rows of one table. */
export class Rows<D extends TablesType<D>, T extends TableName<D>> {
  readonly #connection: Connection;
  readonly #path: string;
  readonly #table: string;

  /** @ignore */
  constructor(connection: Connection, table: T) {
    this.#connection = connection;
    this.#path = `/rows/${segment(table)}`;
    this.#table = table;
  }

  /** One page. */
  list<W extends RelationPathOf<D, T> = never, C extends Choice<D, T> = never>(
    query: ListQuery<D, T, W, C> = {},
    options?: CallOptions,
  ): Promise<Page<Found<D, T, W, C>>> {
    return this.#list(query as LooseQuery, options);
  }

  /** As `list`, with the query in the body of the request. */
  query<W extends RelationPathOf<D, T> = never, C extends Choice<D, T> = never>(
    query: ListQuery<D, T, W, C>,
    options?: CallOptions,
  ): Promise<Page<Found<D, T, W, C>>> {
    return this.#query(query as LooseQuery, options);
  }

  /** All pages, one request each. */
  pages<W extends RelationPathOf<D, T> = never, C extends Choice<D, T> = never>(
    query: ListQuery<D, T, W, C> = {},
    options?: CallOptions,
  ): AsyncGenerator<Page<Found<D, T, W, C>>, void> {
    return this.#pages(query as LooseQuery, options);
  }

  /** All rows, read page by page. */
  async *each<W extends RelationPathOf<D, T> = never, C extends Choice<D, T> = never>(
    query: ListQuery<D, T, W, C> = {},
    options?: CallOptions,
  ): AsyncGenerator<Found<D, T, W, C>, void> {
    for await (const page of this.#pages({ limit: 100, ...(query as LooseQuery) }, options)) yield* page.data;
  }

  /** One row. A row that is not there, or that the caller may not see, is a `PlatformError` with status 404. */
  get<W extends RelationPathOf<D, T> = never, C extends Choice<D, T> = never>(
    id: string,
    query: GetQuery<W, C> = {},
    options?: CallOptions,
  ): Promise<Found<D, T, W, C>> {
    return this.#send("GET", `/${segment(id)}`, { query: texts(query as LooseQuery), options });
  }

  insert(values: D[T]["insert"], options?: WriteOptions): Promise<Found<D, T>>;
  /** Several rows: all or none. */
  insert(values: readonly D[T]["insert"][], options?: WriteOptions): Promise<Found<D, T>[]>;
  insert(values: unknown, options?: WriteOptions): Promise<unknown> {
    return this.#insert(values, undefined, options);
  }

  /** Inserts, or updates the rows that have the same values in `onConflict`. */
  upsert(values: D[T]["insert"], onConflict: UniqueKey<D, T>, options?: WriteOptions): Promise<Found<D, T>>;
  upsert(
    values: readonly D[T]["insert"][],
    onConflict: UniqueKey<D, T>,
    options?: WriteOptions,
  ): Promise<Found<D, T>[]>;
  upsert(values: unknown, onConflict: UniqueKey<D, T>, options?: WriteOptions): Promise<unknown> {
    return this.#insert(values, joined(onConflict as string | string[]), options);
  }

  /** Changes some columns. With `ifMatch`, only if the row is as it was when it was read. */
  update(id: string, changes: D[T]["update"], options?: WriteOptions): Promise<Found<D, T>> {
    return this.#send("PATCH", `/${segment(id)}`, { body: changes, options });
  }

  /** Changes all rows that match `where`, at most 1,000. */
  async updateAll(query: BulkQuery<D, T>, changes: D[T]["update"], options?: CallOptions): Promise<Changed> {
    return await this.#send("PATCH", "", { query: bulk(query), body: changes, options });
  }

  async delete(id: string, options?: WriteOptions): Promise<void> {
    await this.#send("DELETE", `/${segment(id)}`, { options });
  }

  /** Deletes all rows that match `where`, at most 1,000. */
  async deleteAll(query: BulkQuery<D, T>, options?: CallOptions): Promise<Changed> {
    return await this.#send("DELETE", "", { query: bulk(query), options });
  }

  /** Counts, sums and other functions, by group. */
  async aggregate<const A extends ResultFields>(
    request: Aggregate<D, T> & { [F in keyof A & keyof ResultFields]?: A[F] },
    options?: CallOptions,
  ): Promise<Groups<A>> {
    checkFilter(request.where);
    checkFilter(request.having);
    return await this.#send("POST", "/aggregate", { body: { ...request, order: joined(request.order) }, options });
  }

  /**
   * What changes in the rows that match: `reset` (read the list again, first of all now), `row` and `gone`. Goes on
   * after a broken connection without a gap, until `signal` is aborted: then it throws the signal's reason.
   */
  changes<W extends RelationPathOf<D, T> = never, C extends Choice<D, T> = never>(
    query: ChangesQuery<D, T, W, C> = {},
    options: { signal?: AbortSignal } = {},
  ): AsyncGenerator<Change<Found<D, T, W, C>>, void> {
    checkFilter((query as LooseQuery).where);
    const subscription = { table: this.#table, ...texts(query as LooseQuery) };
    return changes(this.#connection, subscription, options.signal) as AsyncGenerator<Change<Found<D, T, W, C>>, void>;
  }

  async #list(query: LooseQuery, options?: CallOptions): Promise<Reply["body"]> {
    checkFilter(query.where);
    const where = query.where === undefined ? undefined : JSON.stringify(query.where);
    if ((where?.length ?? 0) > LONGEST_QUERY) return await this.#query(query, options);
    const { limit, cursor } = query;
    const parameters = { ...texts(query), where, limit: limit?.toString(), cursor: cursor ?? undefined };
    return await this.#send("GET", "", { query: parameters, options });
  }

  async #query(query: LooseQuery, options?: CallOptions): Promise<Reply["body"]> {
    checkFilter(query.where);
    return await this.#send("POST", "/query", { body: texts(query), options });
  }

  async *#pages(query: LooseQuery, options?: CallOptions): AsyncGenerator<Reply["body"], void> {
    let cursor = query.cursor;
    do {
      const page = await this.#list({ ...query, cursor }, options);
      yield page;
      cursor = page.next_cursor;
    } while (cursor);
  }

  async #insert(values: unknown, onConflict: string | undefined, options?: WriteOptions): Promise<unknown> {
    const body = await this.#send("POST", "", { query: { on_conflict: onConflict }, body: values, options });
    return Array.isArray(values) ? body.data : body;
  }

  async #send(method: Request["method"], path: string, rest: Partial<Request>): Promise<Reply["body"]> {
    return (await this.#connection.send({ method, path: this.#path + path, ...rest })).body;
  }
}

type Names = string | readonly string[];
/** A query whose types have been checked. */
interface LooseQuery {
  where?: unknown;
  order?: Names;
  with?: Names;
  columns?: Names;
  limit?: number;
  cursor?: string | null;
  count?: string;
}

/** The query with its names as texts. What is unknown is sent, too: the service refuses it. */
// deno-lint-ignore no-explicit-any
function texts(query: LooseQuery): any {
  return { ...query, order: joined(query.order), with: joined(query.with), columns: joined(query.columns) };
}

function bulk(query: { where: unknown; limit?: number; cursor?: string | null }): Record<string, string | undefined> {
  checkFilter(query.where);
  const where = JSON.stringify(query.where);
  return { ...query, where, limit: query.limit?.toString(), cursor: query.cursor ?? undefined };
}

/** JSON leaves out some values and makes null of others, so that the filter would match other rows. */
function checkFilter(filter: unknown): void {
  if (filter !== undefined) JSON.stringify(filter, refuseLost);
}

function refuseLost(this: Record<string, unknown>, key: string, value: unknown): unknown {
  const given = this[key];
  const isLost = typeof value === "number" ? !isFinite(value) : value === null && given !== null; // an invalid date
  if (isLost || ["undefined", "function", "symbol"].includes(typeof value)) {
    throw new TypeError(`The filter's "${key}" is ${String(given)}, which JSON cannot hold.`);
  }
  return value;
}
