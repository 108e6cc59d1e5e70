// Live changes of the page's rows by others: the API's stream, through the console.
"use strict";

const liveState = document.getElementById("live-state");
const newRows = new Set(); // ids of rows that others have added
let ownUntil = 0; // Until then new rows count as those of an import from this page.
let lastId = null;
let listening = null; // aborts the stream

function showLiveState(text, withLink = false) {
  liveState.replaceChildren(text);
  if (withLink) {
    const link = document.createElement("a");
    link.href = location.href;
    link.textContent = "Show";
    liveState.append(" ", link);
  }
}

function rowWith(id) {
  return grid.querySelector(`tr[data-id="${CSS.escape(id)}"]`);
}

// The row as it is now. While one of its cells is edited it stays as it is: a save then shows both values.
async function refresh(row) {
  if (row.querySelector("td.editing")) {
    row.dataset.stale = "";
    return;
  }
  const current = await send("GET", row.dataset.id);
  if (row.querySelector("td.editing")) return;
  if (current.status === 404) return markGone(row);
  if (current.status !== 200 || current.etag === row.dataset.etag) return;
  showRow(row, current);
  row.classList.add("changed");
  setTimeout(() => row.classList.remove("changed"), 2000);
}

function markGone(row) {
  row.classList.add("gone");
}

// This page shows the row, or it is gone.
function forgetNewRow(id) {
  if (newRows.delete(id) && !newRows.size) showLiveState("Live");
}

function receive(name, data) {
  if (name === "row") {
    const row = rowWith(data.id);
    if (row) refresh(row);
    else if (Date.now() > ownUntil) {
      newRows.add(data.id);
      showLiveState(`${countOf(newRows.size)} added or changed elsewhere.`, true);
    }
  } else if (name === "gone") {
    const row = rowWith(data.id);
    if (row) markGone(row);
    forgetNewRow(data.id);
  } else if (name === "reset" && Date.now() > ownUntil) showLiveState("The table has changed.", true);
  else if (name === "ready") {
    showLiveState("Live");
    catchUp();
  }
}

async function currentPage() {
  const response = await fetch(location.href);
  if (!response.ok || response.redirected) return null;
  return new DOMParser().parseFromString(await response.text(), "text/html");
}

// Reloads all rows. The stream reports rows of an import a little later: for `own` milliseconds, new rows are expected.
async function reloadRows(own) {
  ownUntil = Date.now() + own;
  const page = grid.querySelector("td.editing") ? null : await currentPage();
  if (!page || grid.querySelector("td.editing")) return showLiveState("The table has changed.", true);
  const now = page.querySelector("table.grid");
  if (now.tHead.rows[0].cells.length !== grid.tHead.rows[0].cells.length) return location.reload();
  grid.tBodies[0].replaceWith(now.tBodies[0]);
  for (const part of ["[data-count]", ".pages"]) {
    document.querySelector(part)?.remove();
    const shown = page.querySelector(part);
    if (shown) part === ".pages" ? document.getElementById("new-row").before(shown) : liveState.after(" ", shown);
  }
  const columns = stored("order", []);
  if (columns.length) applyOrder(columns);
  if (newRows.size) showLiveState("Live");
  newRows.clear();
  skipControls();
  enableDelete();
}

// Changes between the rendering of the page and the start of the stream.
async function catchUp() {
  const page = await currentPage();
  if (!page) return;
  const etags = new Map([...page.querySelectorAll("tr[data-etag]")].map((row) => [row.dataset.id, row.dataset.etag]));
  for (const row of grid.querySelectorAll("tr[data-etag]")) {
    if (etags.get(row.dataset.id) !== row.dataset.etag) refresh(row);
    etags.delete(row.dataset.id);
  }
  for (const id of etags.keys()) receive("row", { id });
}

async function listen() {
  const headers = { "X-CSRFToken": JSON.parse(document.body.getAttribute("hx-headers"))["X-CSRFToken"] };
  if (lastId) headers["Last-Event-ID"] = lastId;
  listening = new AbortController();
  const response = await fetch(grid.dataset.live, { method: "POST", headers, signal: listening.signal });
  if (!response.ok || response.redirected) {
    showLiveState("Not live");
    // Too many streams, or unavailable: try again later. No permission: stop.
    return response.status === 429 || response.status >= 500 ? 30_000 : null;
  }
  if (lastId) showLiveState("Live");
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  let wait = 2000;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return wait;
    const messages = (text + value).split("\n\n");
    text = messages.pop();
    for (const message of messages) {
      const lines = Object.fromEntries(message.split("\n").map((line) => line.split(/: (.*)/s)));
      if (lines.id) lastId = lines.id;
      const data = JSON.parse(lines.data || "{}");
      if (lines.event === "bye") wait = data.retry_ms ?? null;
      else receive(lines.event, data);
    }
  }
}

// A hidden page has no stream: browsers allow few at a time.
function whenVisible() {
  return new Promise((resolve) => {
    if (!document.hidden) return resolve();
    document.addEventListener("visibilitychange", resolve, { once: true });
  });
}

document.addEventListener("visibilitychange", () => document.hidden && listening?.abort());

async function stayLive() {
  for (;;) {
    await whenVisible();
    let wait = 5000;
    try {
      wait = await listen();
    } catch {
      if (document.hidden) continue;
      showLiveState("Connecting …");
    }
    if (wait === null) return showLiveState("Not live");
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
}

grid.addEventListener("cell:closed", (event) => {
  const row = event.target.closest("tr");
  if (!("stale" in row.dataset)) return;
  delete row.dataset.stale;
  refresh(row);
});
if (grid.dataset.live) stayLive();
