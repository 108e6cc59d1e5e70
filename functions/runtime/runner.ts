/**
 * The program inside the sandbox. It loads one version of one function and runs one call at a time, as requested by frames
 * on stdin; results are frames on stdout. Calls that arrive while another one runs are queued. A frame is a 4-byte
 * little-endian length and that many bytes of JSON.
 *
 * References to all built-ins that the channel needs are saved before the tenant's code is loaded, so code that patches
 * globals only breaks itself. Every frame of a call carries its random tag, which the code cannot read: frames are assembled
 * as text, never through an object whose prototype the code could reach. No limit relies on this program: the host counts
 * and measures itself. Requests of the code use the same channel, and the host decides them with the permissions of the
 * call's caller; a `ctx` kept from an earlier call has no effect.
 *
 * In:   {t:"load", source, ahead, required} · {t:"run", tag, input, run_id, caller, secrets, max_output} · {t:"reply", tag, n, ok, value}
 * Out:  {t:"ready"} · {t:"loaded"} · {t:"unloadable", error} · {t:"log", tag, level, text} · {t:"call", tag, n, op, args}
 *       · {t:"done", tag, output} · {t:"failed", tag, reason, error}
 */

// ── taken before any tenant's code ──────────────────────────────────────────────────────────────────────────────────
const { stringify, parse: parseJson, rawJSON } = JSON as any;
const { freeze, defineProperty, fromEntries } = Object;
const uncurry = Function.prototype.call.bind.bind(Function.prototype.call) as (f: unknown) => any;
const encoder = new TextEncoder();
const decoder = new TextDecoder();
const encode = uncurry(TextEncoder.prototype.encode);
const decode = uncurry(TextDecoder.prototype.decode);
const set = uncurry(Uint8Array.prototype.set);
const subarray = uncurry(Uint8Array.prototype.subarray);
const lengthOf = uncurry(Object.getOwnPropertyDescriptor(Object.getPrototypeOf(Uint8Array.prototype), "length")!.get);
const slice = uncurry(String.prototype.slice);
const Bytes = Uint8Array;
const NativeBuffer = ArrayBuffer;
const isView = ArrayBuffer.isView;
const isArray = Array.isArray;
const { asyncIterator, iterator } = Symbol;
const NativePromise = Promise;
const NativeError = Error;
const NativeRangeError = RangeError;
const NativeTypeError = TypeError;
const NativeString = String;
const toNumber = Number, toInteger = Number.parseInt, toFloat = Number.parseFloat;
const fromCharCodes = Function.prototype.call.bind(Function.prototype.apply, String.fromCharCode) as any;
const NativeResponse = Response, NativeHeaders = Headers, NativeRequest = Request, NativeParams = URLSearchParams;
const deadlines = new WeakMap<AbortSignal, number>();
const deadlineOf = uncurry(WeakMap.prototype.get);
const setDeadline = uncurry(WeakMap.prototype.set);
const signalAfter = AbortSignal.timeout.bind(AbortSignal);
const NativeBlob = Blob, NativeFormData = FormData, NativeStream = ReadableStream;
const NativeMap = Map;
const mapGet = uncurry(Map.prototype.get);
const mapSet = uncurry(Map.prototype.set);
const mapDelete = uncurry(Map.prototype.delete);
const mapSize = uncurry(Object.getOwnPropertyDescriptor(Map.prototype, "size")!.get);
const mapForEach = uncurry(Map.prototype.forEach);
const stdin = Deno.stdin, stdout = Deno.stdout;
const read = stdin.read.bind(stdin) as (into: Uint8Array) => Promise<number | null>;
const readSync = stdin.readSync.bind(stdin) as (into: Uint8Array) => number | null;
const writeSync = stdout.writeSync.bind(stdout) as (from: Uint8Array) => number;
const inspect = Deno.inspect;
const NativeBigInt = BigInt;
const isSafe = Number.isSafeInteger, isFiniteNumber = Number.isFinite;
/** Not `test`: that calls `exec` by name, which the code may have replaced by a function that reads the frame's tag. */
const matches = uncurry(RegExp.prototype.exec);
const exit = Deno.exit;
const atob64 = globalThis.atob;
const btoa64 = globalThis.btoa;
const queue = globalThis.queueMicrotask;
const clearTimer = globalThis.clearTimeout;
const now = performance.now.bind(performance) as () => number;
/** The call to which the running code belongs. V8 propagates it through promises, timers, events and streams. */
const { AsyncVariable, setAsyncContext } = (Deno as any)[(Deno as any).internal].core;
const origin = new AsyncVariable();
const enterCall = origin.enter.bind(origin) as (tag: string) => unknown;
const callOfCode = origin.get.bind(origin) as () => string | undefined;
const startTimer = globalThis.setTimeout;
const timerStart = { setTimeout: globalThis.setTimeout, setInterval: globalThis.setInterval };

const MAX_LOG_LINES = 256, MAX_LOG_CHARACTERS = 4096, MAX_FETCH_BODY = 1024 * 1024, MAX_ASKED = 8;
const UNHANDLED_WARNING_MS = 1000;
/** So that the signal's own error comes first. */
const SIGNAL_GRACE_MS = 50;

// ── frames ──────────────────────────────────────────────────────────────────────────────────────────────────────────
/** Views of a buffer are constructed directly: `subarray` would read the constructor from the prototype, which the code may have patched. */
function send(text: string): void {
  const body = encode(encoder, text) as Uint8Array;
  const length = lengthOf(body) as number;
  const buffer = new NativeBuffer(length + 4);
  const frame = new Bytes(buffer);
  frame[0] = length & 255;
  frame[1] = (length >>> 8) & 255;
  frame[2] = (length >>> 16) & 255;
  frame[3] = length >>> 24;
  set(frame, body, 4);
  for (let sent = writeSync(frame); sent < length + 4;) sent += writeSync(new Bytes(buffer, sent));
}

/** Bytes read ahead: most frames arrive whole, so one read is enough for each. */
const aheadBuffer = new NativeBuffer(65536);
const ahead = readable(aheadBuffer, 0);
let from = 0, until = 0;

/** Deno's `read` reads the length of its buffer: an own property, not the prototype's. */
function readable(buffer: ArrayBuffer, offset: number): Uint8Array {
  const bytes = new Bytes(buffer, offset);
  return defineProperty(bytes, "length", { value: lengthOf(bytes) });
}

function fill(buffer: ArrayBuffer, length: number): void {
  const into = new Bytes(buffer);
  for (let got = 0; got < length;) {
    if (from === until) {
      const direct = length - got >= 65536; // a large frame is read directly into its buffer
      const more = readSync(direct ? readable(buffer, got) : ahead);
      if (more === null) exit(0); // the parent is gone
      else if (direct) {
        got += more;
        continue;
      } else from = 0, until = more;
    }
    const taken = until - from < length - got ? until - from : length - got;
    set(into, new Bytes(aheadBuffer, from, taken), got);
    from += taken, got += taken;
  }
}

/** Waits for input. The code of the call continues meanwhile. */
async function arrival(): Promise<void> {
  if (from !== until) return;
  const more = await read(ahead);
  if (more === null) exit(0); // the parent is gone
  else from = 0, until = more;
}

/** The next frame's JSON. It blocks, which is much cheaper than an asynchronous read; nothing may run between two calls. */
function receive(): string {
  fill(headBuffer, 4);
  const length = head[0] | (head[1] << 8) | (head[2] << 16) | (head[3] << 24);
  const buffer = new NativeBuffer(length);
  fill(buffer, length);
  return decode(decoder, new Bytes(buffer));
}
const headBuffer = new NativeBuffer(4), head = new Bytes(headBuffer);

const LONG_NUMBER = /\d{16}/, LONG_INTEGER = /^-?\d{16,40}$/, EMPTY = /^$/;

/** As JSON.parse, but an integer that a Number cannot hold exactly becomes a BigInt. */
function parse(json: string): any {
  if (!matches(LONG_NUMBER, json)) return parseJson(json);
  const parsed = parseJson(json, (_: string, value: unknown, { source }: { source: string }) =>
    typeof value === "number" && !isSafe(value) && matches(LONG_INTEGER, source) ? NativeBigInt(source) : value);
  matches(EMPTY, ""); // otherwise the code could read the frame as `RegExp.input`
  return parsed;
}

// ── state of a call, cleared when it ends ───────────────────────────────────────────────────────────────
let tag: string | null = null;
let lines = 0;
/** Requests of the call: how many were made, sent, answered. */
let requestCount = 0, sent = 0, answered = 0;
let pendingRequests = new NativeMap<number, { text: string; resolve: (value: unknown) => void; reject: (error: unknown) => void; refusal: Error }>();
let allSent: (() => void) | null = null;
/** Wakes the main loop, which waits for the end of the call or for its next request. */
let wakeMainLoop: (() => void) | null = null;
const timers: number[] = [];
let failCall: ((error: unknown) => void) | null = null;
/** Rejected promises of this call that are not handled so far. */
let unhandled = new NativeMap<Promise<unknown>, { reason: unknown }>();

function describe(error: unknown): { name: string; message: string; stack: string | null } {
  try {
    if (error instanceof NativeError) {
      const stack = typeof error.stack === "string" ? text(stackOf(error, 1), 4000) : null;
      return { name: text(error.name, 200), message: text(cleaned(NativeString(error.message)) + refused(error), 2000), stack };
    }
    return { name: "Error", message: text(typeof error === "string" ? error : "threw " + inspect(error), 2000), stack: null };
  } catch {
    return { name: "Error", message: "threw something that cannot be described", stack: null };
  }
}

/** An error with its cause, and the errors of an AggregateError. */
function stackOf(error: unknown, depth: number): string {
  if (!(error instanceof NativeError)) return text(typeof error === "string" ? error : inspect(error), 1000);
  let stackText = text(cleaned(NativeString(error.stack)), 4000);
  if (depth > 5) return stackText;
  const several = (error as any).errors;
  if (isArray(several)) for (let i = 0; i < several.length && i < 5; i++) stackText += "\nOne of: " + stackOf(several[i], depth + 1);
  if (error.cause !== undefined) stackText += "\nCaused by: " + stackOf(error.cause, depth + 1);
  return stackText;
}

/** The refused columns or parameters, if the error is an uncaught one of `ctx.rows`. */
function refused(error: any): string {
  let details = "";
  try {
    const fields = error.fields;
    if (isArray(fields)) for (let i = 0; i < fields.length && i < 10; i++) details += " " + text(fields[i].field, 200) + ": " + text(fields[i].message, 300);
  } catch {
    // an error of the code's own, whose `fields` are something else
  }
  return details;
}

/** As JSON, string by string: for an object, a `toJSON` that the code may have put on a prototype would be called. */
function errorText(error: { name: string; message: string; stack: string | null }): string {
  return '{"name":' + stringify(error.name) + ',"message":' + stringify(error.message) + ',"stack":' + stringify(error.stack) + "}";
}

function text(value: unknown, longest: number): string {
  return slice(typeof value === "string" ? value : NativeString(value), 0, longest);
}

/** The tenant's module arrives as a data: URL of many kilobytes; in a stack it appears as `function.ts`; lines of the runner are left out. */
const replace = uncurry(String.prototype.replace);
const includes = uncurry(String.prototype.includes);
const MODULE_URL = /data:application\/typescript[^\s:)"]*(:?)/g;
const OWN_FRAMES = /\n\s+at [^\n]*runner\.ts:\d+:\d+\)?/g;
function cleaned(stack: string): string {
  if (!includes(stack, "data:application/typescript") && !includes(stack, "runner.ts:")) return stack;
  return replace(replace(stack, MODULE_URL, "function.ts$1"), OWN_FRAMES, "");
}

/** Formats values as consoles do, if the first one is a format string (`%s`, `%d`, …). */
function formatted(parts: unknown[]): unknown[] {
  const format = parts[0];
  if (typeof format !== "string" || parts.length === 1 || !includes(format, "%")) return parts;
  let next = 1;
  const line = replace(format, /%[sdifjoOc%]/g, (mark: string) => {
    if (mark === "%%") return "%";
    if (next === parts.length) return mark;
    const value = parts[next++];
    if (mark === "%c") return "";
    if (mark === "%s") return typeof value === "object" ? inspect(value, { depth: 1 }) : NativeString(value);
    if (mark === "%j") return stringify(value) ?? "undefined";
    if (mark === "%o" || mark === "%O") return inspect(value);
    if (typeof value === "bigint") return NativeString(value) + "n";
    if (typeof value === "object" || typeof value === "symbol") return "NaN";
    return NativeString(mark === "%d" ? toNumber(value) : mark === "%i" ? toInteger(value) : toFloat(value));
  });
  const values: unknown[] = [line];
  while (next < parts.length) values[values.length] = parts[next++];
  return values;
}

/** Ignores code of earlier calls and of the module's top level, since the log is shown to the caller. */
function log(level: string, parts: unknown[]): void {
  if (tag === null || callOfCode() !== tag || lines > MAX_LOG_LINES) return;
  lines += 1;
  let line = "";
  if (lines > MAX_LOG_LINES) line = "(more lines were dropped)";
  else {
    try {
      parts = formatted(parts);
      for (let i = 0; i < parts.length; i++) {
        line += (i ? " " : "") + (typeof parts[i] === "string" ? parts[i] : inspect(parts[i], { depth: 4, strAbbreviateSize: 1000 }));
        if (line.length > MAX_LOG_CHARACTERS) break;
      }
    } catch {
      line += " (a value that cannot be shown)";
    }
  }
  send('{"t":"log","tag":"' + tag + '","level":"' + level + '","text":' + stringify(text(cleaned(line), MAX_LOG_CHARACTERS)) + "}");
}

/** JSON leaves out some values and makes null of others, so that the filter would match other rows. */
function refuseLost(this: any, key: string, value: unknown): unknown {
  const given = this[key];
  const isLost = typeof value === "number" ? !isFiniteNumber(value) : value === null && given !== null; // an invalid date
  if (isLost || value === undefined || typeof value === "function" || typeof value === "symbol") {
    throw coded(new NativeTypeError(`The filter's "${key}" is ${NativeString(given)}, which JSON cannot hold.`), "validation_failed");
  }
  return value;
}

function ask(mine: string, op: string, args: any): Promise<any> {
  const refusal = new NativeError(); // created here for its stack: the reply arrives in our own loop
  return new NativePromise((resolve, reject) => {
    if (tag !== mine) {
      reject(new NativeError("this ctx belongs to a call that has ended"));
      return;
    }
    let body: string | undefined;
    try {
      const { where, having } = args.query ?? {};
      if (where !== undefined) stringify(where, refuseLost);
      if (having !== undefined) stringify(having, refuseLost);
      body = stringify(args);
    } catch (error) {
      reject(error);
      return;
    }
    const n = ++requestCount;
    const text = '{"t":"call","tag":"' + mine + '","n":' + n + ',"op":"' + op + '","args":' + (body ?? "null") + "}";
    mapSet(pendingRequests, n, { text, resolve, reject, refusal });
    sendQuestions();
  });
}

/** At most what the host reads while its own write blocks: with a larger burst both sides would block on writing. */
function sendQuestions(): void {
  while (sent < requestCount && sent - answered < MAX_ASKED) send(mapGet(pendingRequests, ++sent)!.text);
  wakeMainLoop?.();
  if (sent === requestCount && allSent) {
    allSent();
    allSent = null;
  }
}

/** Settle a request with its reply, or with the error that was created where the request was made. */
function settle(reply: any): void {
  const waiting = mapGet(pendingRequests, reply.n);
  if (!waiting) return;
  mapDelete(pendingRequests, reply.n);
  answered++;
  sendQuestions();
  if (reply.ok) {
    waiting.resolve(reply.value);
    return;
  }
  const { value } = reply, error = waiting.refusal;
  defineProperty(error, "message", { value: value.message, writable: true, configurable: true });
  defineProperty(error, "name", { value: value.name, writable: true, configurable: true });
  coded(error, value.code);
  if (value.fields) defineProperty(error, "fields", { value: value.fields, enumerable: true });
  if (value.operation !== null) defineProperty(error, "operation", { value: value.operation, enumerable: true });
  waiting.reject(error);
}

function bytesToBase64(bytes: Uint8Array): string {
  const length = lengthOf(bytes) as number;
  if (length > MAX_FETCH_BODY) throw coded(new NativeRangeError("the body has more than 1 MB"), "payload_too_large");
  let binary = "";
  // In chunks: character by character, a megabyte would become a rope of a million nodes.
  for (let i = 0; i < length; i += 8192) binary += fromCharCodes(null, subarray(bytes, i, i + 8192));
  return btoa64(binary);
}

/** A body as `fetch` sends it, with its default content type. Streams are awaited. */
function bytesOf(body: unknown): { bytes: Uint8Array; type: string | null } | Promise<{ bytes: Uint8Array; type: string | null }> {
  if (body instanceof NativeBuffer) return { bytes: new Bytes(body), type: null };
  if (isView(body)) return { bytes: new Bytes(body.buffer as ArrayBuffer, body.byteOffset, body.byteLength), type: null };
  if (body instanceof NativeBlob || body instanceof NativeFormData || body instanceof NativeStream) {
    const whole = new NativeResponse(body);
    const type = whole.headers.get("content-type");
    return (async () => ({ bytes: new Bytes(await whole.arrayBuffer()), type }))();
  }
  const type = body instanceof NativeParams ? "application/x-www-form-urlencoded" : "text/plain";
  return { bytes: encode(encoder, NativeString(body)), type: `${type};charset=UTF-8` };
}

/** Rejects as soon as the signal aborts. The host receives the time of an `AbortSignal.timeout` as its own timeout. */
function unlessAborted<T>(signal: AbortSignal | null | undefined, work: Promise<T>): Promise<T> {
  if (!signal) return work;
  return new NativePromise((resolve, reject) => {
    signal.addEventListener("abort", () => reject(signal.reason), { once: true });
    work.then(resolve, reject);
  });
}

function coded(error: Error, code: string): Error {
  return defineProperty(error, "code", { value: code, enumerable: true });
}

/** `ctx.fetch`, like the `fetch` of browsers: the host makes the request, to allowed hosts only. */
function fetchOf(mine: string) {
  const fetch = async (url: string | URL | Request, init: any = {}): Promise<Response> => {
    if (url instanceof NativeRequest) {
      const { url: target, method, headers, body, signal } = new NativeRequest(url, init);
      return await fetch(target, { method, headers, body, signal });
    }
    const headers = new NativeHeaders(init.headers ?? {});
    let body: string | null = null;
    if (init.body !== undefined && init.body !== null) {
      const read = bytesOf(init.body);
      const { bytes, type } = read instanceof NativePromise ? await read : read;
      body = bytesToBase64(bytes);
      if (type !== null && !headers.has("content-type")) headers.set("content-type", type);
    }
    const signal: AbortSignal | undefined = init.signal ?? undefined;
    if (signal?.aborted) throw signal.reason;
    const until = signal && deadlineOf(deadlines, signal);
    const question = {
      url: NativeString(url), method: init.method ?? "GET", headers: fromEntries(headers), body,
      timeout_ms: until === undefined ? undefined : until - now() + SIGNAL_GRACE_MS,
    };
    const answer = await unlessAborted(signal, ask(mine, "fetch", question));
    const binary = atob64(answer.body);
    const content = new Bytes(binary.length);
    for (let i = 0; i < binary.length; i++) content[i] = binary.charCodeAt(i);
    const bodyless = answer.status === 204 || answer.status === 205 || answer.status === 304;
    return new NativeResponse(bodyless ? null : content, { status: answer.status, headers: answer.headers });
  };
  return fetch;
}

function contextOf(mine: string, run: any): unknown {
  const rows = freeze({
    list: (table: string, query: object = {}) => ask(mine, "rows.list", { table, query }),
    get: (table: string, id: string, query: object = {}) => ask(mine, "rows.get", { table, id, query }),
    aggregate: (table: string, query: object) => ask(mine, "rows.aggregate", { table, query }),
    insert: (table: string, row: object, options?: object) => ask(mine, "rows.insert", { table, row, options }),
    upsert: (table: string, row: object, options?: object) => ask(mine, "rows.upsert", { table, row, options }),
    update: (table: string, id: string, changes: object, options?: object) =>
      ask(mine, "rows.update", { table, id, changes, options }),
    remove: (table: string, id: string, options?: object) => ask(mine, "rows.remove", { table, id, options }),
    batch: (operations: object[], options?: object) => ask(mine, "rows.batch", { operations, options }),
    updateMany: (table: string, query: object, changes: object, options?: object) =>
      ask(mine, "rows.update_many", { table, query, changes, options }),
    removeMany: (table: string, query: object, options?: object) => ask(mine, "rows.remove_many", { table, query, options }),
  });
  return freeze({ rows, fetch: fetchOf(mine), runId: run.run_id, caller: freeze(run.caller), secrets: freeze(run.secrets) });
}

// ── globals of the tenant's code ───────────────────────────────────────────────────────────────────────────
/** Deno calls its own operations by these, with the object that holds all of them: code that replaced one would get that object. */
function keepCallAndApply(): void {
  const { prototype } = Function as any;
  for (const name of ["call", "apply"]) {
    const native = prototype[name];
    const set = function (this: unknown, value: unknown) {
      if (this !== prototype) defineProperty(this, name, { value, writable: true, enumerable: true, configurable: true });
    };
    defineProperty(prototype, name, { get: () => native, set, configurable: false });
  }
}

/** All console output goes to the log of the run. */
function prepareConsole(): void {
  const console = globalThis.console as any;
  for (const [name, level] of [["log", "info"], ["info", "info"], ["debug", "debug"], ["warn", "warning"], ["error", "error"], ["trace", "debug"]]) {
    console[name] = (...parts: unknown[]) => log(level, parts);
  }
  for (const name of ["dir", "dirxml", "table", "group", "groupCollapsed"]) console[name] = (...parts: unknown[]) => log("info", parts);
  // Deno's own versions do not use the other methods; some print to stdout, which is the channel.
  const counts = new NativeMap<string, number>(), begun = new NativeMap<string, number>();
  console.count = (label: unknown = "default") => {
    const name = NativeString(label), times = (mapGet(counts, name) ?? 0) + 1;
    mapSet(counts, name, times);
    log("info", [name + ": " + times]);
  };
  const timeLog = console.timeLog = (label: unknown = "default", ...parts: unknown[]) => {
    const name = NativeString(label), at = mapGet(begun, name);
    if (at === undefined) log("warning", ["Timer '" + name + "' does not exist"]);
    else log("info", [name + ": " + NativeString(now() - at) + "ms", ...parts]);
  };
  console.countReset = (label: unknown = "default") => void mapDelete(counts, NativeString(label));
  console.time = (label: unknown = "default") => void mapSet(begun, NativeString(label), now());
  console.timeEnd = (label: unknown = "default") => {
    timeLog(label);
    mapDelete(begun, NativeString(label));
  };
  console.assert = (condition: unknown = false, ...parts: unknown[]) => {
    if (!condition) log("error", ["Assertion failed", ...parts]);
  };
  console.clear = () => {};
}

/** Timers end with the call that started them. */
function prepareTimers(): void {
  for (const name of ["setTimeout", "setInterval"] as const) {
    const start = timerStart[name] as any;
    (globalThis as any)[name] = (...args: unknown[]) => {
      const by = callOfCode();
      if (by !== undefined && by !== tag) return 0; // its call has ended
      const id = start(...args);
      timers[timers.length] = id;
      return id;
    };
  }
}

function prepareGlobals(): void {
  keepCallAndApply();
  // A BigInt is written as the JSON number that it is, by this program and by the function's own JSON.stringify.
  defineProperty(BigInt.prototype, "toJSON", { value: function (this: bigint) { return rawJSON(NativeString(this)); }, writable: true, configurable: true });
  prepareConsole();
  prepareTimers();
  AbortSignal.timeout = (ms: number) => {
    const signal = signalAfter(ms);
    setDeadline(deadlines, signal, now() + ms);
    return signal;
  };
  // Storage, workers and prompts would outlive or bypass a call; ctx replaces them.
  for (const name of ["Worker", "localStorage", "sessionStorage", "caches", "prompt", "alert", "confirm", "BroadcastChannel", "WebSocket", "EventSource", "close"]) {
    defineProperty(globalThis, name, { value: undefined, writable: true, configurable: true });
  }
  // Libraries ask `typeof process` before they use it, and Deno's own throws at its mention without `Deno.execPath`.
  defineProperty(globalThis, "process", { value: emptyProcess(), writable: true, configurable: true });
  (globalThis as any).fetch = () => NativePromise.reject(new NativeError("fetch is not available: use ctx.fetch, which reaches the function's allowed_hosts"));
  const version = freeze({ ...Deno.version });
  defineProperty(globalThis, "Deno", { value: freeze({ version, inspect }), writable: false, configurable: false });
}

/** A promise may be rejected first and awaited later, so a rejection counts only if nobody has handled it at the end. */
addEventListener("unhandledrejection", (event) => {
  event.preventDefault();
  if (!failCall || callOfCode() !== tag) return;
  const { promise, reason } = event as PromiseRejectionEvent;
  mapSet(unhandled, promise, { reason });
  const warn = () => {
    if (mapGet(unhandled, promise)) log("warning", ["A promise was rejected and is not handled yet: " + describe(reason).message]);
  };
  timers[timers.length] = startTimer(warn, UNHANDLED_WARNING_MS); // also logged if the call never ends
});
addEventListener("rejectionhandled", (event) => void mapDelete(unhandled, (event as PromiseRejectionEvent).promise));
addEventListener("error", (event) => {
  event.preventDefault();
  if (failCall && callOfCode() === tag) failCall((event as ErrorEvent).error);
});

/** An iterator, which would be `{}` as JSON. */
function isStream(output: any): boolean {
  if (typeof output !== "object" || output === null || isArray(output) || typeof output.toJSON === "function") return false;
  return typeof output[asyncIterator] === "function" || typeof output[iterator] === "function" && typeof output.next === "function";
}

async function run(frame: any, handler: (input: unknown, ctx: unknown) => unknown): Promise<void> {
  const mine: string = frame.tag;
  tag = mine;
  lines = 0;
  pendingRequests = new NativeMap();
  unhandled = new NativeMap();
  sent = answered = requestCount = 0;
  let answer: string;
  try {
    const stopped = new NativePromise((_, reject) => { failCall = reject; });
    const outside = enterCall(mine);
    const work = (async () => await handler(frame.input, contextOf(mine, frame)))();
    setAsyncContext(outside);
    const output = await NativePromise.race([work, stopped]);
    if (mapSize(unhandled)) await new NativePromise<void>((resolve) => startTimer(resolve, 0));
    mapForEach(unhandled, ({ reason }: { reason: unknown }) => { throw reason; });
    if (output instanceof NativeResponse) {
      throw new NativeTypeError("a function must return plain data, not a Response: for example {ok: true}, or {$response: {status, headers, body}} for an inbound endpoint");
    }
    if (isStream(output)) {
      throw new NativeTypeError("a function must return plain data, not a generator or a stream: collect its items in an array");
    }
    let body: string | undefined;
    try {
      body = stringify(output);
    } catch (error) {
      throw new NativeError("the output is not JSON: " + describe(error).message);
    }
    body ??= "null";
    answer = body.length > frame.max_output
      ? '{"t":"failed","tag":"' + mine + '","reason":"output_too_large","error":' + errorText({ name: "OutputTooLarge", message: `the output has more than ${frame.max_output} bytes`, stack: null }) + "}"
      : '{"t":"done","tag":"' + mine + '","output":' + body + "}";
  } catch (error) {
    answer = '{"t":"failed","tag":"' + mine + '","reason":"user_error","error":' + errorText(describe(error)) + "}";
  }
  // Requests that the code did not await are completed before the call ends.
  if (sent < requestCount) await new NativePromise<void>((resolve) => { allSent = resolve; });
  tag = null;
  failCall = null;
  for (let i = 0; i < timers.length; i++) clearTimer(timers[i]);
  timers.length = 0;
  send(answer);
  wakeMainLoop?.();
}

/**
 * Load Node modules that need all of Deno to initialize, and remove their `process`: they do not export it, but it is an
 * EventEmitter, so code that patches that class could obtain it.
 */
async function preload(names: string[]): Promise<void> {
  const node = "node:"; // a literal import would be loaded before the first line of this program
  for (const name of names) await import(node + name);
  const { default: nodeProcess } = await import(node + "process");
  const { prototype: emitter } = (await import(node + "events")).default;
  for (let part = nodeProcess; part !== emitter; part = Object.getPrototypeOf(part)) {
    for (const name of Reflect.ownKeys(part)) if (!NEEDED_OF_PROCESS.has(name)) Reflect.deleteProperty(part, name);
  }
  emitter.removeAllListeners.call(nodeProcess);
  Object.assign(nodeProcess, emptyProcess());
}
const NEEDED_OF_PROCESS = new Set<PropertyKey>(["nextTick", "constructor", "_events", "_eventsCount", "_maxListeners", "versions"]);

/** The `require` for bundles of CommonJS modules. */
async function defineRequire(names: string[]): Promise<void> {
  const node = "node:";
  const found = new NativeMap<string, unknown>();
  for (const name of names) mapSet(found, name, (await import(node + name)).default);
  (globalThis as any).require = (name: unknown) => {
    const asked = NativeString(name);
    const module = mapGet(found, slice(asked, 0, 5) === node ? slice(asked, 5) : asked);
    if (module === undefined) throw new NativeError('"' + asked + '" is not among the modules that can be required here');
    return module;
  };
}

/** The parts of `process` that libraries and Node's own modules commonly read. */
function emptyProcess() {
  const nextTick = (work: (...args: unknown[]) => void, ...args: unknown[]) => queue(() => work(...args));
  return { env: {}, nextTick, cwd: () => "/", emitWarning: () => {} };
}

/** A private list: setters on the array prototype would let the code see the items of an array. */
interface Waiting { frame: any; behind: Waiting | null }

async function main(): Promise<void> {
  // Keeps Deno running while a call waits for something that never happens: the host ends it by the timeout.
  startTimer(() => {}, 2 ** 31 - 1);
  send('{"t":"ready"}');
  let handler: any = null;
  let first: Waiting | null = null, last: Waiting | null = null;
  while (true) {
    if (tag !== null && sent === answered) await new NativePromise<void>((resolve) => { wakeMainLoop = resolve; });
    wakeMainLoop = null;
    if (tag !== null) await arrival();
    const next: Waiting | null = tag === null ? first : null;
    if (next !== null) first = next.behind;
    const frame = next === null ? parse(receive()) : next.frame;
    if (frame.t === "load") {
      try {
        const required = frame.required ?? [];
        if (frame.ahead?.length) await preload(frame.ahead);
        prepareGlobals();
        if (required.length) await defineRequire(required);
        // A variable specifier: a literal one, or user code as the entry point, could import any host file.
        const url: string = "data:application/typescript;base64," + frame.source;
        handler = (await import(url)).default;
        if (typeof handler !== "function") throw new NativeError("the module has no default export that is a function: export default async (input, ctx) => output");
        send('{"t":"loaded"}');
      } catch (error) {
        send('{"t":"unloadable","error":' + errorText(describe(error)) + "}");
      }
    } else if (frame.t === "run" && tag !== null) {
      const waiting: Waiting = { frame, behind: null };
      if (first === null) first = waiting;
      else last!.behind = waiting;
      last = waiting;
    } else if (frame.t === "run") {
      void run(frame, handler); // not awaited: replies to its requests arrive in this loop
    } else if (frame.t === "reply" && frame.tag === tag) {
      settle(frame);
    }
  }
}

main();
