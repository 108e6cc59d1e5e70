from typing import Any, Final
from urllib.parse import quote

from django.http import HttpResponse

from accounts.users import sessions as account_sessions
from platform_site.developer_console import forms
from platform_site.developer_console.frame import Console, page

_PROGRAMS: Final = {"console": "Console", "command line": "Command platform"}


@page("sessions")
def sessions(console: Console) -> HttpResponse:
    submitted = forms.submit(console, _CHANGES)
    found = console.client.call("GET", "/v1/auth/sessions", query={"limit": "100"}).data
    methods = account_sessions.methods_of([each["id"] for each in found["data"]])
    for each in found["data"]:
        each["by"] = _PROGRAMS.get(methods.get(each["id"], "").partition(",")[0], "API")
    context = {"sessions": found["data"], "are_more": found["next_cursor"] is not None, "refusal": submitted.refusal}
    return console.render("console/sessions.html", context | submitted.context, submitted.status)


def _end(console: Console) -> dict[str, Any]:
    console.client.call("DELETE", f"/v1/auth/sessions/{quote(console.request.POST.get('session', ''), safe='')}")
    return {"notice": "The session has ended."}


def _end_others(console: Console) -> dict[str, Any]:
    console.client.call("POST", "/v1/auth/revoke", {"scope": "others"})
    return {"notice": "All other sessions have ended."}


_CHANGES: Final[dict[str, forms.Change]] = {"end": _end, "end-others": _end_others}
