from typing import Any, Final

from django.http import HttpResponse

from accounts.users import sessions as account_sessions
from platform_site.developer_console.api_calls import ApiClient, path_to
from platform_site.developer_console.forms import Field, form_of
from platform_site.developer_console.frame import Console, page

_PROGRAMS: Final = {"console": "Console", "command line": "Command platform"}
_PASSWORD: Final = (
    Field("current_password", "Current password", "password", required=True),
    Field("password", "New password", "password", required=True),
)
_BROWSERS: Final = {
    "Edg": "Edge",
    "OPR/": "Opera",
    "Firefox/": "Firefox",
    "FxiOS/": "Firefox",
    "Chrome/": "Chrome",
    "CriOS/": "Chrome",
    "Safari/": "Safari",
}
_SYSTEMS: Final = {
    "Android": "Android",
    "iPhone": "iOS",
    "iPad": "iPadOS",
    "Windows": "Windows",
    "Macintosh": "macOS",
    "CrOS": "ChromeOS",
    "Linux": "Linux",
}
"""By a part of the user agent; the first that it has counts."""


def program_of(user_agent: str) -> str:
    browser = next((name for part, name in _BROWSERS.items() if part in user_agent), None)
    system = next((name for part, name in _SYSTEMS.items() if part in user_agent), None)
    return f"{browser} on {system}" if browser and system else user_agent


def _own_client(console: Console) -> ApiClient:
    """Without a staff grant: the account's own affairs are in no project's audit log."""
    return ApiClient(console.request, console.client.signed_in)


def _change_password(console: Console) -> dict[str, Any]:
    body = {each.name: console.request.POST.get(each.name, "") for each in _PASSWORD}
    _own_client(console).call("PATCH", "/v1/auth/me", body)
    return {"notice": "The password is changed. All other sessions have ended."}


def _end(console: Console) -> dict[str, Any]:
    _own_client(console).call("DELETE", path_to("auth", "sessions", console.request.POST.get("session", "")))
    return {"notice": "The session has ended."}


def _end_others(console: Console) -> dict[str, Any]:
    _own_client(console).call("POST", "/v1/auth/revoke", {"scope": "others"})
    return {"notice": "All other sessions have ended."}


@page("sessions", {"end": _end, "end-others": _end_others, "password": _change_password})
def sessions(console: Console) -> HttpResponse:
    found = console.client.call("GET", "/v1/auth/sessions", query={"limit": "100"})
    methods = account_sessions.methods_of([each["id"] for each in found["data"]])
    for each in found["data"]:
        each["program"] = program_of(each["user_agent"] or "")
        each["by"] = _PROGRAMS.get(methods.get(each["id"], "").partition(",")[0], "API")
    context = {
        "sessions": found["data"],
        "are_more": found["next_cursor"] is not None,
        "password": form_of(console, "password", _PASSWORD, {}),
    }
    return console.render("console/sessions.html", context)
