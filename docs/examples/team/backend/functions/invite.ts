// Invites everybody in a text such as "ada@example.com, bob@example.com", or nobody.
// It runs with the caller's permissions: the rules refuse it to people who are not admins.
export default async (input: any, ctx: any) => {
  const emails = new Set<string>(String(input?.emails ?? "").toLowerCase().split(/[\s,;]+/).filter(Boolean));
  if (emails.size === 0) throw new Error("Write at least one email.");
  await ctx.rows.batch([...emails].map((email) => (
    { op: "insert", table: "invitations", values: { organization_id: input.organization_id, email } }
  )));
  return { invited: emails.size };
};
