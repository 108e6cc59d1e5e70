"""Signs the command `platform` in by a one-time code to a loopback port (RFC 8252), useless without the command's PKCE
secret. Page and terminal show the same words, so that the account does not confirm another program."""

import re
from typing import Final
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from accounts.models import User
from accounts.users import exchange_codes
from platform_site.developer_cli.sign_in_phrase import phrase_of
from platform_site.developer_console.api_calls import ApiClient
from platform_site.developer_console.frame import signed_in_page
from platform_site.http.errors import InvalidRequest

_PORT: Final = re.compile(r"[1-9][0-9]{3,4}", re.ASCII)
_STATE: Final = re.compile(r"[A-Za-z0-9_-]{22,128}", re.ASCII)


@signed_in_page
def command_line(request: HttpRequest, client: ApiClient) -> HttpResponse:
    port, state, code_challenge = (request.GET.get(name, "") for name in ("port", "state", "code_challenge"))
    well_formed = _PORT.fullmatch(port) and 1024 <= int(port) <= 65535 and _STATE.fullmatch(state)
    if not well_formed or not exchange_codes.is_challenge(code_challenge):
        raise InvalidRequest("This is not a request of the command platform. Run platform login again.")
    origin = f"http://127.0.0.1:{port}"
    me = client.call("GET", "/v1/auth/me")  # raises ApiError if the session has ended
    if request.method == "POST":
        answer = {"error": "access_denied"}
        if request.POST.get("answer") == "allow":
            user = User.objects.in_pool(None).get(pk=me["id"])
            code = exchange_codes.issue(
                user,
                environment_id=None,
                redirect_uri=f"{origin}/",
                code_challenge=code_challenge,
                method="command line",
            )
            answer = {"code": code}
        response: HttpResponse = redirect(f"{origin}/?{urlencode({**answer, 'state': state})}")
    else:
        context = {"me": me, "phrase": phrase_of(code_challenge)}
        response = render(request, "console/command_line.html", context)
    # Browsers apply the policy of the page with the form to the redirect after it.
    response._csp_update = {"form-action": [origin]}  # type: ignore[attr-defined]  # django-csp's
    return response
