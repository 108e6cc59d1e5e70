"""Which modules a function may import besides itself: an import map for its process, and what to load ahead of it. A
function is one module, so what is left to import are Node's modules, which Deno has built in. Those that need nothing
of the host are there, under both spellings (`node:crypto`, `crypto`); all others are refused by the map, before
anything of them is loaded. `tests/functions/test_imports.py` holds the two lists to be all that this Deno has. Pure
computation. Used by `functions.runtime.process` and `launch`."""

import base64
import json
import re
from collections.abc import Iterable
from typing import Final

ALLOWED: Final = (
    "_stream_duplex", "_stream_passthrough", "_stream_readable", "_stream_transform", "_stream_writable", "assert",
    "assert/strict", "async_hooks", "buffer", "constants", "crypto", "diagnostics_channel", "events", "os", "path",
    "path/posix", "path/win32", "perf_hooks", "punycode", "querystring", "stream", "stream/consumers",
    "stream/promises", "stream/web", "string_decoder", "sys", "timers", "timers/promises", "url", "util", "util/types",
)  # fmt: skip

REFUSED: Final = (
    "_http_agent", "_http_client", "_http_common", "_http_incoming", "_http_outgoing", "_http_server", "_tls_common",
    "_tls_wrap", "child_process", "cluster", "dgram", "dns", "dns/promises", "domain", "fs", "fs/promises", "http",
    "http2", "https", "inspector", "inspector/promises", "module", "net", "readline", "readline/promises", "repl",
    "sqlite", "test", "test/reporters", "tls", "trace_events", "tty", "v8", "vm", "wasi", "worker_threads", "zlib",
)  # fmt: skip
"""Files, processes, threads, the network, other ways to run code, V8's flags; and `zlib`: the code reaches its native
handle, which does not check its caller (out of order, Deno panics)."""

OURS: Final = {
    "console": "export default console; export const {log, info, debug, warn, error, trace, dir, table} = console;",
    "process": "export default process; export const {env, nextTick, emitWarning, cwd} = process;",
}
"""Modules that are rewritten on top of the runner: Deno's own would reach its standard output, the channel."""

_AHEAD: Final = re.compile(
    rb"""\b(?:from|import)(?:\s|/\*[^*]{0,200}+\*/)*+\(?+(?:\s|/\*[^*]{0,200}+\*/)*+["'`](?:node:)?([a-z0-9_/]{1,40})["'`]"""
)
"""Possessive: a source may be half a megabyte of spaces behind one `from`."""
_REQUIRED: Final = re.compile(rb"""\(\s*["'`](?:node:)?([a-z0-9_/]+)["'`]\s*\)""")
_INSTEAD: Final = {
    "http": "ctx.fetch", "https": "ctx.fetch", "http2": "ctx.fetch", "net": "ctx.fetch",
    "tls": "ctx.fetch", "zlib": "CompressionStream and DecompressionStream",
}  # fmt: skip


def import_map(ahead: Iterable[str]) -> str:
    """The map as a `data:` URL, for a process that loads the modules `ahead` before its code; it has no others. The
    runner itself, a file, is not under it: it loads `node:process`."""
    targets: dict[str, str | None] = dict.fromkeys((*ALLOWED, *REFUSED))
    targets |= {name: f"node:{name}" for name in ahead}
    targets |= {name: _data_url("text/javascript", code) for name, code in OURS.items()}
    imports = {spelling: target for name, target in targets.items() for spelling in (name, f"node:{name}")}
    runners = {name: name for name in ("node:process", "node:events")}
    return _data_url("application/json", json.dumps({"imports": imports, "scopes": {"file:///": runners}}))


def ahead(source: bytes) -> list[str]:
    """The allowed modules that `source` imports or requires. They are loaded while all of Deno is available and before
    any code of the function: they use Node's own `process` (`crypto` at once, `util` in some functions), which can open
    every module, and code that patched an EventEmitter before could obtain it. A specifier that is computed at run time
    is not found, and refused."""
    return sorted({name.decode() for name in _AHEAD.findall(source)} & set(ALLOWED) | set(required(source)))


def required(source: bytes) -> list[str]:
    """The allowed modules that a bundle requires: what a bundler made of CommonJS calls a global `require` where there
    is one, and asks for it first (`typeof require`)."""
    if b"typeof require" not in source:
        return []
    return sorted({name.decode() for name in _REQUIRED.findall(source)} & set(ALLOWED))


def instead_of(specifier: str) -> str | None:
    """What replaces a refused module here, if anything does."""
    return _INSTEAD.get(specifier.removeprefix("node:"))


def _data_url(kind: str, text: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}"
