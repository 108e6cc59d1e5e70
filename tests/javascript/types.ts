// What the client's types accept and refuse, for the tables of tests/rows/types/document.json: a directive without an
// error below it is an error itself. The program is compiled and never run.
import { createClient, type FunctionContext, PlatformError } from "./client.js";
import type { Tables } from "./types.ts";
const client = createClient<Tables>({ url: "http://x", key: "pk_1" });
const tasks = client.rows("tasks");
const page = await tasks.list({
  where: { done: false },
  order: ["due_on.desc", "list.name"],
  with: ["list", "comments"],
  limit: 5,
});
const name: string | undefined = page.data[0].list?.name;
const body: string = page.data[0].comments[0].body;
const plain = await tasks.list();
const t: string = plain.data[0].title;
// @ts-expect-error not embedded
plain.data[0].list;
const few = await tasks.list({ columns: ["title"], with: "list" });
const t2: string = few.data[0].title;
few.data[0].list?.name;
// @ts-expect-error not chosen
few.data[0].done;
const most = await tasks.list({ columns: ["*", "-title"], with: "list" });
const d2: boolean = most.data[0].done;
most.data[0].list?.name;
// @ts-expect-error left out
most.data[0].title;
const all: string = (await tasks.get("x", { columns: "*" })).title;
// @ts-expect-error no such column
await tasks.list({ columns: ["*", "-titel"] });
// @ts-expect-error `id` is always there
await tasks.list({ columns: ["*", "-id"] });
for await (const row of tasks.each({ where: { title: { $startsWith: "a" } } })) row.title.length;
const one = await tasks.get("x", { with: "parent.list" });
one.parent?.list?.name;
const made = await tasks.insert({ title: "a", list_id: "b" });
made.title.length;
const many = await tasks.insert([{ title: "a", list_id: "b" }]);
many[0].title.length;
await tasks.update("x", { done: true, price: { $inc: 1 } }, { ifMatch: made });
await tasks.upsert({ title: "a", list_id: "b" }, ["list_id", "title"]);
await tasks.deleteAll({ where: { done: true } });
const groups = await tasks.aggregate({ group: ["stage", "created_at.month"], count: true, sum: ["price"] });
for (const { stage, created_at_month, count, sum_price } of groups.data) {
  console.log(stage, created_at_month, count, sum_price);
}
const total: number = groups.data[0].count;
const assigned: number = (await tasks.aggregate({ count_distinct: ["list_id"] })).data[0].count_distinct_list_id;
// @ts-expect-error a sum may be null or a decimal's text
const points: number = groups.data[0].sum_price;
// @ts-expect-error misspelled result
groups.data[0].cnt;
const request: Parameters<typeof tasks.aggregate>[0] = { count: true };
(await tasks.aggregate(request)).data[0].sum_price;
await tasks.aggregate({ group: ["created_at.hour", "due_on.day"], min: ["title"], having: { min_title: "a" } });
// @ts-expect-error a date has no hours
await tasks.aggregate({ group: ["due_on.hour"] });
// @ts-expect-error a decimal has no hours
await tasks.aggregate({ group: ["price.hour"] });
// @ts-expect-error misspelled column of the filter
await tasks.aggregate({ count: true, where: { dnoe: false } });
// @ts-expect-error no sum of texts
await tasks.aggregate({ sum: ["title"] });
// @ts-expect-error misspelled
await tasks.aggregate({ cuont: true });
await client.batch([{ op: "insert", table: "tasks", values: { title: "a", list_id: { $ref: "l.id" } } }]);
await client.batch([{ op: "update", table: "tasks", id: "x", values: { done: true }, if_match: made }]);
const run = await client.functions.invoke<{ sum: number }>("sum", { a: 1 });
run.output?.sum.toFixed();
// @ts-expect-error misspelled table
client.rows("tsaks");
// @ts-expect-error misspelled column
await tasks.list({ where: { dnoe: false } });
// @ts-expect-error misspelled relation
await tasks.list({ with: ["lits"] });
// @ts-expect-error an unknown relation of a subscription
tasks.changes({ with: "lits" });
for await (const change of tasks.changes({ with: "list" })) if (change.type === "row") change.row.list?.id;
// @ts-expect-error misspelled order
await tasks.list({ order: "titel" });
// @ts-expect-error misspelled column
await tasks.list({ columns: ["titel"] });
// @ts-expect-error missing column
await tasks.insert({ title: "a" });
// @ts-expect-error misspelled
await tasks.update("x", { titel: "a" });
// @ts-expect-error no insert rule
await client.rows("lists").insert({ name: "x" });
// @ts-expect-error misspelled
await tasks.aggregate({ sum: ["prize"] });
// @ts-expect-error misspelled
await client.batch([{ op: "insert", table: "tasks", values: { titel: "a", list_id: "x" } }]);
const any = createClient({ url: "http://x", key: "pk_1" });
const p = await any.rows("whatever").list({
  where: { a: 1, "b.c": { $gt: 2 }, $or: [{ x: 1 }] },
  with: "x.y",
  columns: ["a"],
  order: "a.desc",
});
p.data[0].anything.deep;
(await any.rows("w").aggregate({ group: ["a.month"], sum: ["b"], count: true })).data[0].sum_b;
await any.rows("w").insert({ a: 1 });
await any.rows("w").update("x", { a: { $inc: 1 } });
await any.batch([{ op: "delete", table: "x", id: "y" }]);
console.log(name, body, t, t2, PlatformError);

export async function handler(input: { id: string }, ctx: FunctionContext<Tables>): Promise<unknown> {
  const { data, next_cursor } = await ctx.rows.list("tasks", { where: { done: false }, with: "list", order: "due_on" });
  const one = await ctx.rows.get("tasks", input.id, { columns: ["title"] });
  const { data: [group] } = await ctx.rows.aggregate("tasks", { group: ["stage"], count: true });
  const added = await ctx.rows.insert("tasks", { title: "a", list_id: "b" });
  await ctx.rows.upsert("tasks", { title: "a", list_id: "b" }, { onConflict: ["list_id", "title"] });
  await ctx.rows.update("tasks", added.id, { done: true }, { ifMatch: '"x"' });
  const { ids } = await ctx.rows.updateMany("tasks", { where: { done: true } }, { done: false });
  await ctx.rows.removeMany("tasks", { where: {}, limit: 10 });
  await ctx.rows.remove("tasks", added.id);
  const { results } = await ctx.rows.batch([{ op: "delete", table: "tasks", id: added.id }]);
  const response = await ctx.fetch("https://example.com", { method: "POST", body: ctx.secrets.TOKEN });
  if (ctx.caller.kind === "user") console.log(ctx.caller.id, ctx.runId, response.status, results[0].status);
  // @ts-expect-error misspelled table
  await ctx.rows.list("tsaks");
  // @ts-expect-error misspelled column of the filter
  await ctx.rows.list("tasks", { where: { dnoe: false } });
  // @ts-expect-error misspelled column
  await ctx.rows.insert("tasks", { titel: "a", list_id: "b" });
  // @ts-expect-error not chosen
  one.done;
  // @ts-expect-error a kind that no caller has
  ctx.caller.kind === "staff";
  // @ts-expect-error an option that `ctx.fetch` does not take
  await ctx.fetch("https://example.com", { redirect: "follow" });
  return [data[0].list?.name, next_cursor, one.title, group.stage, group.count, ids];
}
export const untyped = async (_: unknown, { rows }: FunctionContext) => (await rows.list("any", { where: { a: 1 } })).data[0].b.c;
