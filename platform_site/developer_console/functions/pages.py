from collections.abc import Sequence
from typing import Any, Final

from django.http import HttpResponse

from functions.api.serializers import ListedRun
from functions.runs import history
from platform_site.developer_console import forms
from platform_site.developer_console.api_calls import Refused
from platform_site.developer_console.forms import Field, Form
from platform_site.developer_console.frame import Console, go_to, page
from platform_site.developer_console.functions.common import path_of, render
from platform_site.developer_console.functions.highlight import coloured
from platform_site.http import exact_json
from projects.directory.environments import place_of

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
_VERSIONS_AT_ONCE: Final = "20"


@page("functions")
def functions(console: Console) -> HttpResponse:
    asked, refusal, status = console.request.POST, None, 200
    if console.request.method == "POST":
        try:
            name = asked.get("name", "").strip()
            _deploy_new(console, name, asked.get("source", ""))
            return go_to(console.request, console.url("function", name))
        except Refused as error:
            refusal, status = error, error.status
    query = {"limit": "100"}
    if console.request.GET.get("cursor"):
        query["cursor"] = console.request.GET["cursor"]
    found = console.api("GET", "/v1/functions", query=query).data
    last_runs = _last_runs(console, [each["name"] for each in found["data"]])
    for each in found["data"]:
        each["last_run"] = last_runs.get(each["name"])
    form = Form("new", _NEW, {"source": _TEMPLATE}, refusal, asked if refusal else None)
    return console.render(
        "console/functions.html",
        {"functions": found["data"], "next_cursor": found["next_cursor"], "form": form},
        status,
    )


def _last_runs(console: Console, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """By name. Who may list functions may read their runs."""
    place = place_of(console.environment["id"])
    if place is None:
        return {}
    runs = history.last_of(place.cluster, place.environment_id, names)
    return {name: ListedRun(run).data for name, run in runs.items()}


def _deploy_new(console: Console, name: str, source: str) -> None:
    if not name:
        raise forms.invalid("name", "Required.")
    try:
        console.api("GET", path_of(name))
    except Refused as refusal:
        if refusal.status != 404:
            raise
    else:
        raise forms.invalid("name", f"There is a function {name} already. Open it to deploy another version.")
    console.api("PUT", path_of(name), {"source": _lines(source)})


def _lines(source: str) -> str:
    return source.replace("\r\n", "\n")


@page("functions")
def function(console: Console, name: str) -> HttpResponse:
    asked, context, status = console.request.POST, dict[str, Any](), 200
    refusal = None
    if console.request.method == "POST":
        try:
            context = _run(console, name) if asked.get("what") == "run" else _deploy(console, name)
        except Refused as error:
            if error.status == 404:
                raise
            refusal, status = error, error.status
        if "queued" in context:
            return go_to(console.request, console.url("function-run", name, context["queued"]))
    detail = console.api("GET", path_of(name)).data
    version = _version(console, name, detail)
    is_run = asked.get("what") == "run"
    return render(
        console,
        "console/function.html",
        name,
        {
            "function": detail,
            "version": version,
            "source_html": "" if console.may_write else coloured(version["source"]),
            "newest": _newest(console, name),
            "form": Form(
                "deploy",
                _SOURCE,
                {"source": version["source"]},
                None if is_run else refusal,
                asked if refusal is not None and not is_run else None,
            ),
            "run_refusal": refusal if is_run else None,
            "input": asked.get("input", "{}") if is_run else "{}",
            **context,
        },
        status,
    )


def _newest(console: Console, name: str) -> int:
    number: int = console.api("GET", path_of(name, "versions"), query={"limit": "1"}).data["data"][0]["version"]
    return number


def _version(console: Console, name: str, detail: dict[str, Any]) -> dict[str, Any]:
    asked = console.request.GET.get("version", "")
    wanted = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 10 else detail["active_version"]
    cursor = ""
    while True:
        query = {"limit": _VERSIONS_AT_ONCE} | ({"cursor": cursor} if cursor else {})
        answer = console.api("GET", path_of(name, "versions"), query=query).data
        found: dict[str, Any] | None = next((each for each in answer["data"] if each["version"] == wanted), None)
        if found is not None:
            return found
        cursor = answer["next_cursor"]
        if not cursor:
            raise Refused(404, {"code": "not_found", "message": f"The function has no version {wanted}."})


def _deploy(console: Console, name: str) -> dict[str, Any]:
    asked = console.request.POST
    newest = str(_newest(console, name))
    if asked.get("newest") != newest:
        message = f"Version {newest} was deployed meanwhile. Deploy again to make your source the next version."
        raise Refused(412, {"code": "precondition_failed", "message": message})
    done = console.api("PUT", path_of(name), {"source": _lines(asked.get("source", ""))}).data
    return {"notice": f"Version {done['active_version']} is deployed and active."}


def _run(console: Console, name: str) -> dict[str, Any]:
    asked = console.request.POST
    is_async = asked.get("how") == "background"
    given = forms.json_of(asked.get("input", ""), "input")
    body = {"input": given, "async": is_async}
    try:
        run_id = console.api("POST", path_of(name, "invoke"), body).data["run_id"]
    except Refused as refusal:
        run_id = refusal.details.get("run_id")
        if run_id is None:
            raise
    if is_async:
        return {"queued": run_id}
    return {"run": shown_run(console.api("GET", path_of(name, "runs", run_id)).data)}


def shown_run(run: dict[str, Any]) -> dict[str, Any]:
    has_output = run["status"] == "succeeded" and "output" not in run["not_stored"]
    return run | {"output_text": exact_json.dumps(run["output"], indent=True) if has_output else None}
