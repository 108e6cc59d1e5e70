// Copy buttons, the menu of narrow screens, pop-ups that close, search, editors. The rest is plain HTML and htmx.
"use strict";

async function copy(button) {
  await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
  const label = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = label), 1500);
}

function closePopups(except) {
  for (const popup of document.querySelectorAll("details[data-closes][open]")) {
    if (popup !== except) popup.open = false;
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (button) copy(button);
  const menu = event.target.closest("[data-menu]");
  if (menu) {
    const isOpen = document.body.classList.toggle("menu-open");
    menu.setAttribute("aria-expanded", String(isOpen));
  }
  const discloses = event.target.closest("[data-discloses]");
  discloses?.setAttribute("aria-expanded", String(discloses.getAttribute("aria-expanded") === "false"));
  closePopups(event.target.closest("details[data-closes]"));
});

// Opening the form of a new item focuses its first field.
document.addEventListener("click", (event) => {
  const form = event.target.closest("details.new > summary")?.parentElement;
  if (form && !form.open) setTimeout(() => form.querySelector("input:not([type=hidden]), select, textarea").focus());
});

// Enter in a field presses the button of this part, not the first one of the form.
document.addEventListener("keydown", (event) => {
  const button = event.target.matches("input") && event.target.closest("[data-enter]")?.querySelector("[type=submit]");
  if (event.key !== "Enter" || event.isComposing || !button) return;
  event.preventDefault();
  button.click();
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  const open = document.activeElement?.closest("details[data-closes][open]");
  closePopups(null);
  open?.querySelector("summary").focus();
  if (!open && !document.querySelector("dialog[open]") && document.body.classList.contains("menu-open")) {
    const menu = document.querySelector("[data-menu]");
    menu.click();
    menu.focus();
  }
});

// A part of the page that is to be filled in first. Of its fields, the first invalid one, or the first.
function focusMarked() {
  const target = document.querySelector("main [data-focus]");
  const first = target?.querySelector('[aria-invalid="true"]') ?? target?.querySelector("input:not([type=hidden]), select, textarea");
  (first ?? target)?.focus();
  return target;
}

focusMarked();

// After a form is sent, the first message is scrolled into view and read out. The focus stays on the pressed button if
// the new content has it. Parts of the page that reload by themselves change neither.
let pressed = null; // only of the content, not of a dialog above it
document.addEventListener("htmx:beforeSwap", () => (pressed = document.activeElement.closest("main *")));
document.addEventListener("htmx:afterSwap", (event) => {
  showTypes();
  nameCells();
  showCurrentTab();
  const isRenewal = event.detail.requestConfig.verb === "get";
  if (isRenewal && !pressed) return;
  if (!isRenewal) document.querySelector("main .problem, main .notice")?.scrollIntoView({ block: "nearest" });
  if (focusMarked()) return;
  if (document.activeElement !== document.body) return;
  const isSame = (each) =>
    each.value === pressed?.value &&
    each.textContent === pressed?.textContent &&
    each.getAttribute("aria-label") === pressed?.getAttribute("aria-label") &&
    each.checkVisibility();
  const again = [...document.querySelectorAll("main button:enabled")].find(isSame);
  (again ?? document.getElementById("main")).focus({ preventScroll: true });
});

// Shows an error at the form whose request got no response or was refused for now.
function showUnsent(event) {
  const from = event.target.closest("form") ?? event.target;
  const problem = document.createElement("p");
  problem.className = "problem";
  problem.setAttribute("role", "alert");
  problem.dataset.unsent = "";
  problem.textContent = "The service cannot be reached. Your values are still here: try again.";
  if (event.type === "console:refused") problem.textContent = event.detail.value;
  if (event.type === "console:ended") {
    const link = document.createElement("a");
    Object.assign(link, { href: event.detail.value, target: "_blank", textContent: "Sign in in another tab" });
    problem.replaceChildren("Your session has ended. What you typed is still here. ", link, ", then try again here.");
  }
  from.after(problem);
  problem.scrollIntoView({ block: "nearest" });
}

const UNSENT = ["htmx:sendError", "htmx:timeout", "console:refused", "console:ended"];
for (const name of UNSENT) document.addEventListener(name, showUnsent);
document.addEventListener("htmx:beforeRequest", () => document.querySelector("[data-unsent]")?.remove());

// The browser asks before it leaves a page with a source, a draft or a cell that is not saved.
let isSending = false;
document.addEventListener("htmx:beforeRequest", (event) => (isSending = event.detail.requestConfig.verb !== "get"));
for (const name of ["htmx:afterSwap", ...UNSENT]) document.addEventListener(name, () => (isSending = false));
document.addEventListener("click", (event) => {
  if (event.target.closest("[data-discard]")) isSending = true;
});

function isEdited(control) {
  if (control.type === "checkbox") return control.checked !== control.defaultChecked;
  if (!control.options) return control.value !== control.defaultValue;
  const first = [...control.options].find((option) => option.defaultSelected) ?? control.options[0];
  return control.selectedOptions[0] !== first;
}

function isUnsaved() {
  const edited = [...document.querySelectorAll("textarea[data-editor]")].some((each) => each.value !== each.defaultValue);
  const cell = document.querySelector("td.editing");
  const isTable = [...document.querySelectorAll(".add-table :is(input, textarea)")].some((each) => each.value);
  const isPart = [...document.querySelectorAll(":is(.part-form, #new-row) :is(input, textarea, select)")].some(isEdited);
  return edited || isTable || isPart || document.querySelector("[data-draft]") !== null || (cell !== null && isChanged(cell));
}

window.addEventListener("beforeunload", (event) => {
  if (!isSending && isUnsaved()) event.preventDefault();
});

// In a narrow table each cell is below the previous one, after the name of its column, if that is shown.
function nameCells() {
  for (const table of document.querySelectorAll("main table.list")) {
    const heads = [...table.querySelectorAll("thead th")].map((head) => !head.querySelector(".hidden") && head.textContent.trim());
    for (const row of table.tBodies[0].rows) {
      for (const [index, cell] of [...row.cells].entries()) {
        if (!cell.textContent.trim()) cell.dataset.empty = "";
        else if (heads[index] && !cell.querySelector("button")) cell.dataset.label = heads[index];
      }
    }
  }
}

nameCells();

// Shows only the fields that the choices of a form need. Fields with errors stay visible.
function showTypes() {
  const choosers = [...document.querySelectorAll("[data-chooses-types]")];
  for (const field of document.querySelectorAll("[data-types]")) {
    const types = field.dataset.types.split(" ");
    const fitsAll = choosers.every(({ value, options }) => {
      const named = [...options].map((option) => option.value).filter((each) => types.includes(each));
      return !named.length || named.includes(value);
    });
    field.hidden = !fitsAll && !field.querySelector(".problem");
  }
}

document.addEventListener("change", (event) => {
  if (event.target.matches("[data-chooses-types]")) showTypes();
});
showTypes();

// Links an error in the schema document to its line.
document.addEventListener("click", (event) => {
  const link = event.target.closest("[data-line]");
  const editor = document.getElementById("document");
  if (!link || !editor) return;
  const lines = editor.value.split("\n");
  const number = Number(link.dataset.line) - 1;
  const start = lines.slice(0, number).join("\n").length + (number ? 1 : 0);
  editor.focus();
  editor.setSelectionRange(start, start + (lines[number] ?? "").length);
  editor.scrollTop = (editor.scrollHeight / lines.length) * Math.max(0, number - 5);
});

// Marks an edited source as not deployed.
document.addEventListener("input", (event) => {
  if (!event.target.matches("[data-editor]")) return;
  const mark = event.target.form?.querySelector("[data-unsaved]");
  if (mark) mark.hidden = event.target.value === event.target.defaultValue;
});

// Tab indents in an editor; Escape and then Tab leaves it.
let leaves = false;
document.addEventListener("keydown", (event) => {
  const editor = event.target;
  if (!editor.matches?.("textarea[data-editor]")) return;
  if (event.key === "Escape") leaves = true;
  else if (event.key === "Tab" && !event.shiftKey && !leaves) {
    event.preventDefault();
    editor.setRangeText("  ", editor.selectionStart, editor.selectionEnd, "end");
    editor.dispatchEvent(new Event("input", { bubbles: true }));
  } else if (event.key !== "Shift") leaves = false;
});

// Filters the tables by name; Enter opens the first one. The current one is scrolled into view.
function tabsOf(find) {
  return [...find.nextElementSibling.children];
}

document.addEventListener("input", (event) => {
  if (!event.target.matches("[data-find-tab]")) return;
  const text = event.target.value.trim().toLowerCase();
  for (const tab of tabsOf(event.target)) tab.hidden = !tab.textContent.toLowerCase().includes(text);
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !event.target.matches("[data-find-tab]")) return;
  event.preventDefault();
  tabsOf(event.target).find((tab) => !tab.hidden)?.click();
});

function showCurrentTab() {
  const tabs = document.querySelector(".tabs.many");
  const current = tabs?.querySelector("[aria-current]");
  if (current) tabs.scrollTop = current.offsetTop - tabs.offsetTop - tabs.clientHeight / 2;
}

showCurrentTab();

// Search: Ctrl K opens it, the arrow keys choose a result, Enter opens the first or the chosen one.
const searchDialog = document.getElementById("search");

function openSearch(event) {
  event.preventDefault();
  if (!searchDialog.open) searchDialog.showModal();
  searchDialog.querySelector("input").select();
}

document.addEventListener("click", (event) => {
  if (!searchDialog) return;
  if (event.target.closest("[data-search]") && !event.ctrlKey && !event.metaKey) openSearch(event);
  if (event.target === searchDialog) searchDialog.close(); // outside of it
});

document.addEventListener("keydown", (event) => {
  if (searchDialog && event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey)) openSearch(event);
});

searchDialog?.addEventListener("keydown", (event) => {
  const links = [...searchDialog.querySelectorAll("a")];
  const input = searchDialog.querySelector("input");
  if (event.key === "Escape") {
    event.preventDefault(); // a browser would only empty the field first
    searchDialog.close();
  }
  if (event.key === "Enter" && event.target === input) {
    event.preventDefault();
    links[0]?.click();
  }
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  (links[links.indexOf(document.activeElement) + step] ?? input).focus();
});
