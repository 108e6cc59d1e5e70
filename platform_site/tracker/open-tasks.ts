/** The caller's own open tasks, the next due first. Rows are read as whoever calls: nobody sees another's. */
export default async (input: { limit?: number } | null, ctx: any) => {
  const page = await ctx.rows.list("tasks", {
    where: { done: false },
    order: "due_on.asc.nullslast",
    limit: input?.limit ?? 20,
    with: "list",
  });
  return page.data.map((task: any) => ({ title: task.title, due_on: task.due_on, list: task.list?.name ?? null }));
};
