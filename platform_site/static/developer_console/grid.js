// The grid of a table: cells are edited in place and saved by the API under the ETag of the row as it is shown.
"use strict";

const grid = document.querySelector("table.grid");
const AS_JSON = new Set(["integer", "float", "boolean", "json", "text[]"]);
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
  const response = await fetch(url, { method, headers, body });
  if (response.redirected || response.status === 401) location.reload();
  const isJson = response.headers.get("Content-Type")?.startsWith("application/json");
  return {
    status: response.status,
    etag: response.headers.get("ETag"),
    text: isJson ? await response.text() : "",
    error: isJson ? undefined : { message: response.ok ? "" : "You may no longer do this." },
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
  if (!AS_JSON.has(type)) return JSON.stringify(text);
  try {
    JSON.parse(text);
    return text;
  } catch {
    return JSON.stringify(text);
  }
}

function show(cell, value) {
  const text = value === null || value === undefined ? "" : typeof value === "string" ? value : JSON.stringify(value);
  cell.dataset.value = text;
  cell.toggleAttribute("data-null", value === null || value === undefined);
  const shown = document.createElement(cell.hasAttribute("data-null") ? "span" : "bdi");
  shown.textContent = cell.hasAttribute("data-null") ? "null" : text.slice(0, 200);
  if (cell.hasAttribute("data-null")) shown.className = "soft";
  cell.querySelector(".cell").replaceChildren(shown);
}

function showRow(row, answer) {
  if (!IS_EXACT && /\d{16}/.test(answer.text)) return location.reload();
  const values = parse(answer.text);
  row.dataset.etag = answer.etag ?? "";
  for (const cell of row.querySelectorAll("td[data-key]")) show(cell, values[cell.dataset.key]);
}

function button(label, action, className = "") {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = label;
  made.className = className;
  made.addEventListener("click", action);
  return made;
}

function inputFor(cell) {
  const choices = cell.dataset.type === "boolean" ? ["true", "false"] : cell.dataset.values?.split(",");
  const input = document.createElement(choices ? "select" : cell.dataset.value.length > 60 ? "textarea" : "input");
  for (const choice of choices ?? []) input.append(new Option(choice, choice));
  input.value = cell.dataset.value;
  input.setAttribute("aria-label", cell.dataset.key);
  return input;
}

function close(cell) {
  cell.querySelector(".editor")?.remove();
  cell.querySelector(".cell").hidden = false;
  cell.classList.remove("editing");
  cell.focus();
}

function edit(cell) {
  const open = grid.querySelector("td.editing");
  if (open === cell) return;
  if (open) close(open);
  const row = cell.closest("tr");
  const editor = document.createElement("div");
  editor.className = "editor";
  const input = inputFor(cell);
  const problem = document.createElement("p");
  problem.className = "problem";
  problem.setAttribute("role", "alert");
  problem.hidden = true;
  const actions = document.createElement("div");
  actions.className = "tools";

  const save = async (text, etag = row.dataset.etag) => {
    const answer = await send("PATCH", row.dataset.id, `{${JSON.stringify(cell.dataset.key)}: ${text}}`, etag);
    if (answer.status === 200) {
      showRow(row, answer);
      return close(cell);
    }
    problem.hidden = false;
    if (answer.status === 412) return conflict(text);
    problem.textContent = messageOf(errorOf(answer), cell.dataset.key);
    input.setAttribute("aria-invalid", "true");
  };
  const conflict = async (text) => {
    const current = await send("GET", row.dataset.id);
    if (current.status !== 200) {
      problem.textContent = "The row no longer exists.";
      return;
    }
    const theirs = parse(current.text)[cell.dataset.key];
    const shown = document.createElement("bdi");
    shown.textContent = JSON.stringify(theirs);
    problem.replaceChildren("Somebody else changed this row. Its value is now ", shown, ".");
    actions.replaceChildren(
      button("Save mine", () => save(text, current.etag), "primary"),
      button("Keep theirs", () => {
        showRow(row, current);
        close(cell);
      }),
    );
  };

  actions.append(
    button("Save", () => save(jsonText(cell.dataset.type, input.value)), "primary"),
    button("Cancel", () => close(cell)),
  );
  if (cell.hasAttribute("data-nullable")) actions.append(button("Set null", () => save("null")));
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !(event.shiftKey && input.tagName === "TEXTAREA")) {
      event.preventDefault();
      save(jsonText(cell.dataset.type, input.value));
    }
  });
  editor.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close(cell);
    event.stopPropagation();
  });
  editor.append(input, problem, actions);
  cell.querySelector(".cell").hidden = true;
  cell.classList.add("editing");
  cell.append(editor);
  input.focus();
}

function move(cell, key) {
  const cells = [...cell.parentElement.querySelectorAll("td[tabindex]")];
  const across = { ArrowLeft: -1, ArrowRight: 1 }[key];
  if (across) return cells[cells.indexOf(cell) + across]?.focus();
  const row = key === "ArrowUp" ? cell.parentElement.previousElementSibling : cell.parentElement.nextElementSibling;
  row?.querySelector(`td[data-key="${CSS.escape(cell.dataset.key)}"]`)?.focus();
}

function selected() {
  return [...grid.querySelectorAll("[data-select]:checked")].map((box) => box.closest("tr"));
}

async function deleteSelected() {
  const rows = selected();
  if (!confirm(`Delete ${rows.length} row${rows.length === 1 ? "" : "s"}? This cannot be undone.`)) return;
  const status = document.getElementById("grid-status");
  const problems = [];
  for (const row of rows) {
    const answer = await send("DELETE", row.dataset.id, undefined, row.dataset.etag);
    if (answer.status === 204) row.remove();
    else problems.push(`${row.dataset.id}: ${messageOf(errorOf(answer), "")}`);
  }
  status.hidden = !problems.length;
  status.textContent = problems.join(" ");
  enableDelete();
}

function enableDelete() {
  document.querySelector("[data-delete-rows]").disabled = !selected().length;
}

async function insert(event) {
  event.preventDefault();
  const form = event.target;
  const fields = [...form.querySelectorAll("[data-field]")];
  const members = fields
    .map((field) => [field, field.querySelector("input, select").value])
    .filter(([, value]) => value !== "")
    .map(([field, value]) => `${JSON.stringify(field.dataset.field)}: ${jsonText(field.dataset.type, value)}`);
  const answer = await send("POST", null, `{${members.join(", ")}}`);
  if (answer.status === 201) return location.reload();
  const error = errorOf(answer);
  const whole = form.querySelector("[data-new-row-problem]");
  let named = 0;
  for (const field of fields) {
    const wrong = (error.fields ?? []).filter((each) => each.field === field.dataset.field);
    const problem = field.querySelector(".problem");
    named += wrong.length;
    problem.hidden = !wrong.length;
    problem.textContent = wrong.map((each) => each.message).join(" ");
  }
  whole.hidden = named > 0;
  whole.textContent = messageOf(error, "");
}

function addCondition(builder) {
  const column = builder.querySelector("[data-builder-column]");
  const operator = builder.querySelector("[data-builder-operator]").value;
  const value = builder.querySelector("[data-builder-value]").value;
  const where = document.getElementById("where");
  let conditions;
  try {
    conditions = parse(where.value || "{}");
  } catch {
    conditions = {};
  }
  const type = column.selectedOptions[0].dataset.type;
  const operand = operator === "$null" ? value !== "false" : parse(jsonText(type, value));
  const known = conditions[column.value];
  const isObject = known !== null && typeof known === "object" && !Array.isArray(known) && !JSON.isRawJSON?.(known);
  conditions[column.value] = { ...(isObject ? known : known === undefined ? {} : { $eq: known }), [operator]: operand };
  where.value = JSON.stringify(conditions);
}

if (grid.hasAttribute("data-editable")) {
  // A click selects a cell, the next one edits it: so does a double click, and a touch screen needs no double tap.
  let selectedBefore = null;
  grid.addEventListener("pointerdown", () => (selectedBefore = document.activeElement));
  grid.addEventListener("click", (event) => {
    const cell = event.target.closest("td[tabindex]");
    if (cell && cell === selectedBefore && !event.target.closest("a, .editor")) edit(cell);
  });
  grid.addEventListener("keydown", (event) => {
    const cell = event.target;
    if (!cell.matches("td[tabindex]")) return;
    if (event.key === "Enter" || event.key === "F2") {
      event.preventDefault();
      edit(cell);
    } else if (event.key.startsWith("Arrow")) {
      event.preventDefault();
      move(cell, event.key);
    }
  });
  grid.addEventListener("change", (event) => {
    if (event.target.matches("[data-select-all]")) {
      for (const box of grid.querySelectorAll("[data-select]")) box.checked = event.target.checked;
    }
    enableDelete();
  });
  document.querySelector("[data-delete-rows]").addEventListener("click", deleteSelected);
  const dialog = document.getElementById("new-row");
  document.querySelector("[data-new-row]").addEventListener("click", () => dialog.showModal());
  dialog.querySelector("[data-close]").addEventListener("click", () => dialog.close());
  dialog.querySelector("form").addEventListener("submit", insert);
}
const builder = document.querySelector("[data-builder]");
builder.hidden = false;
builder.querySelector("[data-builder-add]").addEventListener("click", () => addCondition(builder));
