"""`/v1/config`: the configuration of an environment, what a document would change in it, and applying that."""

from collections.abc import Mapping
from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from platform_site.config import current, service
from platform_site.config.service import Planned
from platform_site.http import fields
from platform_site.http.errors import (
    Conflict,
    Forbidden,
    PreconditionFailed,
    QuotaExceeded,
    Unavailable,
    ValidationFailed,
)
from platform_site.http.fields import Serializer
from platform_site.http.generics import ResourceViewSet
from rows.api.schema_serializers import ImpactResponse
from rows.migrate import rule_impact


class ConfigResponse(Serializer):
    version = fields.CharField(help_text="Version of the parts in `config`. Equal content has an equal version.")
    config = fields.ObjectField(help_text="Can be sent to `/v1/config/plan`, which would change nothing.")


class PlanInput(Serializer):
    """One of `config`, `from` and `version`."""

    config = fields.ObjectField(
        required=False, help_text="As `GET /v1/config` returns it. Parts that are left out stay as they are."
    )
    version = fields.CharField(
        required=False,
        max_length=40,
        help_text="The `cfg_…` of an earlier version that an apply replaced: the plan restores it.",
    )
    keep = fields.ListField(
        child=fields.ChoiceField(choices=["functions", "webhooks"]),
        default=list,
        help_text="With `config`: keep functions or webhooks that are not in it, instead of removing them.",
    )
    include = fields.ListField(
        child=fields.CharField(max_length=200),
        default=list,
        max_length=100,
        help_text="With `from`: parts and paths whose access settings (`trust`) are merged, too.",
    )
    resolve = fields.ObjectField(
        required=False, help_text="With `from`: for each conflict's path `ours`, `theirs` or a value."
    )
    impact = fields.BooleanField(default=False, help_text="Also count the rows that changed rules would show or hide.")
    from_ = fields.CharField(
        required=False, max_length=40, help_text="`env_…` whose configuration is merged into this."
    )


class PlannedChange(Serializer):
    path = fields.CharField()
    kind = fields.ChoiceField(choices=["add", "change", "remove", "trust"])
    destructive = fields.BooleanField()
    operation = fields.CharField(allow_null=True, help_text="For changes of the schema.")
    sql = fields.ListField(child=fields.CharField())
    before = fields.JSONField(allow_null=True)
    after = fields.JSONField(allow_null=True)


class PlanConflict(Serializer):
    path = fields.CharField()
    base = fields.JSONField(allow_null=True)
    ours = fields.JSONField(allow_null=True)
    theirs = fields.JSONField(allow_null=True)


class PlanLock(Serializer):
    table = fields.CharField(help_text="Current name.")
    mode = fields.CharField(help_text="Mode of the PostgreSQL table lock.")
    blocks = fields.ChoiceField(choices=["reads and writes", "writes", "nothing"])
    rows = fields.IntegerField(help_text="Estimated by PostgreSQL.")
    bytes = fields.IntegerField()
    work = fields.ListField(
        child=fields.ChoiceField(choices=["rewrite", "scan", "index"]), help_text="Empty: only the catalog changes."
    )
    estimated_ms = fields.IntegerField(help_text="Rough estimate of the time for the work on this table.")


class PlanResponse(Serializer):
    """Of a `Planned`."""

    plan = fields.CharField(source="stored.pk", help_text="`pln_…`, which can be applied for an hour.")
    version = fields.CharField(
        source="plan.version", help_text="Version of the compared parts of the environment's configuration."
    )
    changes = fields.ListField(source="plan.changes", child=PlannedChange())
    confirm = fields.ListField(
        source="plan.confirm", child=fields.CharField(), help_text="Names of changes that an apply has to confirm."
    )
    conflicts = fields.ListField(child=PlanConflict(), help_text="For a merge: what both sides changed.")
    missing_secrets = fields.ListField(source="plan.missing_secrets", child=fields.CharField())
    warnings = fields.ListField(source="plan.warnings", child=fields.WarningResponse())
    locks = fields.ListField(
        source="plan.locks", child=PlanLock(), help_text="Existing tables that the change of the schema locks."
    )
    locked_ms = fields.IntegerField(
        source="plan.locked_ms", help_text="Estimated milliseconds for which the locks are held."
    )
    impact = fields.ListField(child=ImpactResponse(), required=False)


class ApplyInput(Serializer):
    plan = fields.CharField(max_length=40)
    confirm = fields.ListField(
        child=fields.CharField(max_length=400), default=list, max_length=5000, help_text="All of the plan's `confirm`."
    )
    resolve = fields.ObjectField(
        required=False, help_text="For each conflict of a merge `ours`, `theirs` or a value, by path."
    )
    urls = fields.ObjectField(
        required=False,
        help_text="By path, whole URLs of webhooks whose URL in the plan has a `$secret:`. Plans do not store them.",
    )


class ApplyResponse(Serializer):
    plan = fields.CharField()
    status = fields.ChoiceField(
        choices=["applied", "completing"], help_text="`completing`: sign-in and origins follow within two minutes."
    )
    version = fields.CharField(allow_null=True, help_text="New version of the plan's parts; null while completing.")


class ConfigViewSet(ResourceViewSet):
    long_floats = "refused"
    required_scopes = {"retrieve": None, "plan": None, "apply": None}
    query_parameters = {"retrieve": frozenset({"parts"})}
    also_raises: ClassVar = {
        "retrieve": (Forbidden,),
        "plan": (Forbidden, Conflict, QuotaExceeded, Unavailable),
        "apply": (Forbidden, Conflict, PreconditionFailed, QuotaExceeded, Unavailable),
    }

    @extend_schema(responses=ConfigResponse)
    def retrieve(self, request: Request) -> Response:
        """The configuration of the environment as one document: schema, functions, webhooks, sign-in, origins.

        A part is there if the caller has its scopes: `schema:read`, `functions:read`, `webhooks:read`, `users:manage`
        and `environments:write` for `auth`, `environments:read` for `origins`. `parts=schema,functions` selects some,
        and is 403 without the scopes of each. Secrets appear by name."""
        named = self.query["parts"].split(",") if "parts" in self.query else None
        if not {*(named or ())} <= {*current.PARTS}:
            known = ", ".join(current.PARTS)
            raise ValidationFailed.of("parts", "not_among", f"Must be some of {known}, separated by commas.")
        parts = service.parts_to_read(self.caller, named)
        found = current.read(self.environment, parts)
        config = current.with_sources(self.environment, found)
        return Response({"version": current.version_of(found), "config": config})

    @extend_schema(operation_id="planConfig", request=PlanInput, responses=PlanResponse)
    def plan(self, request: Request) -> Response:
        """Compare a configuration with that of the environment: what it would change. It can be applied for an hour.

        It needs the scopes to read and to write the parts that the document names. Of a part that it names, functions,
        webhooks and providers that it leaves out would be removed; `keep` keeps functions or webhooks. Documents with
        secrets are refused. `impact` needs `rows:read`, and `users:manage` to name users."""
        current.require_scopes(self.caller, ())
        values = self.read(PlanInput)
        if values["impact"]:
            self.caller.need("rows:read")
        planned = self._planned(values)
        shown = PlanResponse(planned).data
        if values["impact"]:
            shown["impact"] = ImpactResponse(self._impact(planned), many=True).data
        return Response(shown)

    def _planned(self, values: Mapping[str, Any]) -> Planned:
        if len(values.keys() & {"config", "from", "version"}) != 1:
            raise ValidationFailed.of("config", "required", "Send one of `config`, `from` and `version`.")
        if values["keep"] and "config" not in values:
            raise ValidationFailed.of("keep", "unknown", "`keep` is for plans of a `config`.")
        if "config" in values:
            return service.plan_document(self.environment, values["config"], self.caller, values["keep"])
        if "version" in values:
            return service.plan_version(self.environment, values["version"], self.caller)
        return service.plan_merge(
            self.environment,
            values["from"],
            include=values["include"],
            resolve=values.get("resolve", {}),
            caller=self.caller,
        )

    def _impact(self, planned: Planned) -> list[rule_impact.Impact]:
        schema = planned.stored.document.get("schema")
        if schema is None or any(each.path.startswith("schema") for each in planned.conflicts):
            return []
        return rule_impact.of_change(self.environment, schema, name_users=self.caller.may("users:manage"))

    @extend_schema(operation_id="applyConfig", request=ApplyInput, responses=ApplyResponse)
    def apply(self, request: Request) -> Response:
        """Apply a plan of yours to its environment: completely or not at all. Applying it again changes nothing.

        `confirm` names what the plan says. 412 if the environment changed since, or the plan is older than an hour.
        Functions with a schedule or events run as the caller from then on."""
        current.require_scopes(self.caller, ())
        values = self.read(ApplyInput)
        outcome = service.apply(
            self.environment,
            values["plan"],
            confirm=values["confirm"],
            resolve=values.get("resolve", {}),
            urls=values.get("urls", {}),
            caller=self.caller,
        )
        return Response(ApplyResponse(outcome).data)
