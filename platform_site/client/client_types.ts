// Types of the requests and responses of `client.ts`.

import type { ColumnType, FilterOf, Json, OrderKeyOf, RowWithOf, TablesType } from "./table_types.ts";

/** Without a generated `types.ts`, every table and column is accepted. */
export interface AnyTables {
  [table: string]: {
    // deno-lint-ignore no-explicit-any
    row: { id: string; [column: string]: any };
    insert: { [column: string]: unknown };
    update: { [column: string]: unknown };
    delete: boolean;
    types: { [column: string]: "text" };
    relations: { [relation: string]: { table: string; many: boolean; null: boolean } };
    users: { [name: string]: object | null };
    conditions: string;
    depth: 0;
  };
}
export type TableName<D> = keyof D & string;

/** Where a session is stored: `localStorage`, or an object with the same three methods, which may be asynchronous. */
export interface SessionStorage {
  getItem(name: string): string | null | Promise<string | null>;
  setItem(name: string, value: string): void | Promise<void>;
  removeItem(name: string): void | Promise<void>;
}
export interface ClientOptions {
  /** The URL of the service, such as `https://api.example.com`. */
  url: string;
  /** A publishable key in pages, a server key elsewhere. A signed-in user's token replaces it. */
  key: string;
  /** The environment whose users sign in, unless `url` names it. */
  environment?: string;
  /** Default: `localStorage` in pages, else none. `null`: the session ends with the client. */
  storage?: SessionStorage | null;
  fetch?: typeof fetch;
}
export interface CallOptions {
  signal?: AbortSignal;
}
export interface WriteOptions extends CallOptions {
  /** Default: a new one for each call, which its repetitions share. */
  idempotencyKey?: string;
  /** Only one row: a row that `get`, `insert` of one, `update` or `batch` returned, or its ETag. */
  ifMatch?: string | object;
}

export interface User {
  id: string;
  email: string;
  name: string;
}
export interface Session {
  access_token: string;
  refresh_token: string;
  /** Milliseconds since 1970. */
  expires_at: number;
  user: User;
}
export interface Problem {
  code: string;
  message: string;
  fields?: { field: string; code: string; message: string }[];
  request_id?: string;
  run_id?: string;
  operation?: number;
}

type IsAny<D> = string extends keyof D ? true : false;
export type Column<D extends TablesType<D>, T extends TableName<D>> = keyof D[T]["types"] & string;

/** A column to read, or all (`*`) but some (`-notes`). */
export type Choice<D extends TablesType<D>, T extends TableName<D>> =
  | Column<D, T>
  | "*"
  | `-${Exclude<Column<D, T>, "id">}`;

export interface GetQuery<W, C> {
  /** The relations to embed. */
  with?: W | readonly W[];
  /** The row's own columns to read besides `id`, or `*` with `-name` for each other one. Default: all. */
  columns?: C | readonly C[];
}
export interface ListQuery<D extends TablesType<D>, T extends TableName<D>, W, C> extends GetQuery<W, C> {
  where?: FilterOf<D, T>;
  order?: OrderKeyOf<D, T> | readonly OrderKeyOf<D, T>[];
  limit?: number;
  cursor?: string | null;
  count?: "exact" | "estimated";
}

export interface BulkQuery<D extends TablesType<D>, T extends TableName<D>> {
  /** `{}` matches all rows. */
  where: FilterOf<D, T>;
  limit?: number;
  cursor?: string | null;
}
export interface Changed {
  ids: string[];
  next_cursor: string | null;
}
export interface Page<R> {
  data: R[];
  next_cursor: string | null;
  count?: number;
  count_is?: "exact" | "estimated" | "at_least";
}
/** A row with the relations of the paths `W`, and with the columns `C` if any are chosen. */
export type Found<D extends TablesType<D>, T extends TableName<D>, W = never, C = never> = IsAny<D> extends true
  ? D[T]["row"]
  : [D[T]["row"]] extends [never] ? { id: string }
  : [C] extends [never] ? RowWithOf<D, T, W>
  : Omit<RowWithOf<D, T, W>, Unchosen<keyof D[T]["row"], C>>;
type Unchosen<K, C> = "*" extends C ? (C extends `-${infer N}` ? N : never) : Exclude<K, C | "id">;
/** `id`, or the columns of a unique. */
export type UniqueKey<D extends TablesType<D>, T extends TableName<D>> = Column<D, T> | readonly Column<D, T>[];

export interface ChangesQuery<D extends TablesType<D>, T extends TableName<D>, W, C> extends GetQuery<W, C> {
  where?: FilterOf<D, T>;
}
/** `reset`: read the list again. `row`: insert or replace it. `gone`: remove it if it is there. */
export type Change<R> = { type: "reset" } | { type: "row"; id: string; row: R } | { type: "gone"; id: string };

/** The columns of the types `K`. */
type ColumnOf<D extends TablesType<D>, T extends TableName<D>, K> = IsAny<D> extends true ? string
  : { [C in Column<D, T>]: D[T]["types"][C] extends K ? C : never }[Column<D, T>];
type KeyType = Exclude<ColumnType, "json" | "text[]">;
type NumberType = "integer" | "decimal" | "float";
type RangeType = NumberType | "text" | "date" | "timestamp";
type DatePart = "day" | "week" | "month" | "year";
export interface Aggregate<D extends TablesType<D>, T extends TableName<D>> {
  group?: readonly (
    | ColumnOf<D, T, KeyType>
    | `${ColumnOf<D, T, "date" | "timestamp">}.${DatePart}`
    | `${ColumnOf<D, T, "timestamp">}.hour`
  )[];
  count?: boolean;
  count_distinct?: readonly ColumnOf<D, T, KeyType>[];
  sum?: readonly ColumnOf<D, T, NumberType>[];
  avg?: readonly ColumnOf<D, T, NumberType>[];
  min?: readonly ColumnOf<D, T, RangeType>[];
  max?: readonly ColumnOf<D, T, RangeType>[];
  where?: FilterOf<D, T>;
  having?: { [result: string]: Json };
  order?: string | readonly string[];
  limit?: number;
  cursor?: string | null;
  time_zone?: string;
}
/** The fields that name results. */
export type ResultFields = { group?: readonly string[]; count?: boolean } & { [F in Aggregator]?: readonly string[] };
type Aggregator = "count_distinct" | "sum" | "avg" | "min" | "max";
/** The names of the results of the request `A`. */
type ResultOf<A> =
  | (A extends { group: readonly (infer K)[] } ? K extends `${infer C}.${infer P}` ? `${C}_${P}` : K : never)
  | (A extends { count: boolean } ? "count" : never)
  | {
    [F in Aggregator]: A extends { [_ in F]: readonly (infer C extends string)[] } ? `${F}_${C}` : never;
  }[Aggregator];
type CountOf<A> =
  | (A extends { count: boolean } ? "count" : never)
  | (A extends { count_distinct: readonly (infer C extends string)[] } ? `count_distinct_${C}` : never);
type AnyIfNone<N> = [N] extends [never] ? string : N & string;
export interface Groups<A = object> {
  data: { [N in AnyIfNone<ResultOf<A>>]: N extends CountOf<A> ? number : string | number | boolean | null }[];
  next_cursor: string | null;
}

/** The value of an earlier operation's row: `name.column`. */
export interface Reference {
  $ref: string;
}
type WithReferences<V> = { [C in keyof V]: V[C] | Reference };
/** One operation of a batch. `M` is what `if_match` may be: an ETag, or a row as for `ifMatch`. */
export type Operation<D extends TablesType<D>, M = string | object> = {
  [T in TableName<D>]:
    | { op: "insert"; table: T; values: WithReferences<D[T]["insert"]>; name?: string }
    | { op: "upsert"; table: T; values: WithReferences<D[T]["insert"]>; on_conflict: string; name?: string }
    | {
      op: "update";
      table: T;
      id: string | Reference;
      values: WithReferences<D[T]["update"]>;
      if_match?: M;
      name?: string;
    }
    | { op: "delete"; table: T; id: string | Reference; if_match?: M; name?: string };
}[TableName<D>];
export interface OperationResult {
  status: 200 | 201 | 204;
  // deno-lint-ignore no-explicit-any
  row?: { id: string; [column: string]: any };
  etag?: string;
}
export interface Invocation<O> {
  run_id: string;
  status: "running" | "succeeded" | "failed";
  output?: O;
  error?: string;
  duration_ms?: number;
}
