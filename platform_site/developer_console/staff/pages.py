from typing import Final

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from accounts.audit import Actor
from accounts.staff.roles import OPERATE
from platform_site.developer_console.api_calls import ApiClient
from platform_site.developer_console.forms import Field, Form
from platform_site.developer_console.frame import signed_in_page
from platform_site.developer_console.staff import grants as staff
from platform_site.http.errors import ApiError, Forbidden
from projects import staff_access

_MAY_WRITE: Final = Field("may_write", "May change rows and the schema, cancel runs and disable webhooks", "checkbox")


@signed_in_page
def access(request: HttpRequest, client: ApiClient) -> HttpResponse:
    client.call("GET", "/v1/auth/me")  # raises ApiError if the session has ended
    user = staff.may_ask(client.signed_in)
    if user is None:
        message = "Only staff get access here, with a second factor where one is set up or required."
        raise Forbidden(message)
    refusal: ApiError | None = None
    if request.method == "POST":
        try:
            if request.POST.get("action") == "end":
                grant_id = request.POST.get("grant", "")
                own = staff_access.active().filter(user=user).values_list("pk", flat=True)
                if user.has_perm(OPERATE) or grant_id in own:
                    staff_access.revoke(grant_id, actor=Actor.staff(user))
                return redirect("developer_console:staff")
            environment_id = request.POST.get("environment", "").strip()
            reason, may_write = request.POST.get("reason", ""), "may_write" in request.POST
            made = staff_access.grant(user, environment_id, reason=reason, may_write=may_write)
            return redirect("developer_console:home", made.environment.project_id, made.environment_id)
        except ApiError as error:
            refusal = error
    fields = (
        Field("environment", "Environment id", required=True, placeholder="env_…"),
        Field("reason", "Reason", required=True, help="The project's owners read it in their audit log."),
        *([_MAY_WRITE] if user.has_perm(OPERATE) else []),
    )
    submitted = request.POST if refusal is not None else None
    form = Form("ask", fields, {"environment": request.GET.get("environment", "")}, refusal, submitted)
    grants = staff_access.active().filter(user=user).select_related("environment__project").order_by("-created_at")
    status = 200 if refusal is None else refusal.status
    return render(request, "console/staff.html", {"form": form, "refusal": refusal, "grants": grants}, status=status)
