// Types of what a function is called with.

import type {
  Aggregate,
  AnyTables,
  BulkQuery,
  Changed,
  Choice,
  Found,
  GetQuery,
  Groups,
  ListQuery,
  Operation,
  OperationResult,
  Page,
  ResultFields,
  TableName,
  UniqueKey,
} from "./client_types.ts";
import type { RelationPathOf, TablesType } from "./table_types.ts";

/** The second argument of a function. `D` is the interface `Tables` of a generated `types.ts`. */
export interface FunctionContext<D extends TablesType<D> = AnyTables> {
  /** Rows, with the permissions of the caller. */
  readonly rows: FunctionRows<D>;
  /** As the global `fetch`, to the function's `allowed_hosts`. Redirects are not followed. */
  readonly fetch: (
    url: string | URL | Request,
    init?: Pick<RequestInit, "method" | "headers" | "body" | "signal">,
  ) => Promise<Response>;
  readonly secrets: { readonly [name: string]: string };
  readonly caller: {
    readonly kind: "user" | "account" | "key" | "anonymous";
    readonly id: string;
    readonly email: string | null;
    readonly role: string | null;
  };
  readonly runId: string;
}

interface FunctionRows<D extends TablesType<D>> {
  list<T extends TableName<D>, W extends RelationPathOf<D, T> = never, C extends Choice<D, T> = never>(
    table: T,
    query?: ListQuery<D, T, W, C>,
  ): Promise<Page<Found<D, T, W, C>>>;
  get<T extends TableName<D>, W extends RelationPathOf<D, T> = never, C extends Choice<D, T> = never>(
    table: T,
    id: string,
    query?: GetQuery<W, C>,
  ): Promise<Found<D, T, W, C>>;
  aggregate<T extends TableName<D>, const A extends ResultFields>(
    table: T,
    request: Aggregate<D, T> & { [F in keyof A & keyof ResultFields]?: A[F] },
  ): Promise<Groups<A>>;
  insert<T extends TableName<D>>(table: T, row: D[T]["insert"]): Promise<Found<D, T>>;
  /** `onConflict`: default `id`. */
  upsert<T extends TableName<D>>(
    table: T,
    row: D[T]["insert"],
    options?: { onConflict?: UniqueKey<D, T> },
  ): Promise<Found<D, T>>;
  update<T extends TableName<D>>(
    table: T,
    id: string,
    changes: D[T]["update"],
    options?: { ifMatch?: string },
  ): Promise<Found<D, T>>;
  remove(table: TableName<D>, id: string, options?: { ifMatch?: string }): Promise<null>;
  /** Up to 100 writes on several tables: all or nothing. */
  batch(operations: readonly Operation<D, string>[]): Promise<{ results: OperationResult[] }>;
  updateMany<T extends TableName<D>>(table: T, query: BulkQuery<D, T>, changes: D[T]["update"]): Promise<Changed>;
  removeMany<T extends TableName<D>>(table: T, query: BulkQuery<D, T>): Promise<Changed>;
}
