// The grid as a spreadsheet: one cell has the focus, a range may be copied and pasted, columns have widths.
"use strict";

let anchor = null; // the other corner of the range

// Of the columns that are shown.
function cellsOf(row) {
  return [...row.querySelectorAll("td[data-key]")].filter((cell) => cell.offsetParent !== null);
}

function rowsOfGrid() {
  return [...grid.querySelectorAll("tbody tr[data-id]")];
}

function focusCell(cell) {
  if (!cell) return;
  for (const each of grid.querySelectorAll('td[tabindex="0"]')) each.tabIndex = -1;
  cell.tabIndex = 0;
  cell.focus();
}

function neighbour(cell, key) {
  const row = cell.parentElement;
  const cells = cellsOf(row);
  const at = cells.indexOf(cell);
  if (key === "ArrowLeft") return cells[at - 1];
  if (key === "ArrowRight") return cells[at + 1];
  if (key === "Home") return cells[0];
  if (key === "End") return cells.at(-1);
  const rows = rowsOfGrid();
  const other = rows[rows.indexOf(row) + (key === "ArrowUp" ? -1 : 1)];
  return other && cellsOf(other)[at];
}

function move(cell, key) {
  focusCell(neighbour(cell, key));
}

// The cells between the anchor and a cell, row by row.
function rangeTo(cell) {
  const rows = rowsOfGrid();
  const first = anchor?.isConnected ? anchor : cell;
  const [top, bottom] = [rows.indexOf(first.parentElement), rows.indexOf(cell.parentElement)].sort((a, b) => a - b);
  const at = (each) => cellsOf(each.parentElement).indexOf(each);
  const [left, right] = [at(first), at(cell)].sort((a, b) => a - b);
  return rows.slice(top, bottom + 1).map((row) => cellsOf(row).slice(left, right + 1));
}

function showRange(cell) {
  for (const each of grid.querySelectorAll("td[aria-selected]")) each.removeAttribute("aria-selected");
  const range = rangeTo(cell).flat();
  if (range.length > 1) for (const each of range) each.setAttribute("aria-selected", "true");
}

// Tab-separated lines, as spreadsheets copy them: a cell with a tab, a line break or a quote is quoted.
function tsvOf(range) {
  const quoted = (text) => (/[\t\n\r"]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  return range.map((cells) => cells.map((cell) => quoted(cell.dataset.value)).join("\t")).join("\n");
}

function rowsOfTsv(text) {
  const rows = [[]];
  const pattern = /(?:"((?:[^"]|"")*)"|([^\t\r\n]*))(\t|\r?\n|\r|$)/gy;
  for (const [whole, quoted, plain, end] of text.matchAll(pattern)) {
    if (!whole && !end && rows.at(-1).length === 0) break;
    rows.at(-1).push(quoted === undefined ? plain : quoted.replaceAll('""', '"'));
    if (!end) break;
    if (end !== "\t") rows.push([]);
  }
  return rows.filter((cells) => cells.length);
}

// The JSON text of a pasted value. Nothing is null where the column allows it.
function pastedJson(cell, text) {
  const { type } = cell.dataset;
  if (text === "" && (cell.hasAttribute("data-nullable") || type !== "text")) return "null";
  return jsonText(type, text);
}

async function pasteRow(row, pairs) {
  const changes = pairs.filter(([cell, text]) => !cell.hasAttribute("data-read-only") && cell.dataset.value !== text);
  for (const [cell, text] of pairs) {
    const isRefused = cell.hasAttribute("data-read-only") && cell.dataset.value !== text;
    showProblem(cell, isRefused ? "The platform sets this column." : "");
  }
  if (!changes.length) return true;
  const body = changes.map(([cell, text]) => `${JSON.stringify(cell.dataset.key)}: ${pastedJson(cell, text)}`);
  const answer = await send("PATCH", row.dataset.id, `{${body.join(", ")}}`, row.dataset.etag);
  if (answer.status === 200) {
    showRow(row, answer);
    return true;
  }
  if (answer.status === 412) {
    const current = await send("GET", row.dataset.id);
    if (current.status === 200) showRow(row, current);
    for (const [cell, text] of changes) showProblem(cell, `Somebody else changed this row. Not pasted: ${text}`);
    return false;
  }
  const error = errorOf(answer);
  const fields = error.fields ?? [];
  const named = changes.filter(([cell]) => fields.some((field) => field.field === cell.dataset.key));
  for (const [cell, text] of named.length ? named : changes.slice(0, 1)) {
    showProblem(cell, `${messageOf(error, cell.dataset.key)} Not pasted: ${text}`);
  }
  return false;
}

async function paste(cell, text) {
  let lines = rowsOfTsv(text);
  const range = rangeTo(cell);
  const start = range[0][0];
  if (lines.length === 1 && lines[0].length === 1) lines = range.map((cells) => cells.map(() => lines[0][0]));
  const rows = rowsOfGrid();
  const top = rows.indexOf(start.parentElement);
  const left = cellsOf(start.parentElement).indexOf(start);
  const isWide = lines.some((line) => left + line.length > cellsOf(start.parentElement).length);
  let saved = 0;
  for (const [index, line] of lines.entries()) {
    const row = rows[top + index];
    if (!row) break;
    showStatus(`Pasting row ${index + 1} of ${lines.length} …`, false);
    const cells = cellsOf(row).slice(left);
    const pairs = line.slice(0, cells.length).map((each, at) => [cells[at], each]);
    if (await pasteRow(row, pairs)) saved += 1;
  }
  const over = Math.max(0, top + lines.length - rows.length);
  const parts = [`${saved} of ${lines.length} rows pasted.`];
  if (over) parts.push(`${over} reach below the last row: use New row or an import.`);
  if (isWide) parts.push("Cells right of the last column were left out.");
  showStatus(parts.join(" "), saved < lines.length || isWide);
}

async function clear(cell) {
  for (const cells of rangeTo(cell)) {
    await pasteRow(cells[0].parentElement, cells.filter((each) => !each.hasAttribute("data-read-only")).map((each) => [each, ""]));
  }
}

function onGridKey(event) {
  const cell = event.target;
  if (!cell.matches("td[data-key]")) return;
  const isPlain = !event.ctrlKey && !event.metaKey && !event.altKey;
  if (event.key === "Enter" || event.key === "F2") edit(cell);
  else if ((event.key === "Delete" || event.key === "Backspace") && isPlain) clear(cell);
  else if (event.key.startsWith("Arrow") || event.key === "Home" || event.key === "End") {
    const next = neighbour(cell, event.key);
    if (next && event.shiftKey) anchor ??= cell;
    else anchor = null;
    focusCell(next);
    if (next) showRange(next);
  } else if (event.key === " " && event.shiftKey) cell.parentElement.querySelector("[data-select]")?.click();
  else if (event.key.length === 1 && isPlain) edit(cell, event.key);
  else return;
  event.preventDefault();
}

// Widths and hidden columns are of the browser: they are stored there, by table.
const hiddenColumns = new Set(JSON.parse(localStorage.getItem(`hidden ${grid.dataset.rows}`) ?? "[]"));
const widths = JSON.parse(localStorage.getItem(`widths ${grid.dataset.rows}`) ?? "{}");
const widthRules = new CSSStyleSheet();
document.adoptedStyleSheets = [...document.adoptedStyleSheets, widthRules];

function applyWidths() {
  const rules = Object.entries(widths).map(([key, width]) => {
    const pixels = Math.min(900, Math.max(60, Number(width) || 60));
    return `.grid :is([data-column="${CSS.escape(key)}"], [data-key="${CSS.escape(key)}"]:not(.editing)) {
      width: ${pixels}px; min-width: ${pixels}px; max-width: ${pixels}px; overflow: hidden; text-overflow: ellipsis;
    }`;
  });
  const hides = [...hiddenColumns].map(
    (key) => `.grid :is([data-column="${CSS.escape(key)}"], [data-key="${CSS.escape(key)}"]) {
      display: none;
    }`);
  widthRules.replaceSync([...rules, ...hides].join("\n"));
  for (const handle of grid.querySelectorAll("[data-resize]")) {
    handle.setAttribute("aria-valuenow", String(Math.round(handle.parentElement.offsetWidth)));
  }
}

function setWidth(handle, width) {
  widths[handle.dataset.resize] = Math.min(900, Math.max(60, Math.round(width)));
  localStorage.setItem(`widths ${grid.dataset.rows}`, JSON.stringify(widths));
  applyWidths();
}

grid.addEventListener("pointerdown", (event) => {
  const handle = event.target.closest("[data-resize]");
  if (!handle) return;
  event.preventDefault();
  handle.setPointerCapture(event.pointerId);
  const start = event.clientX - handle.parentElement.offsetWidth;
  const drag = (moved) => setWidth(handle, moved.clientX - start);
  handle.addEventListener("pointermove", drag);
  handle.addEventListener("lostpointercapture", () => handle.removeEventListener("pointermove", drag), { once: true });
});
grid.addEventListener("keydown", (event) => {
  const step = { ArrowLeft: -20, ArrowRight: 20 }[event.key];
  if (!step || !event.target.matches("[data-resize]")) return;
  event.preventDefault();
  setWidth(event.target, event.target.parentElement.offsetWidth + step);
});
for (const handle of grid.querySelectorAll("[data-resize]")) handle.hidden = false;
const chooser = document.querySelector("[data-columns]");
for (const box of chooser.querySelectorAll("input")) box.checked = !hiddenColumns.has(box.value);
chooser.hidden = false;
chooser.addEventListener("change", ({ target }) => {
  if (target.checked) hiddenColumns.delete(target.value);
  else hiddenColumns.add(target.value);
  localStorage.setItem(`hidden ${grid.dataset.rows}`, JSON.stringify([...hiddenColumns]));
  applyWidths();
});
applyWidths();

if (grid.hasAttribute("data-editable")) {
  // A click selects a cell, the next one edits it: so does a double click, and a touch screen needs no double tap.
  let selectedBefore = null;
  grid.addEventListener("pointerdown", (event) => {
    selectedBefore = document.activeElement;
    const cell = event.target.closest("td[data-key]");
    if (!cell || event.target.closest(".editor")) return;
    const before = document.activeElement.closest?.("td[data-key]");
    anchor = event.shiftKey ? (anchor ?? before) : null;
    showRange(cell);
  });
  grid.addEventListener("click", (event) => {
    const cell = event.target.closest("td[data-key]");
    if (cell && cell === selectedBefore && !event.target.closest("a, .editor")) edit(cell);
  });
  grid.addEventListener("focusin", (event) => {
    if (event.target.matches('td[data-key][tabindex="-1"]')) focusCell(event.target);
  });
  grid.addEventListener("keydown", onGridKey);
  document.addEventListener("copy", (event) => {
    const cell = document.activeElement;
    if (!cell.matches?.("table.grid td[data-key]") || String(getSelection())) return;
    event.clipboardData.setData("text/plain", tsvOf(rangeTo(cell)));
    event.preventDefault();
  });
  document.addEventListener("paste", (event) => {
    const cell = document.activeElement;
    if (!cell.matches?.("table.grid td[data-key]")) return;
    event.preventDefault();
    paste(cell, event.clipboardData.getData("text/plain"));
  });
  const row = rowsOfGrid()[0];
  const first = row && (cellsOf(row).find((cell) => !cell.hasAttribute("data-read-only")) ?? cellsOf(row)[0]);
  if (first) first.tabIndex = 0;
}
