// Types of requests and rows, generic over the `Tables` of a generated `types.ts`.

export type Json = string | number | boolean | null | readonly Json[] | { readonly [key: string]: Json };

/** One table as a role may use it. */
export interface TableType {
  /** A row as it is read. `never`: the role may not read the table. */
  row: object;
  insert: object;
  update: object;
  delete: boolean;
  /** The types of the readable columns. */
  types: { [column: string]: ColumnType };
  relations: { [relation: string]: { table: string; many: boolean; null: boolean } };
  /** The users that `with` can embed. */
  users: { [name: string]: object | null };
  /** The named conditions that a filter may use. */
  conditions: string;
  /** How many relations long the paths are that the types below list. */
  depth: 0 | 1 | 2 | 3;
}
export type TablesType<D> = { [T in keyof D]: TableType };

export type ColumnType = keyof Operators<unknown, unknown>;

interface Equality<V, R> {
  $eq?: V | R | null;
  $ne?: V | R | null;
  $null?: boolean;
}
interface Membership<V> {
  $in?: readonly (V | null)[];
  $nin?: readonly (V | null)[];
}
interface Ranges<V, R> {
  $gt?: V | R;
  $gte?: V | R;
  $lt?: V | R;
  $lte?: V | R;
  $between?: readonly [V | R, V | R];
}
interface Patterns {
  $ieq?: string;
  $iin?: readonly (string | null)[];
  $like?: string;
  $ilike?: string;
  $contains?: string;
  $icontains?: string;
  $startsWith?: string;
  $istartsWith?: string;
  $endsWith?: string;
  $iendsWith?: string;
  $search?: string;
}
interface Elements {
  $has?: string;
  $hasAny?: readonly string[];
  $hasAll?: readonly string[];
}

/** The operators of each column type. `V` is a value, `R` the name of a column to compare with. */
interface Operators<V, R> {
  text: Equality<V, R> & Membership<V> & Ranges<V, R> & Patterns;
  integer: Equality<V, R> & Membership<V> & Ranges<V, R>;
  decimal: Equality<V, R> & Membership<V> & Ranges<V, R>;
  float: Equality<V, R> & Membership<V> & Ranges<V, R>;
  boolean: Equality<V, R> & Membership<V>;
  date: Equality<V, R> & Membership<V> & Ranges<V, R>;
  timestamp: Equality<V, R> & Membership<V> & Ranges<V, R>;
  uuid: Equality<V, R> & Membership<V> & Ranges<V, R>;
  json: Equality<Json, never> & { $contains?: Json } & Elements;
  "text[]": Equality<V, R> & Elements;
  enum: Equality<V, R> & Membership<V>;
  reference: Equality<V, R> & Membership<V>;
  user: Equality<V, R> & Membership<V>;
}

/** What a filter compares a column with. A decimal may be a number; an object beside a JSON column is operators if its
 * keys begin with `$`. */
type FilterValue<K, V> = K extends "decimal" ? string | number
  : K extends "json" ?
      | string
      | number
      | boolean
      | readonly Json[]
      | ({ readonly [key: string]: Json } & { [operator: `$${string}`]: never })
  : NonNullable<V>;

type Texts = "text" | "enum" | "reference" | "user";
type Name<O> = keyof O & string;

/** The columns of the same PostgreSQL type as a column of type `K`. */
type SameType<Types, K> = {
  [C in keyof Types]: K extends Texts ? Types[C] extends Texts ? C : never : Types[C] extends K ? C : never;
}[keyof Types];

type CellFilter<K extends ColumnType, V, Types> =
  | FilterValue<K, V>
  | null
  | (
    & Operators<FilterValue<K, V>, { $column: SameType<Types, K> }>[K]
    & { $not?: Operators<FilterValue<K, V>, { $column: SameType<Types, K> }>[K] }
  );

type Less = { 3: 2; 2: 1; 1: 0; 0: never };
type Depth = keyof Less;

type Far<D extends TablesType<D>, T extends Name<D>, R extends keyof D[T]["relations"]> =
  D[T]["relations"][R]["table"] extends infer F extends Name<D> ? F : never;
type ToOne<D extends TablesType<D>, T extends Name<D>> = {
  [R in Name<D[T]["relations"]>]: D[T]["relations"][R]["many"] extends true ? never : R;
}[Name<D[T]["relations"]>];

/** A column, or the end of a path over to-one relations (`list.name`). */
type ColumnPath<D extends TablesType<D>, T extends Name<D>, N extends Depth = D[T]["depth"]> =
  | Name<D[T]["types"]>
  | (N extends 0 ? never
    : { [R in ToOne<D, T>]: `${R}.${ColumnPath<D, Far<D, T, R>, Less[N]>}` }[ToOne<D, T>]);

/** As `ColumnPath`, or a relation at its end. */
type FilterPath<D extends TablesType<D>, T extends Name<D>, N extends Depth = D[T]["depth"]> =
  | Name<D[T]["types"]>
  | Name<D[T]["relations"]>
  | (N extends 0 ? never
    : { [R in ToOne<D, T>]: `${R}.${FilterPath<D, Far<D, T, R>, Less[N]>}` }[ToOne<D, T>]);

type PathFilter<D extends TablesType<D>, T extends Name<D>, P> = P extends Name<D[T]["types"]>
  ? CellFilter<D[T]["types"][P], P extends keyof D[T]["row"] ? D[T]["row"][P] : never, D[T]["types"]>
  : P extends Name<D[T]["relations"]> ? RelationFilter<D, T, P>
  : P extends `${infer R}.${infer Rest}` ? R extends Name<D[T]["relations"]> ? PathFilter<D, Far<D, T, R>, Rest> : never
  : never;

type RelationFilter<D extends TablesType<D>, T extends Name<D>, R extends Name<D[T]["relations"]>> =
  | {
    $some?: FilterOf<D, Far<D, T, R>>;
    $none?: FilterOf<D, Far<D, T, R>>;
    $every?: FilterOf<D, Far<D, T, R>>;
  }
  | (D[T]["relations"][R]["many"] extends true ? never : { $is: D[Far<D, T, R>]["conditions"] });

/** What every object has under this name: without it, a column `constructor` would refuse each filter. */
type Inherited<P> = P extends "constructor" ? Object["constructor"] : never;

/** The `where` of a list: a JSON object. */
export type FilterOf<D extends TablesType<D>, T extends Name<D>> =
  & { [P in FilterPath<D, T>]?: PathFilter<D, T, P> | Inherited<P> }
  & {
    $and?: readonly FilterOf<D, T>[];
    $or?: readonly FilterOf<D, T>[];
    $not?: FilterOf<D, T>;
    $search?: string;
    $is?: D[T]["conditions"];
  };

type Sortable<D extends TablesType<D>, T extends Name<D>, P> = P extends Name<D[T]["types"]>
  ? D[T]["types"][P] extends "json" | "text[]" ? never : P
  : P extends `${infer R}.${infer Rest}`
    ? R extends Name<D[T]["relations"]> ? `${R}.${Sortable<D, Far<D, T, R>, Rest>}` : never
  : never;
type Direction = "" | ".asc" | ".desc" | `.${"asc" | "desc"}.${"nullsfirst" | "nullslast"}`;

/** One key of an order, such as `due_on.desc.nullslast`. */
export type OrderKeyOf<D extends TablesType<D>, T extends Name<D>> = `${Sortable<D, T, ColumnPath<D, T>>}${Direction}`;

/** One path of `with`, such as `comments.author`. */
export type RelationPathOf<
  D extends TablesType<D>,
  T extends Name<D>,
  N extends Depth = D[T]["depth"],
  Visited = never,
> =
  | {
    [R in Name<D[T]["relations"]>]: Far<D, T, R> extends Visited ? never
      :
        | R
        | (N extends 0 | 1 ? never
          : `${R}.${RelationPathOf<D, Far<D, T, R>, Less[N], Exclude<Visited | T, Far<D, T, R>>>}`);
  }[Name<D[T]["relations"]>]
  | Name<D[T]["users"]>;

type First<W> = W extends `${infer R}.${string}` ? R : W;
type Behind<W, R> = R extends string ? W extends `${R}.${infer Rest}` ? Rest : never : never;

/** A row with the relations and users of the paths `W` in it. */
export type RowWithOf<D extends TablesType<D>, T extends Name<D>, W> =
  & D[T]["row"]
  & {
    [R in First<W> & Name<D[T]["relations"]>]: D[T]["relations"][R]["many"] extends true
      ? RowWithOf<D, Far<D, T, R>, Behind<W, R>>[]
      : RowWithOf<D, Far<D, T, R>, Behind<W, R>> | (D[T]["relations"][R]["null"] extends true ? null : never);
  }
  & {
    // The cursor for the rest, if there are more rows than a response embeds.
    [R in First<W> & Name<D[T]["relations"]> as D[T]["relations"][R]["many"] extends true ? `${R}_next` : never]?:
      string;
  }
  & { [U in First<W> & Name<D[T]["users"]>]: D[T]["users"][U] };
