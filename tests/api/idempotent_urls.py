"""Addresses for the tests of Idempotency-Key: an action with one effect that can be counted, and ways to end it."""

import os
import signal
from collections.abc import Callable
from typing import Any

from django.db import connections, transaction
from django.http import HttpResponse
from django.urls import path

from accounts.models import AuditEntry
from platform_site import urls as roof
from platform_site.http import errors, exception_handler, fields, idempotency
from platform_site.http.idempotency import idempotent, in_region
from platform_site.http.views import ApiViewSet, created, no_content, respond
from tests.api.urls import ByTable

DURING: list[Callable[[], object]] = []
"""What the action does between its effect and its answer."""


class EffectInput(fields.Serializer):
    name = fields.CharField(max_length=20)
    end = fields.CharField(required=False)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Effects(ApiViewSet):
    required_scopes = {
        "create": "rows:write",
        "partial_update": "rows:write",
        "in_region": "rows:write",
        "invoke": None,
    }

    authentication_classes = (ByTable,)

    @idempotent()
    def create(self, request: Any) -> Any:
        values = self.read(EffectInput)
        entry = AuditEntry.objects.create(actor_kind="system", action="test.effect", detail={"name": values["name"]})
        for act in DURING:
            act()
        match values.get("end"):
            case "raise":
                raise errors.Conflict()
            case "return":
                return exception_handler.respond(errors.Conflict())
            case "nothing":
                return no_content()
        response = created(f"/v1/test/effects/{entry.pk}", {"id": entry.pk, "secret": "whsec_marker"}, {"ETag": '"7"'})
        response.headers["Cache-Control"] = "no-store"
        return response

    @idempotent()
    def partial_update(self, request: Any, name: str) -> HttpResponse:
        AuditEntry.objects.create(actor_kind="system", action="test.effect", detail={"name": name})
        return respond({"name": name, "sent": self.read_object()})

    @idempotent(using=in_region)
    def in_region(self, request: Any) -> HttpResponse:
        with connections[self.caller.environment.cluster].cursor() as cursor:  # type: ignore[union-attr]
            cursor.execute("INSERT INTO platform.test_effects DEFAULT VALUES RETURNING id")
            return created("/v1/test/effects/1", {"id": cursor.fetchone()[0]})

    def invoke(self, request: Any) -> HttpResponse:
        """As functions do it: the record points at what was made, and that answers."""
        ticket = idempotency.read_ticket(request._request, self.caller)
        assert ticket is not None
        with transaction.atomic():
            kept = idempotency.claim(ticket, using="default")
            if kept is not None:
                return respond({"run_id": kept.reference, "again": True})
            entry = AuditEntry.objects.create(actor_kind="system", action="test.effect")
            idempotency.store_reference(ticket, entry.pk, using="default")
        return respond({"run_id": entry.pk, "again": False})


class Public(ApiViewSet):
    public = True

    @idempotent()
    def create(self, request: Any) -> HttpResponse:
        entry = AuditEntry.objects.create(actor_kind="system", action="test.effect")
        return created("/v1/test/effects/1", {"id": entry.pk, "sent": self.read_object()})


urlpatterns = [
    *roof.urlpatterns,
    path("v1/test/effects", Effects.as_view({"post": "create"})),
    path("v1/test/effects/<str:name>", Effects.as_view({"patch": "partial_update"})),
    path("v1/test/region", Effects.as_view({"post": "in_region"})),
    path("v1/test/invoke", Effects.as_view({"post": "invoke"})),
    path("v1/test/public", Public.as_view({"post": "create"})),
]
handler400, handler403, handler404, handler500 = roof.handler400, roof.handler403, roof.handler404, roof.handler500
