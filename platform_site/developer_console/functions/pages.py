import time
from contextlib import suppress
from typing import Any, Final

from django.http import HttpResponse
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from pygments import format as write
from pygments.formatters import HtmlFormatter
from pygments.lexers import TypeScriptLexer

from accounts.audit import Actor
from functions.api.serializers import ListedRun
from functions.directory import function_of
from functions.errors import NoSuchRun
from functions.execution import calls
from functions.models import Run
from functions.runs import history
from platform_site.developer_console import forms
from platform_site.developer_console.api_calls import path_to
from platform_site.developer_console.forms import Field
from platform_site.developer_console.frame import Console, go_to, page
from platform_site.developer_console.staff import grants as staff
from platform_site.http import exact_json
from platform_site.http.errors import ApiError, NotFound, PreconditionFailed
from platform_site.identity import ids
from platform_site.identity.callers import EnvironmentRef

MAX_COLOURED: Final = 100_000
MAX_SECONDS: Final = 1.0
"""Lexers can be slow."""
_FORMATTER: Final = HtmlFormatter(nowrap=True)
_TEMPLATE: Final = """export default async (input, ctx) => {
  console.log("called by", ctx.caller.kind);
  return { hello: input.name ?? "world" };
};
"""
_NEW: Final = (
    Field("name", "Name", required=True, placeholder="hello", help="a-z, 0-9, _ and -, beginning with a letter."),
    Field("source", "Source (TypeScript or JavaScript)", "code", rows=12, language="typescript"),
)
_SOURCE: Final = (Field("source", "Source", "code", rows=24, language="typescript"),)
_PLACE: Final = "\n    at "
_VERSIONS_AT_ONCE: Final = "20"
_STATUSES: Final = ("succeeded", "failed", "running")
_TRIGGERS: Final = ("call", "schedule", "event", "inbound")
_TABS: Final = {
    "function": "Code",
    "function-runs": "Runs",
    "function-versions": "Versions",
    "function-settings": "Settings",
}


def render(console: Console, template: str, name: str, context: dict[str, Any]) -> HttpResponse:
    return console.render(template, {"name": name, "tabs": console.tabs(_TABS, name), **context})


def _deploy_new(console: Console) -> HttpResponse:
    name = console.request.POST.get("name", "").strip()
    if not name:
        raise forms.invalid("name", "Required.")
    with suppress(NotFound):
        console.api("GET", path_to("functions", name))
        raise forms.invalid("name", f"There is a function {name} already. Open it to deploy another version.")
    _put(console, name)
    return go_to(console.request, console.url("function", name))


def _put(console: Console, name: str) -> dict[str, Any]:
    source = console.request.POST.get("source", "").replace("\r\n", "\n")
    return console.api("PUT", path_to("functions", name), {"source": source})


@page("functions", {"new": _deploy_new})
def functions(console: Console) -> HttpResponse:
    found = console.page_of("/v1/functions", {"limit": "100"})
    names = [each["name"] for each in found["data"]]
    # `functions:read` permits reading runs, too.
    last_runs = history.last_of(console.ref.cluster, console.ref.environment_id, names)
    for each in found["data"]:
        run = last_runs.get(each["name"])
        each["last_run"] = None if run is None else ListedRun(run).data
    form = forms.form_of(console, "new", _NEW, {"source": _TEMPLATE})
    return console.render("console/functions.html", {"functions": found["data"], "form": form})


def _newest(console: Console, name: str) -> int:
    found = console.listed(path_to("functions", name, "versions"), {"limit": "1"})
    return int(found[0]["version"])


def _version(console: Console, name: str, detail: dict[str, Any]) -> dict[str, Any]:
    number = forms.integer_of(console.request.GET.get("version", ""))
    wanted = number if isinstance(number, int) else detail["active_version"]
    cursor = ""
    while True:
        query = {"limit": _VERSIONS_AT_ONCE} | ({"cursor": cursor} if cursor else {})
        answer = console.api("GET", path_to("functions", name, "versions"), query=query)
        found: dict[str, Any] | None = next((each for each in answer["data"] if each["version"] == wanted), None)
        if found is not None:
            return found
        cursor = answer["next_cursor"]
        if not cursor:
            raise NotFound(f"The function has no version {wanted}.")


def _deploy(console: Console, name: str) -> dict[str, Any]:
    newest = str(_newest(console, name))
    if console.request.POST.get("newest") != newest:
        message = f"Version {newest} was deployed meanwhile. Deploy again to make your source the next version."
        raise PreconditionFailed(message)
    return {"notice": f"Version {_put(console, name)['active_version']} is deployed and active."}


def _run(console: Console, name: str) -> dict[str, Any] | HttpResponse:
    submitted = console.request.POST
    is_async = submitted.get("how") == "background"
    body = {"input": forms.json_of(submitted.get("input", ""), "input"), "async": is_async}
    try:
        run_id = console.api("POST", path_to("functions", name, "invoke"), body)["run_id"]
    except ApiError as refusal:
        run_id = refusal.extra.get("run_id")
        if run_id is None:
            raise
    if is_async:
        return go_to(console.request, console.url("function-run", name, run_id))
    return {"run": _shown_run(console.api("GET", path_to("functions", name, "runs", run_id)))}


def coloured(source: str) -> SafeString:
    """As HTML; plain beyond MAX_COLOURED or MAX_SECONDS."""
    if len(source) > MAX_COLOURED:
        return escape(source)
    until = time.thread_time() + MAX_SECONDS
    words = []
    for word in TypeScriptLexer(stripnl=False, ensurenl=False).get_tokens(source):
        if time.thread_time() > until:
            return escape(source)
        words.append(word)
    html: str = write(words, _FORMATTER)
    return mark_safe(html)  # noqa: S308 - HtmlFormatter escapes what it is given


@page("functions", {"deploy": _deploy, "run": _run})
def function(console: Console, name: str) -> HttpResponse:
    detail = console.api("GET", path_to("functions", name))
    version = _version(console, name, detail)
    context = {
        "function": detail,
        "version": version,
        "source_html": "" if console.may_write else coloured(version["source"]),
        "newest": _newest(console, name),
        "form": forms.form_of(console, "deploy", _SOURCE, {"source": version["source"]}),
        "input": console.request.POST.get("input", "{}"),
    }
    return render(console, "console/function.html", name, context)


@page("functions")
def runs(console: Console, name: str) -> HttpResponse:
    filters = console.filters("status", "trigger")
    context = {
        "filters": filters,
        "statuses": _STATUSES,
        "triggers": _TRIGGERS,
        "function": console.api("GET", path_to("functions", name)),
        "runs": console.filtered_page(path_to("functions", name, "runs"), filters | {"limit": "100"})["data"],
    }
    return render(console, "console/function_runs.html", name, context)


def _cancel_run(environment: EnvironmentRef, name: str, run_id: str, *, actor: Actor) -> None:
    """Raises NoSuchFunction, NoSuchRun, RunEnded."""
    function = function_of(environment, name)
    runs_of_function = Run.objects.using(environment.cluster).filter(function=function)
    run = runs_of_function.filter(pk=run_id).first() if ids.matches("run", run_id) else None
    if run is None:
        raise NoSuchRun
    calls.cancel(environment, run, actor=actor)


def _cancel(console: Console, name: str, run_id: str) -> dict[str, Any]:
    if not staff.stop(console.client, _cancel_run, name, run_id):
        console.api("POST", path_to("functions", name, "runs", run_id, "cancel"))
    return {"notice": "The run is cancelled."}


@page("functions", {"cancel": _cancel})
def run(console: Console, name: str, run_id: str) -> HttpResponse:
    """Reloads every second until the run has ended."""
    found = _shown_run(console.api("GET", path_to("functions", name, "runs", run_id)))
    return render(console, "console/function_run.html", name, {"run": found})


def _activate(console: Console, name: str) -> dict[str, Any]:
    number = forms.integer_of(console.request.POST.get("version", ""))
    done = console.api("POST", path_to("functions", name, "activate"), {"version": number})
    return {"notice": f"Version {done['active_version']} is active."}


@page("functions", {"activate": _activate})
def versions(console: Console, name: str) -> HttpResponse:
    found = console.page_of(path_to("functions", name, "versions"), {"limit": "20"})
    return render(console, "console/function_versions.html", name, {"versions": found["data"]})


def _shown_run(run: dict[str, Any]) -> dict[str, Any]:
    has_output = run["status"] == "succeeded" and "output" not in run["not_stored"]
    output = exact_json.dumps(run["output"], indent=True) if has_output else None
    return run | {"output_text": output, "error_text": _error_text(run.get("error"), run["stack"])}


def _error_text(error: str | None, stack: str | None) -> str | None:
    """The error, with the source positions of the stack, which begins with V8's text of the error."""
    if not error or not stack:
        return error
    places = stack.find(_PLACE)
    if places >= 0:
        return error + stack[places:]
    return stack if error in stack else f"{error}\n{stack}"
