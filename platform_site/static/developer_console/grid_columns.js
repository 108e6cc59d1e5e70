// This user's view of the table: widths, order, and which columns are shown. The browser stores it.
"use strict";

function stored(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(`${name} ${grid.dataset.user} ${grid.dataset.rows}`)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function store(name, value) {
  localStorage.setItem(`${name} ${grid.dataset.user} ${grid.dataset.rows}`, JSON.stringify(value));
}

const hiddenColumns = new Set(stored("hidden", []));
const widths = stored("widths", {});
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
  store("widths", widths);
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

// The cells of each row, and the entries of the chooser, in the order of these columns; others follow as they are.
function applyOrder(keys) {
  const parts = [...grid.rows, chooser.querySelector(".popup")];
  for (const part of parts) {
    const found = new Map([...part.children].map((each) => [each.dataset.column ?? each.dataset.key, each]));
    part.append(...keys.filter((key) => found.has(key)).map((key) => found.get(key)));
    const rest = [...found].filter(([key]) => key !== undefined && !keys.includes(key));
    part.append(...rest.map(([, each]) => each));
  }
}

function moveColumn(pressed) {
  const entries = [...chooser.querySelectorAll("[data-column]")].map((each) => each.dataset.column);
  const at = entries.indexOf(pressed.closest("[data-column]").dataset.column);
  const to = at + Number(pressed.dataset.move);
  if (to < 0 || to >= entries.length) return;
  [entries[at], entries[to]] = [entries[to], entries[at]];
  store("order", entries);
  applyOrder(entries);
  pressed.focus();
}

const chooser = document.querySelector("[data-columns]");
const order = stored("order", []);
if (order.length) applyOrder(order);
chooser.addEventListener("click", (event) => {
  const pressed = event.target.closest("[data-move]");
  if (pressed) moveColumn(pressed);
});
for (const box of chooser.querySelectorAll("input")) box.checked = !hiddenColumns.has(box.value);
chooser.hidden = false;
chooser.addEventListener("change", ({ target }) => {
  if (target.checked) hiddenColumns.delete(target.value);
  else hiddenColumns.add(target.value);
  store("hidden", [...hiddenColumns]);
  applyWidths();
  keepTabStop();
});
applyWidths();
