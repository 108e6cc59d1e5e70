// Files of a table in parts: an upload of any size with its progress and the lines that were rejected, and downloads.
"use strict";

const PART = 256 * 1024; // bytes
const FIRST_PART = 32 * 1024; // each next one is twice as large, so that also small files show progress
const MOST_LINES = 2000; // of a part, which must end within 30 s also if many lines are rejected
const LONGEST_RECORD = 1024 * 1024;
const RETRY = 10; // seconds, after a refusal of too many requests that names none
const SHOWN = 100; // rejected lines
const progress = document.getElementById("file-progress");
const report = document.getElementById("file-report");
let isStopped = false;
let isImporting = false; // parts would be missing if the page were left

function showProgress(text, done) {
  progress.hidden = false;
  progress.querySelector("label").textContent = text;
  progress.querySelector("progress").value = done;
}

// The rate limit of the member, to whom each request of a part counts.
async function waitFor(seconds, rows, done) {
  for (let left = seconds; left > 0 && !isStopped; left -= 1) {
    showProgress(`${countOf(rows)} so far. Too many requests: goes on in ${left} s`, done);
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

function download(name, parts) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(parts));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

// The bytes of whole records from `start` on, and how many lines they are. A line break inside quotes of CSV ends none.
async function partOf(file, start, isCsv, least) {
  for (let size = least; ; size *= 2) {
    const bytes = new Uint8Array(await file.slice(start, start + size).arrayBuffer());
    const isLast = start + bytes.length >= file.size;
    let quotes = 0;
    let lines = 0;
    let end = 0;
    let seen = 0;
    for (let at = 0; at < bytes.length; at += 1) {
      if (bytes[at] === 0x22) quotes += 1;
      else if (bytes[at] === 0x0a) {
        seen += 1;
        if (!isCsv || quotes % 2 === 0) [end, lines] = [at + 1, seen];
        if (lines >= MOST_LINES) return { bytes: bytes.slice(0, end), lines };
      }
    }
    if (isLast) return { bytes, lines: seen };
    if (end) return { bytes: bytes.slice(0, end), lines };
    if (size > LONGEST_RECORD) return null;
  }
}

async function headerOf(file) {
  const bytes = new Uint8Array(await file.slice(0, PART).arrayBuffer());
  const end = bytes.indexOf(0x0a);
  return end < 0 ? new Uint8Array() : bytes.slice(0, end + 1);
}

async function sendPart(form, file, parts, isCheck) {
  const body = new FormData(form);
  body.set("file", new File(parts, file.name));
  if (isCheck) body.set("check", "1");
  const response = await fetch(form.action, { method: "POST", headers: { Accept: "application/json" }, body });
  const isJson = response.headers.get("Content-Type")?.startsWith("application/json");
  const stopped = response.redirected ? ENDED : `Not accepted (${response.status}).`;
  const retry = response.status === 429 ? { retry_after: RETRY, resume_at: parts.length > 1 ? parts[0].length : 0 } : {};
  if (!isJson) return { inserted: 0, rejected: [], skipped: [], stopped, ...retry };
  return response.json();
}

// A check counts as `inserted` the rows that an import would insert.
async function sendFile(form, file, isCheck) {
  const isCsv = !/\.(ndjson|jsonl)$/i.test(file.name);
  const header = isCsv ? await headerOf(file) : new Uint8Array();
  const total = { inserted: 0, rejected: [], skipped: [], stopped: null };
  let linesBefore = 0;
  isStopped = false;
  if (!file.size) total.stopped = "The file is empty.";
  for (let [start, size] = [0, FIRST_PART]; start < file.size && !total.stopped; size = Math.min(size * 2, PART)) {
    if (!isCheck) ownUntil = Infinity;
    const done = isCheck ? `${countOf(total.inserted)} checked` : `${countOf(total.inserted)} imported`;
    showProgress(`${done}, ${total.rejected.length} rejected`, start / file.size);
    const part = await partOf(file, start, isCsv, size);
    if (!part) {
      total.stopped = `Stopped after line ${linesBefore}: a record is longer than 1 MB.`;
      break;
    }
    const hasHeader = isCsv && start > 0;
    const answer = await sendPart(form, file, hasHeader ? [header, part.bytes] : [part.bytes], isCheck);
    total.inserted += answer.inserted;
    total.skipped = [...new Set([...total.skipped, ...answer.skipped])];
    for (const [line, reason] of answer.rejected) total.rejected.push([line + linesBefore - (hasHeader ? 1 : 0), reason]);
    if (answer.retry_after) {
      const sent = answer.resume_at - (hasHeader ? header.length : 0);
      start += sent;
      linesBefore += part.bytes.subarray(0, sent).reduce((lines, byte) => lines + (byte === 0x0a), 0);
      await waitFor(answer.retry_after, total.inserted, start / file.size);
    } else {
      total.stopped = answer.stopped && linesBefore ? `${answer.stopped} (${linesBefore} lines before)` : answer.stopped;
      start += part.bytes.length;
      linesBefore += part.lines;
    }
    if (isStopped && start < file.size) total.stopped ??= `Stopped after line ${linesBefore}.`;
  }
  progress.hidden = true;
  if (!total.inserted && !total.rejected.length) total.stopped ??= "The file has no rows.";
  return total;
}

// Of an import; or of a check that refuses rows, with `importValid` to import the others.
function showReport(total, name, importValid) {
  const box = document.createElement("div");
  box.className = total.rejected.length || total.stopped ? "problem" : "notice";
  const summary = document.createElement("p");
  const counts = `${countOf(total.inserted)} imported, ${total.rejected.length} rejected.`;
  const refused = `Nothing is imported yet: ${countOf(total.rejected.length)} would be rejected.`;
  const checked = total.stopped ? "Nothing is imported." : refused;
  const isNothing = !total.inserted && !total.rejected.length;
  summary.textContent = [isNothing ? "" : importValid ? checked : counts, total.stopped ?? ""].join(" ").trim();
  box.append(summary);
  if (total.skipped.length) {
    const skipped = document.createElement("p");
    skipped.textContent = `Columns that were skipped, because the platform sets them: ${total.skipped.join(", ")}.`;
    box.append(skipped);
  }
  const list = document.createElement("ul");
  list.className = "scrolled";
  list.tabIndex = 0;
  list.ariaLabel = "Rejected lines";
  for (const [line, reason] of total.rejected.slice(0, SHOWN)) {
    const item = document.createElement("li");
    const shown = document.createElement("bdi");
    shown.textContent = reason;
    item.append(`Line ${line}: `, shown);
    list.append(item);
  }
  if (total.rejected.length) {
    const quoted = (text) => `"${text.replaceAll('"', '""')}"`;
    const lines = ["line,reason", ...total.rejected.map(([line, reason]) => `${line},${quoted(reason)}`)];
    const all = button(total.rejected.length === 1 ? "Download the reason" : `Download all ${total.rejected.length} reasons`, () =>
      download(`${name}.rejected.csv`, [`${lines.join("\r\n")}\r\n`]),
    );
    const tools = document.createElement("div");
    tools.className = "tools";
    if (importValid && total.inserted && !total.stopped) {
      tools.append(button(`Import the ${countOf(total.inserted, "valid row")}`, importValid, "primary"));
    }
    tools.append(all);
    box.append(list, tools);
  }
  if (total.inserted && location.search && !importValid) {
    const link = document.createElement("a");
    link.href = location.pathname;
    link.textContent = "Show the rows without the filter";
    const last = document.createElement("p");
    last.append(link);
    box.append(last);
  }
  report.replaceChildren(box);
  box.scrollIntoView({ block: "nearest" });
}

async function exportFile(link) {
  const parts = [];
  let rows = 0;
  let cursor = null;
  isStopped = false;
  const about = Number(document.querySelector("[data-count]")?.dataset.count ?? 0);
  do {
    const done = about ? Math.min(0.99, rows / about) : 0;
    showProgress(`${rows} rows exported`, done);
    const url = `${link.href}&part=1${cursor ? `&cursor=${encodeURIComponent(cursor)}` : ""}`;
    let response = await fetch(url);
    while (response.status === 429 && !isStopped) {
      await waitFor(RETRY, rows, done);
      response = await fetch(url);
    }
    if (response.redirected) return location.reload();
    if (!response.ok) {
      showStatus("The export failed. Try again.");
      progress.hidden = true;
      return;
    }
    parts.push(await response.blob());
    rows += Number(response.headers.get("X-Rows"));
    cursor = response.headers.get("X-Next-Cursor");
  } while (cursor && !isStopped);
  progress.hidden = true;
  if (!cursor) download(link.dataset.export, parts);
  showStatus(cursor ? `Stopped after ${rows} rows. No file was saved.` : `${rows} rows exported.`, Boolean(cursor));
}

async function importFile(form, file) {
  isImporting = true;
  try {
    const total = await sendFile(form, file, false).finally(() => (isImporting = false));
    showReport(total, file.name);
    await reloadRows(10_000).catch(() => showLiveState("The table has changed.", true));
  } catch {
    showStatus("The connection was lost. Complete parts are imported: compare the rows before you repeat.");
    ownUntil = 0;
  }
}

async function checkAndImport(form, file) {
  const checked = await sendFile(form, file, true).catch(() => null);
  if (!checked) showStatus("The connection was lost. Nothing is imported.");
  else if (!checked.rejected.length && !checked.stopped) await importFile(form, file);
  else showReport(checked, file.name, () => runAlone(form, importFile, file));
}

// One check or import at a time.
async function runAlone(form, action, file) {
  const submit = form.querySelector("button");
  submit.disabled = true;
  report.replaceChildren();
  await action(form, file);
  progress.hidden = true;
  submit.disabled = false;
}

progress.querySelector("[data-stop]").addEventListener("click", () => (isStopped = true));
document.querySelector("[data-import]")?.addEventListener("submit", (event) => {
  event.preventDefault();
  runAlone(event.target, checkAndImport, event.target.elements.file.files[0]);
});
window.addEventListener("beforeunload", (event) => {
  if (isImporting) event.preventDefault();
});
for (const link of document.querySelectorAll("[data-export]")) {
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    exportFile(link);
  });
}
