// What the types of document.json for the role `user` accept.
import type { Filter, Insert, OrderKey, RelationPath, Row, RowWith, TableName, Update } from "./types.ts";

type Same<A, B> = (<X>() => X extends A ? 1 : 2) extends <X>() => X extends B ? 1 : 2 ? true : false;
const isSame = <_T extends true>() => {};

isSame<Same<TableName, "lists" | "tasks" | "comments" | "letters">>();
isSame<Same<Row<"letters">, never>>();
isSame<Same<Insert<"lists">, never>>();
isSame<Same<Row<"tasks">["due_on"], string | null>>();
isSame<Same<Row<"comments">["stars"], number>>();
isSame<Same<Row<"tasks">["notes"], string | null>>();
isSame<Same<Row<"tasks">["stage"], "open" | "won">>();
isSame<
  Same<
    RelationPath<"comments">,
    | "task"
    | "task.list"
    | "task.children"
    | "task.children.list"
    | "task.children.children"
    | "task.children.parent"
    | "task.parent"
    | "task.parent.list"
    | "task.parent.parent"
    | "task.parent.children"
  >
>();
isSame<Same<RelationPath<"letters">, never>>();

const filters: Filter<"tasks">[] = [
  {},
  { done: false, title: { $startsWith: "A" } },
  { due_on: null },
  { due_on: { $lt: { $column: "starts_on" } } },
  { title: { $ne: { $column: "stage" } } },
  { price: { $between: ["1.50", 3] } },
  { stage: { $in: ["open", null] } },
  { "list.name": { $iin: ["a", null] } },
  { "parent.parent.list.name": "x" },
  { comments: { $some: { stars: { $gte: 4 }, "task.list.name": "x" } } },
  { "parent.comments": { $none: {} } },
  { list: { $is: "named" } },
  { children: { $every: { done: true } } },
  { $or: [{ done: true }, { $not: { $and: [{ list_id: "x" }] } }], $search: "tea" },
  { tags: ["a"] },
  { tags: { $hasAny: ["a"], $not: { $has: "b" } } },
  { meta: { a: { b: [1, null] } } },
  { meta: { $contains: { a: 1 }, $null: false } },
  { title: { $not: { $like: "a%" } } },
];
const named: Filter<"lists"> = { $is: "named" };
const orders: OrderKey<"tasks">[] = [
  "title",
  "due_on.desc.nullslast",
  "list.name.asc",
  "parent.parent.list.created_at",
];

const whole: Insert<"tasks"> = { title: "a", list_id: "lst_1", internal: "x" };
const computed: Update<"tasks"> = { price: { $inc: "0.50" }, tags: { $add: ["a"] }, internal: null };

declare const found: RowWith<"tasks", "list" | "comments" | "parent.list">;
isSame<Same<(typeof found)["title"], string>>();
const name: string | undefined = found.list?.name;
const body: string = found.comments[0].body;
const deep: string | undefined = found.parent?.list?.name;
declare const comment: RowWith<"comments", "task">;
const title: string = comment.task.title;
console.log(filters, named, orders, whole, computed, name, body, deep, title);
