// The grid of a table: what its other scripts share, new rows, deletion, the filter builder.
// Rows are saved by the API under the ETag of the row as it is shown.
"use strict";

const grid = document.querySelector("table.grid");
const AS_JSON = new Set(["integer", "float", "boolean", "json", "text[]"]);
const REFUSALS = {
  4: "You no longer have permission to do this.",
  5: "The service is unavailable. Try again.",
  404: "This environment or table no longer exists, or you have no access to it.",
  429: "Too many requests. Try again in a moment.",
};
const ENDED = "Your session has ended. Sign in in another tab, then try again here.";
const IS_EXACT = typeof JSON.rawJSON === "function";

// A number that a double cannot hold stays as it is written, so that JSON.stringify writes all its digits again.
function parse(text) {
  if (!IS_EXACT) return JSON.parse(text);
  return JSON.parse(text, (_, value, { source }) =>
    typeof value === "number" && String(value) !== source ? JSON.rawJSON(source) : value,
  );
}

async function send(method, id, body, etag) {
  const headers = { "X-CSRFToken": JSON.parse(document.body.getAttribute("hx-headers"))["X-CSRFToken"] };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (etag) headers["If-Match"] = etag;
  const url = grid.dataset.rows + (id ? `/${encodeURIComponent(id)}` : "");
  let response;
  try {
    response = await fetch(url, { method, headers, body });
  } catch {
    return { status: 0, etag: null, text: "", error: { message: "The service cannot be reached. Try again." } };
  }
  if (response.redirected || response.status === 401) return { status: 401, etag: null, text: "", error: { message: ENDED } };
  const isJson = response.headers.get("Content-Type")?.startsWith("application/json");
  return {
    status: response.status,
    etag: response.headers.get("ETag"),
    text: isJson ? await response.text() : "",
    error: isJson ? undefined : { message: REFUSALS[response.status] ?? REFUSALS[Math.floor(response.status / 100)] ?? "" },
  };
}

function errorOf(answer) {
  return answer.error ?? JSON.parse(answer.text).error;
}

function messageOf(error, key) {
  const own = (error.fields ?? []).filter((field) => field.field === key).map((field) => field.message);
  return own.length ? own.join(" ") : [error.message, ...(error.fields ?? []).map((field) => field.message)].join(" ");
}

// The JSON text of a value of this column. What cannot be read as JSON is sent as text, for the API to refuse.
function jsonText(type, text) {
  if (type === "timestamp") return JSON.stringify(inUtc(text));
  if (!AS_JSON.has(type)) return JSON.stringify(text);
  try {
    JSON.parse(text);
    return text;
  } catch {
    return JSON.stringify(text);
  }
}

// A time without a zone is in UTC, as times are shown and edited.
function inUtc(text) {
  const local = /^\s*(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d)(:\d\d(?:\.\d+)?)?\s*$/;
  return text.replace(local, (_, date, time, seconds = ":00") => `${date}T${time}${seconds}Z`);
}

// The text of a control, or the id of what was chosen in it.
function valueIn(input) {
  if (input.dataset.id !== undefined) return input.dataset.id;
  return input.type === "datetime-local" ? inUtc(input.value) : input.value;
}

function show(cell, value) {
  const isNull = value === null || value === undefined;
  const isText = typeof value === "string" && cell.dataset.type !== "json";
  const text = isNull ? "" : isText ? value : JSON.stringify(value);
  if (text === cell.dataset.value && isNull === cell.hasAttribute("data-null")) return;
  cell.dataset.value = text;
  cell.toggleAttribute("data-null", isNull);
  const shown = document.createElement(isNull ? "span" : "bdi");
  const isTime = cell.dataset.type === "timestamp";
  shown.textContent = isNull ? "null" : isTime ? text.slice(0, 19).replace("T", " ") : text.slice(0, 200);
  if (isTime) cell.title = text;
  if (isNull) shown.className = "soft";
  cell.querySelector(".cell").replaceChildren(shown);
  if (pickerUrl(cell.dataset.key, cell.dataset.type)) showLabel(cell, shown);
}

const labelsByUrl = new Map(); // promises of the labels of referenced rows

async function labelAt(url, id) {
  const response = await fetch(url);
  if (!response.ok || response.redirected) return "";
  return (await response.json()).data.find((each) => each.id === id)?.label ?? "";
}

// A reference shows the first text of the row, a user its email. The id stays the value and the title.
async function showLabel(cell, shown) {
  const id = cell.dataset.value;
  const link = cell.querySelector(":scope > a:not(.why)");
  cell.title = id;
  if (!id) return link?.remove();
  const url = `${pickerUrl(cell.dataset.key, cell.dataset.type)}?q=${encodeURIComponent(id)}`;
  if (!labelsByUrl.has(url)) labelsByUrl.set(url, labelAt(url, id).catch(() => labelsByUrl.delete(url) && ""));
  const label = (await labelsByUrl.get(url)) || id;
  shown.textContent = label;
  if (!link) return;
  const isUser = cell.dataset.type === "user";
  const target = new URL(isUser ? id : link.href, link.href);
  if (!isUser) target.searchParams.set("where", JSON.stringify({ id }));
  link.href = target;
  link.setAttribute("aria-label", `${isUser ? "User" : "Row"} ${label}`);
}

function showRow(row, answer) {
  if (!IS_EXACT && /\d{16}/.test(answer.text)) return location.reload();
  const values = parse(answer.text);
  row.dataset.etag = answer.etag ?? "";
  row.classList.remove("gone");
  for (const cell of row.querySelectorAll("td[data-key]")) show(cell, values[cell.dataset.key]);
}

// A message beside a cell; without text it is removed.
function showProblem(cell, text) {
  cell.querySelector(".cell-problem")?.remove();
  cell.toggleAttribute("aria-invalid", Boolean(text));
  if (!text) return;
  cell.setAttribute("aria-invalid", "true");
  const problem = document.createElement("p");
  problem.className = "problem cell-problem";
  problem.setAttribute("role", "alert");
  const shown = document.createElement("bdi");
  shown.textContent = text;
  problem.append(shown);
  cell.append(problem);
}

function showStatus(text, isProblem = true, details = []) {
  const status = document.getElementById("grid-status");
  status.className = isProblem ? "problem" : "notice";
  status.hidden = !text;
  status.textContent = text;
  if (!details.length) return;
  const list = document.createElement("ul");
  for (const detail of details) {
    const shown = document.createElement("bdi");
    shown.textContent = detail;
    list.appendChild(document.createElement("li")).append(shown);
  }
  status.append(list);
}

function selected() {
  return [...grid.querySelectorAll("[data-select]:checked")].map((box) => box.closest("tr"));
}

let isDeleting = false;

async function deleteSelected() {
  const rows = selected();
  if (!confirm(`Delete ${countOf(rows.length)}? This cannot be undone.`)) return;
  const problems = [];
  isDeleting = true;
  enableDelete();
  for (const [index, row] of rows.entries()) {
    showStatus(`Deleting row ${index + 1} of ${rows.length} …`, false);
    const answer = await send("DELETE", row.dataset.id, undefined, row.dataset.etag);
    if (answer.status === 204) row.remove();
    else problems.push(`${row.dataset.id}: ${messageOf(errorOf(answer), "")}`);
  }
  const done = rows.length - problems.length;
  showStatus(`${problems.length ? `${done} of ` : ""}${countOf(rows.length)} deleted.`, problems.length > 0, problems);
  isDeleting = false;
  enableDelete();
  if (done) await reloadRows(0).catch(() => showLiveState("The table has changed.", true));
  keepFocus();
}

function enableDelete() {
  const boxes = grid.querySelectorAll("[data-select]");
  const count = selected().length;
  document.querySelector("[data-delete-rows]").disabled = isDeleting || !count;
  grid.querySelector("[data-select-all]").checked = count > 0 && count === boxes.length;
}

function empty(form) {
  form.reset();
  for (const input of form.querySelectorAll("[data-id]")) delete input.dataset.id;
  showErrors(form, { message: "" });
}

// At the fields of a new row; an error of no field above the buttons. Returns the first invalid control.
function showErrors(form, error) {
  let first;
  for (const field of form.querySelectorAll("[data-field]")) {
    const wrong = (error.fields ?? []).filter((each) => each.field === field.dataset.field);
    const control = field.querySelector("input, select, textarea");
    const problem = field.querySelector(".problem");
    problem.hidden = !wrong.length;
    problem.textContent = wrong.map((each) => each.message).join(" ");
    control.setAttribute("aria-invalid", String(wrong.length > 0));
    if (wrong.length) first ??= control;
  }
  const whole = form.querySelector("[data-new-row-problem]");
  whole.textContent = first ? "" : messageOf(error, "");
  whole.hidden = !whole.textContent;
  return first;
}

// The table may have another order or filter than the new row, or more pages.
async function showInserted(answer) {
  const { id } = parse(answer.text);
  await reloadRows(5000);
  const row = rowWith(id);
  if (row) {
    remember([{ id, isNew: true, after: answer.etag }]);
    row.scrollIntoView({ block: "nearest" });
    return showStatus("The row is inserted.", false);
  }
  showStatus("The row is inserted. This page does not show it.", false);
  const link = document.createElement("a");
  link.href = `?${new URLSearchParams({ where: JSON.stringify({ id }) })}`;
  link.textContent = "Show it";
  document.getElementById("grid-status").append(" ", link);
}

async function insert(event) {
  event.preventDefault();
  const form = event.target;
  const fields = [...form.querySelectorAll("[data-field]")];
  const submit = form.querySelector("[type=submit]");
  submit.disabled = true; // until the response, so that a second click adds no second row
  for (const field of fields) await pickers.get(field.querySelector("input"))?.takeSelected();
  const members = fields
    .map((field) => [field, valueIn(field.querySelector("input, select, textarea"))])
    .filter(([, value]) => value !== "")
    .map(([field, value]) => `${JSON.stringify(field.dataset.field)}: ${jsonText(field.dataset.type, value)}`);
  const answer = await send("POST", null, `{${members.join(", ")}}`);
  submit.disabled = false;
  if (answer.status === 201) {
    empty(form);
    form.closest("dialog").close();
    return showInserted(answer).catch(() => location.reload());
  }
  (showErrors(form, errorOf(answer)) ?? submit).focus();
}

const AS_TEXT = new Set(["$in", "$icontains"]);

// The control for the value of a condition, by the type of its column.
function showValueControl(builder) {
  const column = builder.querySelector("[data-builder-column]");
  const { type, values } = column.selectedOptions[0].dataset;
  const operator = builder.querySelector("[data-builder-operator]");
  const isText = AS_TEXT.has(operator.value);
  const input = controlFor(isText ? "text" : type, "", { values: !isText && values ? values.split(",") : undefined });
  input.setAttribute("aria-label", "Value");
  const url = isText ? null : pickerUrl(column.value, type);
  const place = builder.querySelector("[data-builder-value]");
  for (const name of ["input", "blur"]) input.addEventListener(name, () => input.setCustomValidity(""));
  place.replaceChildren(url ? withPicker(input, url) : input);
  place.hidden = "operand" in operator.selectedOptions[0].dataset;
}

function operandOf(type, operator, text) {
  if (operator.value === "$null") return operator.dataset.operand === "true";
  const value = (part) => parse(jsonText(type, part));
  return operator.value === "$in" ? text.split(",").map((part) => value(part.trim())) : value(text);
}

async function addCondition(builder) {
  const column = builder.querySelector("[data-builder-column]");
  const operator = builder.querySelector("[data-builder-operator]").selectedOptions[0];
  const input = builder.querySelector("[data-builder-value]").querySelector("input, select, textarea");
  await pickers.get(input)?.takeSelected();
  const { type } = column.selectedOptions[0].dataset;
  const isMissing = !("operand" in operator.dataset) && type !== "text" && valueIn(input) === "";
  input.setCustomValidity(isMissing ? "Enter a value." : "");
  if (!input.reportValidity()) return false;
  const where = document.getElementById("where");
  let conditions;
  try {
    conditions = parse(where.value || "{}");
  } catch {
    where.setCustomValidity("This is not JSON. Correct it or clear it first.");
    return where.reportValidity();
  }
  const operand = operandOf(type, operator, valueIn(input));
  const known = conditions[column.value];
  const isObject = known !== null && typeof known === "object" && !Array.isArray(known) && !JSON.isRawJSON?.(known);
  conditions[column.value] = { ...(isObject ? known : known === undefined ? {} : { $eq: known }), [operator.value]: operand };
  where.value = JSON.stringify(conditions);
  return true;
}

if (grid.hasAttribute("data-editable")) {
  grid.addEventListener("change", (event) => {
    if (event.target.matches("[data-select-all]")) {
      for (const box of grid.querySelectorAll("[data-select]")) box.checked = event.target.checked;
    }
    enableDelete();
  });
  document.querySelector("[data-delete-rows]").addEventListener("click", deleteSelected);
  const dialog = document.getElementById("new-row");
  document.querySelector("[data-new-row]").addEventListener("click", () => dialog.showModal());
  dialog.querySelector("[data-close]").addEventListener("click", () => {
    empty(dialog.querySelector("form"));
    dialog.close();
  });
  dialog.querySelector("form").addEventListener("submit", insert);
}
const builder = document.querySelector("[data-builder]");
builder.hidden = false;
builder.querySelector("[data-builder-add]").addEventListener("click", () => addCondition(builder));
builder.addEventListener("change", (event) => {
  if (event.target.matches("[data-builder-column], [data-builder-operator]")) showValueControl(builder);
});
builder.querySelector("[data-builder-value]").addEventListener("keydown", async (event) => {
  if (event.key !== "Enter") return;
  event.preventDefault();
  if (await addCondition(builder)) builder.form.requestSubmit();
});
const whereField = document.getElementById("where");
whereField.addEventListener("input", () => whereField.setCustomValidity(""));
