// Writes the feed of an organization. Users may read it, but no rule lets them write it.
export default async (event: any, ctx: any) => {
  const { record, old_record } = event.data;
  if (event.type === "deals.update" && record.stage === old_record.stage) return;
  const text = `${record.title} ${event.type === "deals.insert" ? "was added" : `is ${record.stage}`}`;
  // An event may arrive twice, and before an earlier one: hence its id and its time.
  const row = { organization_id: record.organization_id, event: event.id, at: event.timestamp, text };
  await ctx.rows.upsert("activity", row, { onConflict: "event" });
};
