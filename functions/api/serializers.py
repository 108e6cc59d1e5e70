import re
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from rest_framework.exceptions import ValidationError

from functions.models import Function, Run
from functions.runs.retention import RETENTION
from functions.runs.storage import MAX_STORED_BYTES
from functions.triggers import cron, event_subscriptions
from platform_site.http import fields
from platform_site.http.fields import Serializer
from platform_site.identity.plans import most_of
from rows.outbox.fields import EventsField

_HOST: Final = re.compile(
    r"(?=.{1,253}(:|$))[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*(:\d{1,5})?", re.ASCII
)
_SECRET: Final = re.compile(r"[A-Z][A-Z0-9_]{0,63}", re.ASCII)
MAX_SOURCE_BYTES: Final = 512 * 1024
MAX_SECRETS: Final = 50


class HostsField(fields.ListField):
    child = fields.CharField(max_length=260)

    def __init__(self, **options: Any) -> None:
        super().__init__(max_length=20, distinct=True, **options)

    def to_internal_value(self, data: Any) -> list[str]:
        hosts: list[str] = super().to_internal_value(data)
        for host in hosts:
            if not _HOST.fullmatch(host):
                raise ValidationError(
                    f'"{host[:60]}" is not a host: write api.example.com or api.example.com:8443.', "invalid"
                )
        return hosts


class SecretsField(fields.ObjectField):
    def to_internal_value(self, data: Any) -> dict[str, str | None]:
        secrets: dict[str, Any] = super().to_internal_value(data)
        if len(secrets) > MAX_SECRETS:
            raise ValidationError(f"At most {MAX_SECRETS} secrets.", "too_many")
        for name, value in secrets.items():
            if not _SECRET.fullmatch(name):
                raise ValidationError("A secret's name is capitals, digits and _, such as API_TOKEN.", "invalid_name")
            if value is not None and (not isinstance(value, str) or not 1 <= len(value) <= 8192):
                raise ValidationError("A secret's value is a string of 1 to 8192 characters, or null.", "invalid")
        return secrets


class SourceField(fields.CharField):
    def __init__(self, **options: Any) -> None:
        super().__init__(trim_whitespace=False, **options)

    def to_internal_value(self, data: Any) -> str:
        source: str = super().to_internal_value(data)
        if len(source.encode()) > MAX_SOURCE_BYTES:
            raise ValidationError("The source has more than 512 KB.", "too_long")
        return source


class ScheduleField(fields.CharField):
    def to_internal_value(self, data: Any) -> str:
        try:
            return cron.normal(super().to_internal_value(data))
        except cron.BadSchedule as error:
            raise ValidationError(str(error), "invalid_schedule") from error


class OnField(EventsField):
    def __init__(self, **options: Any) -> None:
        super().__init__(min_length=0, max_length=event_subscriptions.MAX_PATTERNS, **options)

    def problem_with(self, pattern: str) -> str | None:
        if pattern in event_subscriptions.NOT_SUBSCRIBABLE:
            return "cannot trigger a function: it is an event of function runs, or is sent to one webhook only"
        return super().problem_with(pattern)


class Configuration(Serializer):
    timeout_ms = fields.IntegerField(min_value=10, max_value=most_of("function_timeout_ms"), required=False)
    memory_mb = fields.IntegerField(min_value=64, max_value=most_of("function_memory_mb"), required=False)
    allowed_hosts = HostsField(required=False)
    invoke = fields.ChoiceField(
        choices=["user", "key", "public"],
        required=False,
        allow_null=True,
        help_text="Who may invoke it: app users, server keys and members, all of these (null), or also callers with a "
        "publishable key (`public`).",
    )
    attempts = fields.IntegerField(min_value=1, max_value=5, required=False)
    schedule = ScheduleField(required=False, allow_null=True)
    on = OnField(
        required=False,
        allow_null=True,
        help_text="Events that trigger it, named as for webhooks; null or an empty list removes them.",
    )
    secrets = SecretsField(required=False)


class Deployment(Configuration):
    source = SourceField()  # type: ignore[assignment]  # DRF's fields have a `source` of their own


class Activation(Serializer):
    version = fields.IntegerField(min_value=1)


class Invocation(Serializer):
    input = fields.ObjectField(required=False, allow_null=True)
    async_ = fields.BooleanField(required=False)


class RunsSinceField(fields.DateTimeField):
    def get_attribute(self, function: Function) -> datetime | None:
        since = function.runs_since
        return since if since is not None and since > datetime.now(UTC) - RETENTION else None


class FunctionDetail(Serializer):
    name = fields.CharField()
    active_version = fields.IntegerField()
    timeout_ms = fields.IntegerField()
    memory_mb = fields.IntegerField()
    allowed_hosts = fields.ListField(child=fields.CharField())
    invoke = fields.CharField(allow_null=True)
    attempts = fields.IntegerField()
    schedule = fields.CharField(allow_null=True)
    next_run_at = fields.DateTimeField(allow_null=True, help_text="Null without a schedule, or if it is stopped.")
    schedule_stopped = fields.ChoiceField(
        choices=Function.Stopped.values,
        allow_null=True,
        help_text="Why it is stopped; setting the schedule again resumes it.",
    )
    scheduled_as = fields.CharField(
        source="scheduled_id", allow_null=True, help_text="The key or account that scheduled runs execute as."
    )
    last_skipped_at = fields.DateTimeField(
        allow_null=True, help_text="The last due time that was skipped because the previous run had not ended."
    )
    on = fields.ListField(
        child=fields.CharField(), source="events", allow_null=True, help_text="Events that trigger it."
    )
    on_stopped = fields.ChoiceField(
        source="events_stopped",
        choices=[Function.Stopped.CALLER_GONE, Function.Stopped.COPIED, Function.Stopped.OPERATOR],
        allow_null=True,
        help_text="Why the event triggers are stopped; setting the events again resumes them.",
    )
    on_as = fields.CharField(
        source="events_id", allow_null=True, help_text="The key or account that runs on events execute as."
    )
    inbound_as = fields.ListField(
        child=fields.CharField(), help_text="The key or account that runs execute as, of each inbound endpoint."
    )
    runs_since = RunsSinceField(
        allow_null=True,
        help_text="The start of its history, if runs of the last seven days were deleted early because they exceeded "
        "the plan's run_history_bytes.",
    )
    secrets = fields.ListField(child=fields.CharField(), source="secret_names", help_text="Names only.")
    unset_secrets = fields.ListField(
        child=fields.CharField(),
        help_text="Those of `secrets` without a value here, such as in a new branch: `ctx.secrets` lacks them.",
    )
    created_at = fields.DateTimeField()
    updated_at = fields.DateTimeField()


class VersionDetail(Serializer):
    version = fields.IntegerField(source="number")
    is_active = fields.BooleanField()
    source = fields.CharField()  # type: ignore[assignment]
    created_at = fields.DateTimeField()


class InvokeResponse(Serializer):
    run_id = fields.CharField()
    output = fields.JSONField(required=False)
    duration_ms = fields.IntegerField(required=False)
    status = fields.ChoiceField(choices=Run.Status.values)
    error = fields.CharField(required=False)
    not_stored = fields.ListField(
        child=fields.ChoiceField(choices=["output"]),
        required=False,
        help_text="Set in a replayed response to a publishable key if the output was too large to be stored.",
    )


class ListedRun(Serializer):
    id = fields.CharField()
    status = fields.ChoiceField(choices=Run.Status.values)
    started_at = fields.DateTimeField(source="began_at")
    duration_ms = fields.IntegerField(source="elapsed_ms")
    trigger = fields.ChoiceField(choices=Run.Trigger.values, help_text="What started it.")
    event_id = fields.CharField(allow_null=True, help_text="The event that it runs on.")
    error = fields.CharField(required=False)

    def to_representation(self, run: Run) -> dict[str, Any]:
        shown: dict[str, Any] = super().to_representation(run)
        if run.status == Run.Status.FAILED:
            shown["error"] = error_text(run.error)
        else:
            del shown["error"]
        return shown


class SecondsField(fields.DateTimeField):
    def to_representation(self, value: Any) -> Any:
        return super().to_representation(datetime.fromtimestamp(value, UTC))


class OutputField(fields.JSONField):
    def to_representation(self, value: Any) -> Any:
        return orjson.Fragment(value)


class LogLine(Serializer):
    at = SecondsField()
    level = fields.ChoiceField(choices=["debug", "info", "warning", "error"])
    text = fields.CharField()


class RunDetail(ListedRun):
    # Any JSON value, null included: with `allow_null` the OpenAPI schema would match null twice.
    output = OutputField()
    stack = fields.CharField(
        source="error.stack",
        allow_null=True,
        help_text="Where the code threw, in the lines of its source; null for app users.",
    )
    logs = fields.ListField(child=LogLine())
    attempts = fields.IntegerField()
    version = fields.IntegerField()
    phase = fields.ChoiceField(choices=Run.Phase.values)
    sandbox_layers = fields.ListField(child=fields.CharField())
    not_stored = fields.ListField(
        child=fields.ChoiceField(choices=["input", "output", "logs"]),
        help_text="The fields of a run with a publishable key that were longer than "
        f"{MAX_STORED_BYTES:,} bytes and not stored. `logs`: the lines after the stored ones. For an event: its input.",
    )

    def to_representation(self, run: Run) -> dict[str, Any]:
        shown = super().to_representation(run)
        shown["not_stored"] = shown["not_stored"] or []
        if "view" in self.context:
            caller = self.context["view"].caller
            if caller.kind == "user":
                shown["stack"] = None  # it reveals the source
            if not caller.may("functions:read"):  # who cancels a run needs `functions:invoke` only
                shown |= {"output": None, "stack": None, "logs": []}
        return shown


def error_text(error: Any) -> str:
    if not isinstance(error, dict):
        return "the run failed"
    return f"{error.get('name', 'Error')}: {error.get('message', '')}"
