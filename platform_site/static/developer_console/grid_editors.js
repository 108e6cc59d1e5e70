// The editor of a cell, by the type of its column. A conflict with another change of the row shows both values.
"use strict";

function button(label, action, className = "") {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = label;
  made.className = className;
  made.addEventListener("click", action);
  return made;
}

// A control for a value of this type. `options` has the values of an enum, or the URL that finds rows or users.
function controlFor(type, value, options) {
  const choices = type === "boolean" ? ["true", "false"] : options.values;
  if (choices) {
    const select = document.createElement("select");
    if (!choices.includes(value)) select.append(new Option("", ""));
    for (const choice of choices) select.append(new Option(choice, choice));
    select.value = value;
    return select;
  }
  const isLong = value.length > 60 || type === "json" || value.includes("\n");
  const input = document.createElement(isLong ? "textarea" : "input");
  input.value = value;
  if (type === "date") input.type = "date";
  if (type === "timestamp" && /^$|^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3}0*)?Z$/.test(value)) {
    input.type = "datetime-local";
    input.step = "0.001";
    input.value = value.slice(0, 23).replace("Z", "").replace(/\.000$/, "");
  }
  if (input.value === "" && value !== "") {
    input.type = "text"; // the browser's control cannot hold it
    input.value = value;
  }
  if (type === "integer" || type === "float" || type === "decimal") input.inputMode = "decimal";
  return input;
}

let pickers = 0;
const choices = new WeakMap(); // of text fields with suggestions: takes the suggestion for what was typed

let isPressed = false; // the mouse button, or a finger
for (const name of ["pointerdown", "pointerup", "pointercancel"]) {
  document.addEventListener(name, () => (isPressed = name === "pointerdown"), true);
}

// A text field that finds rows or users. It shows the label; `dataset.id` has the id, once one is chosen.
// The first suggestion for what was typed is selected: Enter, Tab or leaving the field takes it, arrow keys choose
// another. Returns the element that holds the field and the list.
function withPicker(input, url) {
  const holder = document.createElement("div");
  holder.className = "picker";
  const list = document.createElement("ul");
  list.id = `picker-${(pickers += 1)}`;
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "Suggestions");
  list.hidden = true;
  input.setAttribute("role", "combobox");
  input.setAttribute("aria-expanded", "false");
  input.setAttribute("aria-controls", list.id);
  input.setAttribute("aria-autocomplete", "list");
  input.autocomplete = "off";
  let timer, latest;
  let isOpen = false;
  const typed = () => (input.dataset.id === undefined ? input.value.trim() : "");
  const current = () => list.querySelector('[aria-selected="true"]');
  const showList = () => {
    list.style.height = "";
    list.hidden = !isOpen;
    input.setAttribute("aria-expanded", String(isOpen));
  };
  const expand = (isWanted) => {
    isOpen = isWanted;
    if (!isOpen) select(null);
    if (isOpen || !isPressed) return showList();
    // Later, so that a button below is still under the pointer when it is released.
    document.addEventListener("pointerup", () => setTimeout(showList), { once: true });
  };
  const select = (option) => {
    for (const each of list.children) each.setAttribute("aria-selected", String(each === option));
    if (option) input.setAttribute("aria-activedescendant", option.id);
    else input.removeAttribute("aria-activedescendant");
    option?.scrollIntoView({ block: "nearest" });
  };
  const take = (option) => {
    clearTimeout(timer);
    timer = latest = undefined;
    input.dataset.id = option.dataset.id;
    input.value = option.firstChild.textContent || option.dataset.id;
    expand(false);
  };
  const optionFor = ({ id, label }, index) => {
    const option = document.createElement("li");
    option.id = `${list.id}-${index}`;
    option.setAttribute("role", "option");
    option.dataset.id = id;
    const shown = document.createElement("bdi");
    shown.textContent = label;
    const code = document.createElement("code");
    code.textContent = id;
    option.append(shown, " ", code);
    option.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      take(option);
    });
    return option;
  };
  const find = async () => {
    clearTimeout(timer);
    timer = undefined;
    const text = typed().toLowerCase();
    const asked = (latest = fetch(`${url}?q=${encodeURIComponent(typed())}`).then(
      (response) => (response.ok && !response.redirected ? response.json() : null),
      () => null,
    ));
    const answer = await asked;
    const data = answer?.data ?? [];
    if (asked !== latest) return;
    latest = undefined;
    const none = document.createElement("li");
    none.setAttribute("role", "option");
    none.setAttribute("aria-disabled", "true");
    none.textContent = answer ? "No match" : "The search failed. Type again.";
    if (isPressed) list.style.height = `${list.offsetHeight}px`; // see `expand`
    list.replaceChildren(...(data.length || (answer && !text) ? data.map(optionFor) : [none]));
    expand(document.activeElement === input && list.hasChildNodes());
    const isSame = ({ id, label }) => [id.toLowerCase(), label.toLowerCase()].includes(text);
    const found = data.findIndex(text ? isSame : ({ id }) => id === input.dataset.id);
    // An email that only contains what was typed is another person's.
    const isOther = text.includes("@") && !data[0]?.label.toLowerCase().startsWith(text);
    select(list.querySelectorAll("[data-id]")[text && found < 0 && !isOther ? 0 : found]);
  };
  choices.set(input, async () => {
    if (!typed()) return;
    if (timer) await find();
    else await latest;
    if (current()) take(current());
  });
  input.addEventListener("input", () => {
    delete input.dataset.id;
    clearTimeout(timer);
    timer = setTimeout(find, 150);
  });
  input.addEventListener("focus", find);
  input.addEventListener("blur", async () => {
    await choices.get(input)();
    if (document.activeElement !== input) expand(false);
  });
  input.addEventListener("keydown", (event) => {
    const options = [...list.querySelectorAll("[data-id]")];
    const at = options.indexOf(current());
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && options.length) {
      event.preventDefault();
      expand(true);
      select(options.at(at < 0 ? Math.min(step, 0) : (at + step) % options.length));
    } else if ((event.key === "Enter" || event.key === "Tab") && !timer && !latest && !list.hidden && at >= 0) {
      take(options[at]);
      if (event.key === "Enter") event.preventDefault(); // a form with this field is not sent yet
    } else if (event.key === "Escape" && !list.hidden) {
      event.stopPropagation();
      event.preventDefault();
      expand(false);
    }
  });
  holder.append(input, list);
  return holder;
}

function pickerUrl(key, type) {
  return type === "reference" || type === "user" ? grid.dataset.pick.replace("KEY", encodeURIComponent(key)) : null;
}

const savers = new WeakMap(); // of open editors, by their cell

function isChanged(cell) {
  return valueIn(cell.querySelector(".editor").querySelector("input, select, textarea")) !== cell.dataset.value;
}

// What was typed into another cell is saved first. If that is refused, its editor stays.
async function leaveFor(open, cell, typed) {
  await savers.get(open)?.();
  if (!grid.querySelector("td.editing")) edit(cell, typed);
}

function close(cell) {
  cell.querySelector(".editor")?.remove();
  cell.querySelector(".cell").hidden = false;
  cell.classList.remove("editing");
  cell.focus();
  cell.dispatchEvent(new CustomEvent("cell:closed", { bubbles: true }));
}

// Open the editor of a cell. `typed` replaces its value.
function edit(cell, typed) {
  const open = grid.querySelector("td.editing");
  if (open === cell || cell.hasAttribute("data-read-only")) return;
  if (open && isChanged(open)) return leaveFor(open, cell, typed);
  if (open) close(open);
  showProblem(cell, "");
  const { key, type, value } = cell.dataset;
  const row = cell.closest("tr");
  const editor = document.createElement("div");
  editor.className = "editor";
  const input = controlFor(type, value, { values: cell.dataset.values?.split(",") });
  input.setAttribute("aria-label", type === "timestamp" ? `${key} (UTC)` : key);
  const problem = document.createElement("p");
  problem.className = "problem";
  problem.setAttribute("role", "alert");
  problem.hidden = true;
  const actions = document.createElement("div");
  actions.className = "tools";

  const refuse = (text) => {
    problem.hidden = false;
    problem.textContent = text;
    input.setAttribute("aria-invalid", "true");
  };
  // After a save, `then` is the arrow key for the next cell.
  const save = async (text, { then } = {}) => {
    const step = [];
    const answer = await patchRow(row, { [key]: text }, step);
    if (answer.status === 200) {
      remember(step);
      close(cell);
      if (then) move(cell, then);
    } else if (answer.status === 412) await conflict(text);
    else refuse(messageOf(errorOf(answer), key));
  };
  const saveInput = async (then) => {
    await choices.get(input)?.();
    const text = valueIn(input);
    if (text === value && !cell.hasAttribute("data-null")) {
      close(cell);
      if (then) move(cell, then);
      return;
    }
    if (type === "json" && jsonText(type, text) !== text) refuse("This is not JSON. Write texts in quotes.");
    else return save(jsonText(type, text), { then });
  };
  savers.set(cell, saveInput);
  const conflict = async (text) => {
    const current = await send("GET", row.dataset.id);
    if (current.status !== 200) return refuse("The row no longer exists.");
    const shown = document.createElement("bdi");
    shown.textContent = JSON.stringify(parse(current.text)[key]);
    problem.hidden = false;
    problem.replaceChildren("Someone else changed this row. Its value is now ", shown, ".");
    savers.delete(cell); // the user now chooses one of the values
    actions.replaceChildren(
      button("Save mine", () => (showRow(row, current), save(text)), "primary"),
      button("Keep theirs", () => {
        showRow(row, current);
        close(cell);
      }),
    );
  };

  actions.append(
    button("Save", () => saveInput(), "primary"),
    button("Cancel", () => close(cell)),
  );
  if (cell.hasAttribute("data-nullable")) actions.append(button("Set null", () => save("null")));
  const url = pickerUrl(key, type);
  if (url && value) {
    input.dataset.id = value;
    input.value = cell.querySelector(".cell").textContent;
  }
  editor.append(url ? withPicker(input, url) : input, problem, actions);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !(event.shiftKey && input.tagName === "TEXTAREA")) {
      event.preventDefault();
      saveInput("ArrowDown");
    } else if (event.key === "Tab") {
      // Shift Tab from the first control and Tab move to the next cell, as in a spreadsheet.
      event.preventDefault();
      saveInput(event.shiftKey ? "ArrowLeft" : "ArrowRight");
    }
  });
  editor.addEventListener("keydown", (event) => {
    if (event.key === "Escape") close(cell);
    event.stopPropagation();
  });
  cell.querySelector(".cell").hidden = true;
  cell.classList.add("editing");
  cell.append(editor);
  if (typed !== undefined && input.tagName !== "SELECT" && ["text", "textarea"].includes(input.type)) {
    input.value = typed;
    delete input.dataset.id;
  } else if (url) input.select();
  editor.scrollIntoView({ block: "nearest", inline: "nearest" });
  input.focus();
}

for (const field of document.querySelectorAll("#new-row [data-field]")) {
  const url = pickerUrl(field.dataset.field, field.dataset.type);
  const input = field.querySelector("input");
  if (!url || !input) continue;
  const place = document.createComment("");
  input.replaceWith(place);
  place.replaceWith(withPicker(input, url));
}
