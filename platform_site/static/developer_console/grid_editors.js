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

const pickers = new WeakMap(); // by their text field

let isPressed = false; // the mouse button, or a finger
for (const name of ["pointerdown", "pointerup", "pointercancel"]) {
  document.addEventListener(name, () => (isPressed = name === "pointerdown"), true);
}

// A text field that finds rows or users. It shows the label; `dataset.id` has the id, once one is chosen.
// The first suggestion for what was typed is selected: Enter, Tab or leaving the field takes it, arrow keys choose
// another.
class Picker {
  static count = 0;
  isOpen = false;
  #timer; // of a search that waits for the end of typing
  #latest; // the promise of the search under way

  constructor(input, url) {
    this.input = input;
    this.url = url;
    this.list = document.createElement("ul");
    this.list.id = `picker-${(Picker.count += 1)}`;
    this.list.setAttribute("role", "listbox");
    this.list.setAttribute("aria-label", "Suggestions");
    this.list.hidden = true;
    input.setAttribute("role", "combobox");
    input.setAttribute("aria-expanded", "false");
    input.setAttribute("aria-controls", this.list.id);
    input.setAttribute("aria-autocomplete", "list");
    input.autocomplete = "off";
    input.addEventListener("input", () => {
      delete input.dataset.id;
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.find(), 150);
    });
    input.addEventListener("focus", () => this.find());
    input.addEventListener("blur", async () => {
      await this.takeSelected();
      if (document.activeElement !== input) this.expand(false);
    });
    input.addEventListener("keydown", (event) => this.onKey(event));
    pickers.set(input, this);
  }

  // Empty once a row is chosen.
  get typed() {
    return this.input.dataset.id === undefined ? this.input.value.trim() : "";
  }

  get selected() {
    return this.list.querySelector('[aria-selected="true"]');
  }

  get options() {
    return [...this.list.querySelectorAll("[data-id]")];
  }

  expand(isOpen) {
    this.isOpen = isOpen;
    if (!isOpen) this.select(null);
    if (isOpen || !isPressed) return this.showList();
    // Later, so that a button below is still under the pointer when it is released.
    document.addEventListener("pointerup", () => setTimeout(() => this.showList()), { once: true });
  }

  showList() {
    this.list.style.height = "";
    this.list.hidden = !this.isOpen;
    this.input.setAttribute("aria-expanded", String(this.isOpen));
  }

  select(option) {
    for (const each of this.list.children) each.setAttribute("aria-selected", String(each === option));
    if (option) this.input.setAttribute("aria-activedescendant", option.id);
    else this.input.removeAttribute("aria-activedescendant");
    option?.scrollIntoView({ block: "nearest" });
  }

  take(option) {
    clearTimeout(this.#timer);
    this.#timer = this.#latest = undefined;
    this.input.dataset.id = option.dataset.id;
    this.input.value = option.firstChild.textContent || option.dataset.id;
    this.expand(false);
  }

  // The suggestion for what was typed, also if its search has not ended yet.
  async takeSelected() {
    if (!this.typed) return;
    if (this.#timer) await this.find();
    else await this.#latest;
    if (this.selected) this.take(this.selected);
  }

  async find() {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    const text = this.typed.toLowerCase();
    const search = (this.#latest = fetch(`${this.url}?q=${encodeURIComponent(this.typed)}`).then(
      (response) => (response.ok && !response.redirected ? response.json() : null),
      () => null,
    ));
    const answer = await search;
    if (search !== this.#latest) return;
    this.#latest = undefined;
    const found = answer?.data ?? [];
    if (isPressed) this.list.style.height = `${this.list.offsetHeight}px`; // see `expand`
    const isShownEmpty = answer && !text; // nothing was searched for
    if (found.length || isShownEmpty) this.list.replaceChildren(...found.map((each, at) => this.optionFor(each, at)));
    else this.list.replaceChildren(this.emptyOption(answer ? "No match" : "The search failed. Type again."));
    this.expand(document.activeElement === this.input && this.list.hasChildNodes());
    this.select(this.options[this.#bestOf(found, text)]);
  }

  // The index of the row to select: the current one, or one that is what was typed, or the first.
  #bestOf(found, text) {
    if (!text) return found.findIndex(({ id }) => id === this.input.dataset.id);
    const same = found.findIndex(({ id, label }) => [id.toLowerCase(), label.toLowerCase()].includes(text));
    // An email that only contains what was typed is another person's.
    const isOther = text.includes("@") && !found[0]?.label.toLowerCase().startsWith(text);
    return same < 0 && !isOther ? 0 : same;
  }

  optionFor({ id, label }, index) {
    const option = document.createElement("li");
    option.id = `${this.list.id}-${index}`;
    option.setAttribute("role", "option");
    option.dataset.id = id;
    const shown = document.createElement("bdi");
    shown.textContent = label;
    const code = document.createElement("code");
    code.textContent = id;
    option.append(shown, " ", code);
    option.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      this.take(option);
    });
    return option;
  }

  emptyOption(text) {
    const option = document.createElement("li");
    option.setAttribute("role", "option");
    option.setAttribute("aria-disabled", "true");
    option.textContent = text;
    return option;
  }

  onKey(event) {
    const { options } = this;
    const at = options.indexOf(this.selected);
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const isSearching = this.#timer || this.#latest;
    if (step && options.length) {
      event.preventDefault();
      this.expand(true);
      this.select(options.at(at < 0 ? Math.min(step, 0) : (at + step) % options.length));
    } else if ((event.key === "Enter" || event.key === "Tab") && !isSearching && !this.list.hidden && at >= 0) {
      this.take(options[at]);
      if (event.key === "Enter") event.preventDefault(); // a form with this field is not sent yet
    } else if (event.key === "Escape" && !this.list.hidden) {
      event.stopPropagation();
      event.preventDefault();
      this.expand(false);
    }
  }
}

// The element that holds the text field and its suggestions.
function withPicker(input, url) {
  const holder = document.createElement("div");
  holder.className = "picker";
  holder.append(input, new Picker(input, url).list);
  return holder;
}

function pickerUrl(key, type) {
  return type === "reference" || type === "user" ? grid.dataset.pick.replace("KEY", encodeURIComponent(key)) : null;
}

const editors = new WeakMap(); // open ones, by their cell

function isChanged(cell) {
  return valueIn(cell.querySelector(".editor").querySelector("input, select, textarea")) !== cell.dataset.value;
}

// What was typed into another cell is saved first. If that is refused, its editor stays.
async function leaveFor(open, cell, typed) {
  await editors.get(open)?.saveInput();
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
  new CellEditor(cell).open(typed);
}

class CellEditor {
  isTyped = false;

  constructor(cell) {
    const { key, type, value } = cell.dataset;
    Object.assign(this, { cell, row: cell.closest("tr"), key, type, value });
    this.input = controlFor(type, value, { values: cell.dataset.values?.split(",") });
    this.input.setAttribute("aria-label", type === "timestamp" ? `${key} (UTC)` : key);
    this.problem = document.createElement("p");
    this.problem.className = "problem";
    this.problem.setAttribute("role", "alert");
    this.problem.hidden = true;
    this.actions = document.createElement("div");
    this.actions.className = "tools";
    this.actions.append(
      button("Save", () => this.saveInput(), "primary"),
      button("Cancel", () => close(cell)),
    );
    if (cell.hasAttribute("data-nullable")) this.actions.append(button("Set null", () => this.save("null")));
    editors.set(cell, this);
  }

  open(typed) {
    const { cell, input } = this;
    const url = pickerUrl(this.key, this.type);
    if (url && this.value) {
      input.dataset.id = this.value;
      input.value = cell.querySelector(".cell").textContent;
    }
    const editor = document.createElement("div");
    editor.className = "editor";
    editor.append(url ? withPicker(input, url) : input, this.problem, this.actions);
    input.addEventListener("input", () => (this.isTyped = true));
    input.addEventListener("keydown", (event) => this.onKey(event));
    editor.addEventListener("keydown", (event) => {
      if (event.key === "Escape") close(cell);
      event.stopPropagation();
    });
    cell.querySelector(".cell").hidden = true;
    cell.classList.add("editing");
    cell.append(editor);
    if (typed !== undefined && input.tagName !== "SELECT" && ["text", "textarea"].includes(input.type)) {
      input.value = typed;
      this.isTyped = true;
      delete input.dataset.id;
    } else if (url) input.select();
    editor.scrollIntoView({ block: "nearest", inline: "nearest" });
    input.focus();
  }

  onKey(event) {
    if (event.key === "Enter" && !(event.shiftKey && this.input.tagName === "TEXTAREA")) {
      event.preventDefault();
      this.saveInput("ArrowDown");
    } else if (event.key === "Tab") {
      // Shift Tab from the first control and Tab move to the next cell, as in a spreadsheet.
      event.preventDefault();
      this.saveInput(event.shiftKey ? "ArrowLeft" : "ArrowRight");
    }
  }

  // `then` is the arrow key for the next cell. Null stays null unless something is typed.
  async saveInput(then) {
    await pickers.get(this.input)?.takeSelected();
    const text = valueIn(this.input);
    if (text === this.value && !(this.isTyped && this.cell.hasAttribute("data-null"))) this.leave(then);
    else if (this.type === "json" && jsonText("json", text) !== text) this.refuse("This is not JSON. Write texts in quotes.");
    else await this.save(jsonText(this.type, text), then);
  }

  async save(json, then) {
    const step = [];
    const answer = await patchRow(this.row, { [this.key]: json }, step);
    if (answer.status === 200) {
      remember(step);
      this.leave(then);
    } else if (answer.status === 412) await this.showConflict(json);
    else this.refuse(messageOf(errorOf(answer), this.key));
  }

  leave(then) {
    close(this.cell);
    if (then) move(this.cell, then);
  }

  refuse(text) {
    this.problem.hidden = false;
    this.problem.textContent = text;
    this.input.setAttribute("aria-invalid", "true");
  }

  // Another change of the row came first: the user chooses one of the values.
  async showConflict(json) {
    const current = await send("GET", this.row.dataset.id);
    if (current.status !== 200) return this.refuse("The row no longer exists.");
    const theirs = document.createElement("bdi");
    theirs.textContent = JSON.stringify(parse(current.text)[this.key]);
    this.problem.hidden = false;
    this.problem.replaceChildren("Someone else changed this row. Its value is now ", theirs, ".");
    editors.delete(this.cell); // leaving the cell does not save it
    this.actions.replaceChildren(
      button("Save mine", () => {
        showRow(this.row, current);
        this.save(json);
      }, "primary"),
      button("Keep theirs", () => {
        showRow(this.row, current);
        close(this.cell);
      }),
    );
  }
}

for (const field of document.querySelectorAll("#new-row [data-field]")) {
  const url = pickerUrl(field.dataset.field, field.dataset.type);
  const input = field.querySelector("input");
  if (!url || !input) continue;
  const place = document.createComment("");
  input.replaceWith(place);
  place.replaceWith(withPicker(input, url));
}
