// The grid as a spreadsheet: one cell has the focus, a range may be selected and copied.
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

// One cell is reached by Tab. Another one takes its place when it is removed or hidden.
function keepTabStop() {
  const current = grid.querySelector('td[tabindex="0"]');
  if (!grid.hasAttribute("data-editable") || current?.offsetParent) return current;
  if (current) current.tabIndex = -1;
  const cells = rowsOfGrid().length ? cellsOf(rowsOfGrid()[0]) : [];
  const next = cells.find((cell) => !cell.hasAttribute("data-read-only")) ?? cells[0];
  if (next) next.tabIndex = 0;
  return next;
}

// Keys of the cell do what these controls do, so that Tab does not stop at each row.
function skipControls() {
  for (const each of grid.querySelectorAll("tbody :is(a, [data-select])")) each.tabIndex = -1;
  keepTabStop();
}

// After the focused control was removed or disabled.
function keepFocus() {
  const cell = keepTabStop();
  if (document.activeElement === document.body || document.activeElement.disabled) cell?.focus();
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

function onGridKey(event) {
  const cell = event.target;
  if (!cell.matches("td[data-key]")) return;
  const isPlain = !event.ctrlKey && !event.metaKey && !event.altKey;
  const link = cell.querySelector(":scope > a.why, :scope > a");
  if (event.key === "Enter" && link && (event.ctrlKey || cell.hasAttribute("data-read-only"))) link.click();
  else if (event.key === "Enter" || event.key === "F2") edit(cell);
  else if ((event.key === "Delete" || event.key === "Backspace") && isPlain) enqueue(() => clear(cell));
  else if (event.key.toLowerCase() === "d" && (event.ctrlKey || event.metaKey)) enqueue(() => fillDown(cell));
  else if (event.key.startsWith("Arrow") || event.key === "Home" || event.key === "End") {
    const next = neighbour(cell, event.key);
    if (next && event.shiftKey) anchor ??= cell;
    else anchor = null;
    focusCell(next);
    if (next) showRange(next);
  } else if (event.key === " " && event.shiftKey) cell.parentElement.querySelector("[data-select]")?.click();
  else if (event.key === " " && isPlain && cell.dataset.type === "boolean") enqueue(() => toggle(cell));
  else if (event.key.length === 1 && isPlain) edit(cell, event.key);
  else return;
  event.preventDefault();
}

if (grid.hasAttribute("data-editable")) {
  // A click selects a cell, the next one edits it: so does a double click, and a touch screen needs no double tap.
  // A click on a box ticks it.
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
    const isBox = event.target.closest('td[data-type="boolean"]:not([data-null]) .cell') !== null;
    if (isBox && !event.shiftKey) return enqueue(() => toggle(cell));
    if (cell && cell === selectedBefore && !event.target.closest("a, .editor")) edit(cell);
  });
  grid.addEventListener("focusin", (event) => {
    if (event.target.matches('td[data-key][tabindex="-1"]')) focusCell(event.target);
  });
  grid.addEventListener("keydown", onGridKey);
  document.querySelector('.skip[href="#rows"]').addEventListener("click", (event) => {
    const cell = keepTabStop();
    if (cell) event.preventDefault();
    focusCell(cell);
  });
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
    const text = event.clipboardData.getData("text/plain");
    enqueue(() => paste(cell, text));
  });
  skipControls();
}
