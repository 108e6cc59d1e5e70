// The front end. `deno check app.js` finds misspelled tables, columns and relations.
/** @import { Row, RowWith, Tables } from "./types.ts" */
import { createClient, service } from "./config.js";

/** @type {import("./config.js").PlatformClient<Tables>} */
const client = createClient(service);
/** @type {import("./config.js").User | null} */
let me = null;
/** @type {RowWith<"organizations", "owner"> | null} The one that is shown. */
let organization = null;
let shown = new AbortController();
/** @type {Map<string, Row<"deals">>} */
const deals = new Map();

/** @param {string} id @returns {any} */
const find = (id) => document.getElementById(id);

/**
 * A list item. Texts become text nodes, so nobody's input is markup.
 * @param {string | null | undefined} text @param {HTMLElement[]} controls
 */
function item(text, ...controls) {
  const [line, label] = [document.createElement("li"), document.createElement("span")];
  label.textContent = text ?? "(deleted)";
  line.append(label, ...controls);
  return line;
}

/** @param {string} label @param {() => Promise<unknown>} action */
function button(label, action) {
  const made = document.createElement("button");
  made.textContent = label;
  made.onclick = () => attempt(action);
  return made;
}

/** @param {string[]} options @param {string} value @param {string} label @param {(value: any) => Promise<unknown>} action */
function select(options, value, label, action) {
  const made = document.createElement("select");
  made.append(...options.map((option) => new Option(option, option, false, option === value)));
  made.ariaLabel = label;
  made.onchange = async () => await attempt(() => action(made.value)) || (made.value = value);
  return made;
}

/** Does it, or says why not. @param {() => Promise<unknown>} action */
async function attempt(action) {
  find("message").textContent = "";
  try {
    await action();
    return true;
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") return false;
    find("message").textContent = error instanceof Error ? error.message : String(error);
    return false;
  }
}

/** @param {string} id @param {(values: any, button: any) => Promise<unknown>} action */
function onSubmit(id, action) {
  find(id).onsubmit = async (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const values = Object.fromEntries(new FormData(find(id)));
    if (await attempt(() => action(values, event.submitter))) find(id).reset();
  };
}

async function showOrganizations() {
  const found = await client.rows("organizations").list({ order: "name", with: ["owner"], limit: 100 });
  const invitations = await client.rows("invitations").list({ where: { email: { $ieq: me?.email } }, limit: 100 });
  const invited = new Map(invitations.data.map((each) => [each.organization_id, each.id]));
  find("organizations").replaceChildren(...found.data.map((each) => {
    const id = invited.get(each.id);
    return item(each.name, id ? button("Join", () => join(each.id, id)) : button("Open", () => open(each)));
  }));
}

/** Becomes a member, and the invitation goes; or neither. @param {string} organization_id @param {string} invitation */
async function join(organization_id, invitation) {
  await client.batch([
    { op: "insert", table: "members", values: { organization_id } },
    { op: "delete", table: "invitations", id: invitation },
  ]);
  await showOrganizations();
}

/** @param {RowWith<"organizations", "owner">} chosen */
async function open(chosen) {
  close();
  organization = chosen;
  find("title").textContent = chosen.name;
  for (const part of document.querySelectorAll(".organization")) part.toggleAttribute("hidden", false);
  const { signal } = shown;
  attempt(() => followDeals(chosen.id, signal));
  attempt(() => followActivity(chosen.id, signal));
  await showMembers();
}

function close() {
  shown.abort();
  shown = new AbortController();
  organization = null;
  for (const part of document.querySelectorAll(".organization")) part.toggleAttribute("hidden", true);
}

async function showMembers() {
  if (!organization) return;
  const where = { organization_id: organization.id };
  const members = await client.rows("members").list({ where, order: "created_at", with: ["user"], limit: 100 });
  const invitations = await client.rows("invitations").list({ where, order: "email", limit: 100 });
  const isMine = organization.owner_id === me?.id;
  /** @param {() => Promise<unknown>} action */
  const then = (action) => async () => (await action(), await showMembers());
  const lines = members.data.map((each) => {
    const role = select(["member", "admin"], each.role, "Role", (value) => client.rows("members").update(each.id, { role: value }));
    const remove = button("Remove", then(() => client.rows("members").delete(each.id)));
    return isMine ? item(each.user?.name, role, remove) : item(`${each.user?.name}: ${each.role}`);
  });
  const waiting = invitations.data.map((each) =>
    item(`${each.email} is invited`, button("Withdraw", then(() => client.rows("invitations").delete(each.id))))
  );
  find("members").replaceChildren(item(`${organization.owner?.name}: owner`), ...lines, ...waiting);
}

/** Shows deals and totals, and each change of them. @param {string} organization_id @param {AbortSignal} signal */
async function followDeals(organization_id, signal) {
  const where = { organization_id };
  for await (const change of client.rows("deals").changes({ where }, { signal })) {
    if (change.type === "row") deals.set(change.id, change.row);
    else if (change.type === "gone") deals.delete(change.id);
    else {
      deals.clear();
      for await (const deal of client.rows("deals").each({ where, order: "created_at" })) deals.set(deal.id, deal);
    }
    const totals = await client.rows("deals").aggregate({ where, group: ["stage"], count: true, sum: ["value"], order: "stage" });
    if (signal.aborted) return;
    find("totals").replaceChildren(...totals.data.map((each) => item(`${each.stage}: ${each.count} worth ${each.sum_value}`)));
    find("deals").replaceChildren(...[...deals.values()].map((deal) => {
      /** @param {"open" | "won" | "lost"} stage */
      const move = (stage) => client.rows("deals").update(deal.id, { stage });
      return item(`${deal.title}, ${deal.value}`, select(["open", "won", "lost"], deal.stage, `Stage of ${deal.title}`, move));
    }));
  }
}

/** @param {string} organization_id @param {AbortSignal} signal */
async function followActivity(organization_id, signal) {
  const where = { organization_id };
  for await (const _ of client.rows("activity").changes({ where }, { signal })) {
    const newest = await client.rows("activity").list({ where, order: "at.desc", limit: 10 });
    if (signal.aborted) return;
    find("activity").replaceChildren(...newest.data.map((each) => item(each.text)));
  }
}

onSubmit("sign-in", async ({ email, password, name }, { value }) => {
  if (value !== "up") return await client.auth.signIn({ email, password });
  await client.auth.signUp({ email, password, name });
  find("message").textContent = "Open the link in your email, then sign in.";
});
onSubmit("found", async (values) => {
  await client.rows("organizations").insert(values);
  await showOrganizations();
});
onSubmit("invite", async (values) => {
  const run = await client.functions.invoke("invite", { ...values, organization_id: organization?.id });
  if (run.status === "failed") throw new Error(run.error);
  await showMembers();
});
onSubmit("add", (values) => client.rows("deals").insert({ ...values, organization_id: organization?.id }));
find("sign-out").onclick = () => attempt(() => client.auth.signOut());

client.auth.onChange((user) => {
  if (user?.id === me?.id && find("sign-in").hidden !== find("signed-in").hidden) return;
  me = user;
  close();
  find("me").textContent = user?.name ?? "";
  find("sign-in").hidden = user !== null;
  find("sign-out").hidden = find("signed-in").hidden = user === null;
  find("organizations").replaceChildren();
  if (user) attempt(showOrganizations);
});
