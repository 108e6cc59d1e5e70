// Colours for code: a copy of the text, in colours and hidden from screen readers, lies under the field that is edited.
"use strict";

const LONGEST_COLOURED = 60_000; // characters; longer texts are plain
const LANGUAGES = {
  json: /(?<name>"(?:[^"\\\n]|\\.)*"(?=\s*:))|(?<text>"(?:[^"\\\n]|\\.)*"?)|(?<number>-?\b\d[\d.eE+-]*)|(?<word>\b(?:true|false|null)\b)/g,
  typescript:
    /(?<comment>\/\/[^\n]*|\/\*[^]*?(?:\*\/|$))|(?<text>"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?|`(?:[^`\\]|\\[^])*`?)|(?<number>\b\d[\w.]*)|(?<word>(?<![$\w])(?:as|async|await|break|case|catch|class|const|continue|default|delete|do|else|enum|export|extends|false|finally|for|from|function|if|import|in|instanceof|interface|let|new|null|of|return|static|super|switch|this|throw|true|try|type|typeof|undefined|var|void|while|yield)\b)/g,
};

function paint(field, copy) {
  const text = field.value;
  const isShort = text.length <= LONGEST_COLOURED;
  field.parentElement.classList.toggle("coloured", isShort);
  const parts = [];
  let at = 0;
  for (const found of isShort ? text.matchAll(LANGUAGES[field.dataset.editor]) : []) {
    if (found.index > at) parts.push(text.slice(at, found.index));
    const word = document.createElement("span");
    word.className = Object.keys(found.groups).find((name) => found.groups[name] !== undefined);
    word.textContent = found[0];
    parts.push(word);
    at = found.index + found[0].length;
  }
  copy.replaceChildren(...parts, isShort ? `${text.slice(at)}\n` : "");
  align(field, copy);
}

function align(field, copy) {
  copy.scrollTop = field.scrollTop;
  copy.scrollLeft = field.scrollLeft;
}

function colourEditors() {
  for (const field of document.querySelectorAll("textarea[data-editor]")) {
    if (!LANGUAGES[field.dataset.editor] || field.parentElement.classList.contains("code-editor")) continue;
    const holder = document.createElement("div");
    holder.className = "code-editor";
    field.replaceWith(holder);
    const copy = document.createElement("pre");
    copy.setAttribute("aria-hidden", "true");
    const keys = document.createElement("small");
    keys.id = `${field.id}-keys`;
    keys.textContent = "Press Esc, then Tab to leave.";
    field.setAttribute("aria-describedby", `${field.getAttribute("aria-describedby") ?? ""} ${keys.id}`.trim());
    holder.append(copy, field, keys);
    field.addEventListener("input", () => paint(field, copy));
    field.addEventListener("scroll", () => align(field, copy));
    paint(field, copy);
  }
}

document.addEventListener("htmx:afterSwap", colourEditors);
colourEditors();
