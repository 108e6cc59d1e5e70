"""Which modules a function may import. It is bundled into one module, so it only imports Node's modules, which are
built into Deno. Those that need no access to the host are allowed, under both spellings (`node:crypto`, `crypto`); the
import map refuses all others before any of their code is loaded."""

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

REWRITTEN: Final = {
    "console": "export default console; export const {log, info, debug, warn, error, trace, dir, table} = console;",
    "process": "export default process; export const {env, nextTick, emitWarning, cwd} = process;",
}
"""Modules that are rewritten on top of the runner: Deno's own would reach its standard output, the channel."""

_IMPORTED: Final = re.compile(
    rb"""\b(?:from|import)(?:\s|/\*[^*]{0,200}+\*/)*+\(?+(?:\s|/\*[^*]{0,200}+\*/)*+["'`](?:node:)?([a-z0-9_/]{1,40})["'`]"""
)
"""Possessive: a source may be half a megabyte of spaces behind one `from`."""
_REQUIRED: Final = re.compile(rb"""\(\s*["'`](?:node:)?([a-z0-9_/]+)["'`]\s*\)""")
INSTEAD: Final = {
    "http": "ctx.fetch", "https": "ctx.fetch", "http2": "ctx.fetch", "net": "ctx.fetch",
    "tls": "ctx.fetch", "zlib": "CompressionStream and DecompressionStream",
}  # fmt: skip


def import_map(preloaded: Iterable[str]) -> str:
    """The map as a `data:` URL. The runner itself, a file, is not under it: it loads `node:process`."""
    targets: dict[str, str | None] = dict.fromkeys((*ALLOWED, *REFUSED))
    targets |= {name: f"node:{name}" for name in preloaded}
    targets |= {name: _data_url("text/javascript", code) for name, code in REWRITTEN.items()}
    imports = {spelling: target for name, target in targets.items() for spelling in (name, f"node:{name}")}
    runners = {name: name for name in ("node:process", "node:events")}
    return _data_url("application/json", json.dumps({"imports": imports, "scopes": {"file:///": runners}}))


def preloaded(source: bytes) -> list[str]:
    """The allowed modules that `source` imports or requires. They are loaded before any code of the function: they use
    Node's own `process` (`crypto` at once, `util` in some functions), which can open every module, and code that
    patched an EventEmitter before could obtain it. A specifier that is computed at run time is not found, and
    refused."""
    return sorted({name.decode() for name in _IMPORTED.findall(source)} & set(ALLOWED) | set(required(source)))


def required(source: bytes) -> list[str]:
    """CommonJS code in a bundle calls a global `require` if there is one (`typeof require`)."""
    if b"typeof require" not in source:
        return []
    return sorted({name.decode() for name in _REQUIRED.findall(source)} & set(ALLOWED))


def _data_url(kind: str, text: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(text.encode()).decode()}"
