// Changes of rows, one step at a time: cells, pasted ranges, new rows, fills. Each step can be undone.
// Every change is an API request with the last known ETag of the row.
"use strict";

const MAX_STEPS = 100;
const MAX_NEW_ROWS = 500;
const steps = []; // of entries, the latest step last
let working = Promise.resolve();

// One after another, so that an undo finds a complete step.
function enqueue(action) {
  working = working.then(action, action);
}

function remember(step) {
  if (!step.length) return;
  steps.push(step);
  if (steps.length > MAX_STEPS) steps.shift();
  showUndo();
}

function showUndo() {
  const undoButton = document.querySelector("[data-undo]");
  if (undoButton) undoButton.disabled = !steps.length;
}

function cellIn(row, key) {
  return row.querySelector(`td[data-key="${CSS.escape(key)}"]`);
}

function jsonOf(cell) {
  return cell.hasAttribute("data-null") ? "null" : jsonText(cell.dataset.type, cell.dataset.value);
}

// Saves JSON texts by column. A saved change is added to the step.
async function patchRow(row, values, step, etag = row.dataset.etag) {
  const before = Object.fromEntries(Object.keys(values).map((key) => [key, jsonOf(cellIn(row, key))]));
  const body = Object.entries(values).map(([key, text]) => `${JSON.stringify(key)}: ${text}`);
  const answer = await send("PATCH", row.dataset.id, `{${body.join(", ")}}`, etag);
  if (answer.status === 200) {
    showRow(row, answer);
    step?.push({ id: row.dataset.id, values: before, before: etag, after: row.dataset.etag });
  }
  return answer;
}

// Errors at the cells that caused them. `texts` says what was not saved, by column.
async function showRefusal(row, answer, texts, verb) {
  const entries = Object.entries(texts);
  if (answer.status === 412) {
    const current = await send("GET", row.dataset.id);
    if (current.status === 200) showRow(row, current);
    for (const [key, text] of entries) {
      showProblem(cellIn(row, key), `Someone else changed this row. Not ${verb}: ${text}`);
    }
    return;
  }
  const error = errorOf(answer);
  const named = entries.filter(([key]) => (error.fields ?? []).some((field) => field.field === key));
  for (const [key, text] of named.length ? named : entries.slice(0, 1)) {
    showProblem(cellIn(row, key), `${messageOf(error, key)} Not ${verb}: ${text}`);
  }
}

// The JSON text of a pasted value. Nothing is null where the column allows it.
function pastedJson(cell, text) {
  const { type } = cell.dataset;
  if (text === "" && (cell.hasAttribute("data-nullable") || type !== "text")) return "null";
  return jsonText(type, text);
}

// `values`: cells of the row, each with its new value as text and as JSON. Whether all is saved.
async function saveCells(row, values, verb, step) {
  const texts = {};
  const jsonTexts = {};
  for (const { cell, text, json } of values) {
    const isReadOnly = cell.hasAttribute("data-read-only");
    showProblem(cell, isReadOnly && cell.dataset.value !== text ? "The platform sets this column." : "");
    if (isReadOnly || jsonOf(cell) === json) continue;
    texts[cell.dataset.key] = text;
    jsonTexts[cell.dataset.key] = json;
  }
  if (!Object.keys(texts).length) return true;
  const answer = await patchRow(row, jsonTexts, step);
  if (answer.status !== 200) await showRefusal(row, answer, texts, verb);
  return answer.status === 200;
}

// A new row below the last one, which lends it its cells. Returns the reason if the API refuses it.
async function createRow(last, pairs, step) {
  const values = pairs.filter(([cell, text]) => text !== "" && !cell.hasAttribute("data-read-only"));
  const body = values.map(([cell, text]) => `${JSON.stringify(cell.dataset.key)}: ${jsonText(cell.dataset.type, text)}`);
  const answer = await send("POST", null, `{${body.join(", ")}}`);
  if (answer.status !== 201) {
    const error = errorOf(answer);
    return (error.fields ?? []).map((each) => `${each.field}: ${each.message}`).join(" ") || error.message;
  }
  const row = last.cloneNode(true);
  for (const each of row.querySelectorAll("td[data-key] > :not(.cell)")) each.remove();
  for (const each of row.querySelectorAll("td[data-key]")) {
    each.tabIndex = -1;
    for (const name of ["aria-selected", "aria-invalid", "class"]) each.removeAttribute(name);
  }
  row.dataset.id = parse(answer.text).id;
  row.className = "";
  const box = row.querySelector("[data-select]");
  box.checked = false;
  box.setAttribute("aria-label", `Select row ${row.dataset.id}`);
  grid.tBodies[0].append(row);
  showRow(row, answer);
  forgetNewRow(row.dataset.id);
  step.push({ id: row.dataset.id, isNew: true, after: row.dataset.etag });
  return null;
}

function countOf(count, noun = "row") {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}

async function paste(cell, text) {
  let lines = rowsOfTsv(text);
  const range = rangeTo(cell);
  const start = range[0][0];
  if (lines.length === 1 && lines[0].length === 1) lines = range.map((cells) => cells.map(() => lines[0][0]));
  const rows = rowsOfGrid();
  const top = rows.indexOf(start.parentElement);
  const left = cellsOf(start.parentElement).indexOf(start);
  const width = cellsOf(start.parentElement).length - left;
  const over = Math.max(0, top + lines.length - rows.length);
  const isCreating =
    over > 0 && over <= MAX_NEW_ROWS &&
    confirm(`${over} of ${countOf(lines.length, "pasted row")} reach below the last row. Create ${countOf(over)}?`);
  const step = [];
  const refused = [];
  let saved = 0;
  for (const [index, line] of lines.entries()) {
    const row = rows[top + index];
    if (!row && !isCreating) break;
    showStatus(`Pasting row ${index + 1} of ${lines.length} …`, false);
    const cells = cellsOf(row ?? rows.at(-1)).slice(left);
    const pairs = line.slice(0, cells.length).map((each, at) => [cells[at], each]);
    if (row) {
      const values = pairs.map(([each, value]) => ({ cell: each, text: value, json: pastedJson(each, value) }));
      if (await saveCells(row, values, "pasted", step)) saved += 1;
    } else {
      const reason = await createRow(rows.at(-1), pairs, step);
      if (reason === null) saved += 1;
      else refused.push(`Row ${index + 1}: ${reason}`);
    }
  }
  remember(step);
  const isWide = lines.some((line) => line.length > width);
  const parts = [`${saved} of ${lines.length} rows pasted.`];
  if (over > MAX_NEW_ROWS) parts.push(`At most ${MAX_NEW_ROWS} are created by pasting: use an import.`);
  else if (over && !isCreating) parts.push(`${over} reach below the last row and are not created.`);
  if (isWide) parts.push("Cells right of the last column were left out.");
  showStatus(parts.join(" "), saved < lines.length || isWide, refused);
}

async function clear(cell) {
  const step = [];
  for (const cells of rangeTo(cell)) {
    const own = cells.filter((each) => !each.hasAttribute("data-read-only"));
    const values = own.map((each) => ({ cell: each, text: "", json: pastedJson(each, "") }));
    await saveCells(cells[0].parentElement, values, "cleared", step);
  }
  remember(step);
}

async function toggle(cell) {
  const text = cell.dataset.value === "true" ? "false" : "true";
  const step = [];
  await saveCells(cell.parentElement, [{ cell, text, json: text }], "saved", step);
  remember(step);
}

// The first row of the range into the rows below it.
async function fillDown(cell) {
  const [first, ...rest] = rangeTo(cell);
  if (!rest.length) return showStatus("Select more than one row with Shift and the arrow keys to fill them.");
  const sources = first.map((each) => ({ text: each.dataset.value, json: jsonOf(each) }));
  const step = [];
  let saved = 0;
  for (const cells of rest) {
    const values = cells.map((each, at) => ({ cell: each, ...sources[at] }));
    const own = values.filter((each) => !each.cell.hasAttribute("data-read-only"));
    if (await saveCells(cells[0].parentElement, own, "filled", step)) saved += 1;
  }
  remember(step);
  showStatus(`${saved} of ${countOf(rest.length)} filled.`, saved < rest.length);
}

// The row as it was, unless somebody else has changed it since. Earlier steps continue from its new ETag.
async function undoEntry(entry, row) {
  if (entry.isNew) {
    const answer = await send("DELETE", entry.id, undefined, entry.after);
    if (answer.status === 204) row.remove();
    else await showRefusal(row, answer, { id: "new row" }, "undone");
    return answer.status === 204;
  }
  const answer = await patchRow(row, entry.values, null, entry.after);
  if (answer.status === 200) {
    for (const earlier of steps.flat()) {
      if (earlier.id === entry.id && earlier.after === entry.before) earlier.after = row.dataset.etag;
    }
  } else await showRefusal(row, answer, entry.values, "undone");
  return answer.status === 200;
}

async function undo() {
  const step = steps.pop();
  if (!step) return;
  showUndo();
  let done = 0;
  for (const entry of step.toReversed()) {
    const row = rowWith(entry.id);
    if (!row) continue;
    for (const key of Object.keys(entry.values ?? {})) showProblem(cellIn(row, key), "");
    if (await undoEntry(entry, row)) done += 1;
    if (row.isConnected && entry.values) focusCell(cellIn(row, Object.keys(entry.values)[0]));
  }
  keepFocus();
  showStatus(`${done} of ${countOf(step.length, "change")} undone.`, done < step.length);
}

if (grid.hasAttribute("data-editable")) {
  document.querySelector("[data-undo]").addEventListener("click", () => enqueue(undo));
  document.addEventListener("keydown", (event) => {
    const isUndo = event.key.toLowerCase() === "z" && (event.ctrlKey || event.metaKey) && !event.shiftKey;
    if (!isUndo || event.target.closest("input, textarea, select, dialog")) return;
    event.preventDefault();
    enqueue(undo);
  });
}
