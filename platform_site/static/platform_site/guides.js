// Search, copy buttons and the current heading of the guides. Every page works without this script.
"use strict";

const MOST = 8;
const box = document.querySelector(".search");
const field = box.querySelector("input");
const results = box.querySelector("ul");
let index = null;
let chosen = -1;

async function sections() {
  index ??= fetch(box.dataset.index).then((answer) => answer.json()).then((json) =>
    json.sections.map((each) => ({ ...each, lowTitle: each.title.toLowerCase(),
      lowPage: each.page.toLowerCase(), lowText: each.text.toLowerCase() })));
  return index;
}

// Higher is better; 0 where a word is missing. Titles count more than text, the beginning of a word more than its middle.
function score(section, words) {
  let total = 0;
  for (const word of words) {
    let best = 0;
    for (const [text, weight] of [[section.lowTitle, 12], [section.lowPage, 6], [section.lowText, 1]]) {
      const at = text.indexOf(word);
      if (at >= 0) best = Math.max(best, weight * (at === 0 || /\W/.test(text[at - 1]) ? 2 : 1));
    }
    if (!best) return 0;
    if (best <= 2) best += Math.min(section.lowText.split(word).length, 9) / 10; // in the text alone: how often
    total += best;
  }
  const query = words.join(" ");
  const exact = (section.lowTitle === query ? 20 : 0) + (section.lowPage === query ? 10 : 0);
  return section.is_last && !exact ? total / 100 : total + exact;
}

function excerpt(section, word) {
  const from = Math.max(0, section.lowText.indexOf(word) - 30);
  return (from ? "…" : "") + section.text.slice(from, from + 110) + (from + 110 < section.text.length ? "…" : "");
}

function row(section, words, number) {
  const item = document.createElement("li");
  const link = document.createElement("a");
  const title = document.createElement("strong");
  const text = document.createElement("span");
  link.href = section.url;
  title.textContent = section.title === section.page ? section.page : `${section.page}: ${section.title}`;
  text.textContent = excerpt(section, words[0]);
  link.append(title, text);
  item.append(link);
  item.id = `result-${number}`;
  item.setAttribute("role", "option");
  return item;
}

function show(items) {
  chosen = -1;
  results.replaceChildren(...items);
  results.hidden = items.length === 0;
  field.setAttribute("aria-expanded", String(items.length > 0));
  field.removeAttribute("aria-activedescendant");
}

function choose(number) {
  const items = [...results.querySelectorAll("[role=option]")];
  if (!items.length) return;
  chosen = (number + items.length) % items.length;
  items.forEach((item, at) => item.setAttribute("aria-selected", String(at === chosen)));
  items[chosen].scrollIntoView({ block: "nearest" });
  field.setAttribute("aria-activedescendant", items[chosen].id);
}

async function search() {
  const query = field.value;
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return show([]);
  const found = (await sections()).map((section) => [score(section, words), section])
    .filter(([points]) => points > 0).sort(([a], [b]) => b - a).slice(0, MOST);
  if (field.value !== query) return; // more was typed meanwhile
  if (found.length) return show(found.map(([, section], number) => row(section, words, number)));
  const nothing = document.createElement("li");
  nothing.textContent = "Nothing found.";
  show([nothing]);
}

field.addEventListener("focus", sections);
field.addEventListener("input", search);
field.addEventListener("keydown", (event) => {
  if (event.key === "ArrowDown") choose(chosen + 1);
  else if (event.key === "ArrowUp") choose(chosen - 1);
  else if (event.key === "Escape") { field.value = ""; show([]); }
  else if (event.key === "Enter") results.querySelectorAll("a")[Math.max(chosen, 0)]?.click();
  else return;
  event.preventDefault();
});
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select");
  if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  field.focus();
});
document.addEventListener("click", (event) => { if (!box.contains(event.target)) show([]); });
results.addEventListener("click", () => setTimeout(() => show([])));
box.hidden = false;

for (const code of document.querySelectorAll("main pre")) {
  const around = document.createElement("div");
  const button = document.createElement("button");
  around.className = "code";
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  code.replaceWith(around);
  around.append(code, button);
  code.tabIndex = 0; // so that the keyboard can scroll it
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent.trimEnd());
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code); // without https there is no clipboard
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
}

const links = new Map([...document.querySelectorAll(".on-page a")].map((link) => [link.hash.slice(1), link]));
const seen = new IntersectionObserver((entries) => {
  const top = entries.find((entry) => entry.isIntersecting);
  if (!top) return;
  for (const [id, link] of links) link.toggleAttribute("aria-current", id === top.target.id);
}, { rootMargin: "0px 0px -75% 0px" });
for (const id of links.keys()) seen.observe(document.getElementById(id));
