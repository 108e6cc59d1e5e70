// The JavaScript client of the platform. `manage.py build_client` bundles these modules into one without dependencies.

import type {
  AnyTables,
  CallOptions,
  ClientOptions,
  Invocation,
  Operation,
  OperationResult,
  TableName,
} from "./client_types.ts";
import type { TablesType } from "./table_types.ts";
import { Auth } from "./auth.ts";
import { Connection, segment } from "./connection.ts";
import { PlatformError } from "./errors.ts";
import { Rows } from "./rows.ts";

export { PlatformError };
export type { Auth, Rows };

/** The version of this module. */
export const VERSION = "0.1.0";

/**
 * A client of one environment. `D` is the interface `Tables` of a generated `types.ts`.
 *
 * `in out` spares the compiler comparing two clients by all their types, which are too deep for it: a variable can be
 * declared as `PlatformClient<Tables>`, also by JSDoc.
 */
export class PlatformClient<in out D extends TablesType<D> = AnyTables> {
  readonly auth: Auth;
  readonly functions: {
    /** Runs a function. A function that throws has the status `failed`, and `error` instead of `output`. */
    invoke<O = unknown>(
      name: string,
      input?: object | null,
      options?: CallOptions & { async?: boolean },
    ): Promise<Invocation<O>>;
  };
  readonly #connection: Connection;

  /** @ignore */
  constructor(options: ClientOptions) {
    const connection = new Connection(options);
    this.#connection = connection;
    this.auth = connection.tokens = new Auth(connection, options.storage);
    this.functions = {
      invoke: async (name, input, options = {}) => {
        const body = { input, async: options.async };
        return (await connection.send({ method: "POST", path: `/functions/${segment(name)}/invoke`, body, options }))
          .body;
      },
    };
  }

  /** The rows of a table. */
  rows<T extends TableName<D>>(table: T): Rows<D, T> {
    return new Rows<D, T>(this.#connection, table);
  }

  /** Up to 100 writes on several tables in one transaction: all or nothing. */
  async batch(
    operations: readonly Operation<D>[],
    options: CallOptions & { dryRun?: boolean } = {},
  ): Promise<OperationResult[]> {
    const connection = this.#connection;
    const matched = operations.map((each) =>
      "if_match" in each ? { ...each, if_match: connection.etagOf(each.if_match) } : each
    );
    const body = { operations: matched, dry_run: options.dryRun };
    const { results } = (await connection.send({ method: "POST", path: "/batch", body, options })).body;
    if (!options.dryRun) for (const { row, etag } of results) if (row && etag) connection.etags.set(row, etag);
    return results;
  }
}

export function createClient<D extends TablesType<D> = AnyTables>(options: ClientOptions): PlatformClient<D> {
  return new PlatformClient<D>(options);
}
