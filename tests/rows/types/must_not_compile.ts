// What the types of document.json for the role `user` refuse: each line after a directive must be an error, and a
// directive without an error is one itself.
import type { Filter, Insert, OrderKey, RelationPath, Row, RowWith, Update } from "./types.ts";
// @ts-expect-error table
type A = Row<"tsaks">;
// @ts-expect-error hidden table
type B = Row<"vault">;
// @ts-expect-error hidden column
type C = Row<"tasks">["internal"];
// @ts-expect-error relation
type D = RowWith<"tasks", "lits">;
// @ts-expect-error relation inside
type E = RowWith<"tasks", "list.nope">;
const filters: Filter<"tasks">[] = [
  // @ts-expect-error column
  { dnoe: false },
  // @ts-expect-error hidden column
  { internal: "x" },
  // @ts-expect-error operator
  { title: { $startWith: "A" } },
  // @ts-expect-error operator of another type
  { done: { $gt: false } },
  // @ts-expect-error value
  { done: "false" },
  // @ts-expect-error enum
  { stage: "opn" },
  // @ts-expect-error enum in
  { stage: { $in: ["opn"] } },
  // @ts-expect-error column of another type
  { due_on: { $lt: { $column: "title" } } },
  // @ts-expect-error unknown column
  { due_on: { $lt: { $column: "ends_on" } } },
  // @ts-expect-error path
  { "list.nme": "x" },
  // @ts-expect-error hidden col in path
  { "list.secret": "x" },
  // @ts-expect-error to many path
  { "comments.body": "x" },
  // @ts-expect-error quantifier
  { comments: { $any: {} } },
  // @ts-expect-error inner column
  { comments: { $some: { boddy: "x" } } },
  // @ts-expect-error condition with variable
  { list: { $is: "mine" } },
  // @ts-expect-error to-many has no $is
  { comments: { $is: "named" } },
  // @ts-expect-error no such condition
  { $is: "named" },
  // @ts-expect-error combinator
  { $ro: [] },
  // @ts-expect-error inside or
  { $or: [{ dnoe: true }] },
  // @ts-expect-error json operator
  { meta: { $hass: "x" } },
  // @ts-expect-error relation as a value
  { list: "lst_1" },
  // @ts-expect-error not not
  { title: { $not: { $not: { $eq: "x" } } } },
];
// @ts-expect-error order
const o1: OrderKey<"tasks"> = "titel";
// @ts-expect-error direction
const o2: OrderKey<"tasks"> = "title.down";
// @ts-expect-error json has no order
const o3: OrderKey<"tasks"> = "meta.asc";
// @ts-expect-error returns to a table
const r1: RelationPath<"tasks"> = "comments.task";
// @ts-expect-error required
const i1: Insert<"tasks"> = { title: "a" };
// @ts-expect-error set by the rule
const i2: Insert<"tasks"> = { title: "a", list_id: "x", owner_id: "usr_1" };
// @ts-expect-error not null
const u1: Update<"tasks"> = { title: null };
// @ts-expect-error operator
const u2: Update<"tasks"> = { title: { $inc: 1 } };
// @ts-expect-error read-only
const u3: Update<"tasks"> = { created_at: "x" };
// @ts-expect-error excluded from updates
const u5: Update<"tasks"> = { owner_id: "usr_1" };
// @ts-expect-error the cell may be unreadable
const n1: string = ({} as Row<"tasks">).notes;
// @ts-expect-error the list may be unreadable
const n2: string = ({} as RowWith<"tasks", "list">).list.name;
// @ts-expect-error not in the response without `with`
const n3 = ({} as Row<"tasks">).list;
// @ts-expect-error no update rule
const u4: Update<"comments"> = { body: "x" };
// @ts-expect-error no insert rule
const i3: Insert<"lists"> = { name: "x" };
console.log(filters, o1, o2, o3, r1, i1, i2, i3, u1, u2, u3, u4, u5, n1, n2, n3);
export type { A, B, C, D, E };
