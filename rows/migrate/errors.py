"""What the errors of a schema mean to a client, and the shapes in which schemas travel."""

from typing import Any, Final

from platform_site.http import errors, exception_handler, fields
from platform_site.http.errors import ApiError, FieldError
from platform_site.http.fields import Serializer, timestamp
from rows.migrate import apply
from rows.migrate import service as schema_service
from rows.models import SchemaVersion
from rows.schema.model import InvalidDocument

DOCUMENT: Final = "document"
"""The body field with the document: its errors are named `document.tables.…`."""


def register() -> None:
    """Called once at start."""
    exception_handler.register(InvalidDocument, _invalid)
    exception_handler.register(schema_service.Unconfirmed, _unconfirmed)
    exception_handler.register(schema_service.VersionMoved, _moved)
    exception_handler.register(schema_service.NoSuchVersion, lambda error: errors.NotFound())
    exception_handler.register(schema_service.TablesQuotaReached, _too_many)
    exception_handler.register(schema_service.TablesBusy, lambda error: errors.Unavailable(_BUSY))
    exception_handler.register(apply.TookTooLong, lambda error: errors.Unavailable(_TOO_LONG))


_BUSY: Final = "The tables are in use and the change could not begin. Nothing was changed; try again."
_TOO_LONG: Final = "A step of the change took too long. Nothing was changed; make the change in smaller steps."


def _invalid(error: InvalidDocument) -> ApiError:
    return errors.ValidationFailed(
        "The schema document is not valid.",
        fields=[_of_document(found) for found in error.errors],
    )


def _of_document(found: FieldError) -> FieldError:
    return FieldError(f"{DOCUMENT}.{found.field}", found.code, found.message)


def _of_warning(found: FieldError) -> FieldError:
    """Warnings about webhooks and functions have paths of their own."""
    return _of_document(found) if found.field.startswith(("tables.", "users.")) else found


def _unconfirmed(error: schema_service.Unconfirmed) -> ApiError:
    return errors.ValidationFailed(
        "The change would lose data. Repeat it with these operations in `confirm`; what was only renamed says "
        "`renamed_from` instead.",
        fields=[FieldError("confirm", "unconfirmed", name) for name in error.operations],
    )


def _too_many(error: schema_service.TablesQuotaReached) -> ApiError:
    return errors.QuotaExceeded(f"The plan allows {error.limit} tables in an environment.")


def _moved(error: schema_service.VersionMoved) -> ApiError:
    return errors.Conflict(f"The schema is at version {error.version} now. Read it again and apply to that.")


# ── Bodies ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class SchemaChange(Serializer):
    document = fields.JSONField()
    dry_run = fields.BooleanField(default=False)
    confirm = fields.ListField(child=fields.CharField(max_length=400), default=list, max_length=1000)


class SchemaRevert(Serializer):
    version = fields.IntegerField(min_value=0)
    dry_run = fields.BooleanField(default=False)
    confirm = fields.ListField(child=fields.CharField(max_length=400), default=list, max_length=1000)


# ── Answers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class SchemaResponse(Serializer):
    version = fields.IntegerField()
    document = fields.JSONField()
    applied_at = fields.DateTimeField(allow_null=True)
    applied_by = fields.CharField(allow_null=True)
    indexes_pending = fields.BooleanField()


class VersionResponse(Serializer):
    version = fields.IntegerField()
    document = fields.JSONField()
    applied_at = fields.DateTimeField()
    applied_by = fields.CharField(allow_null=True)
    operations = fields.ListField(child=fields.CharField())
    reverts_to = fields.IntegerField(allow_null=True)


class SchemaVersionPage(Serializer):
    data = fields.ListField(child=VersionResponse())  # type: ignore[assignment]
    next_cursor = fields.CharField(allow_null=True)


class OperationResponse(Serializer):
    operation = fields.CharField()
    sql = fields.ListField(child=fields.CharField())
    destructive = fields.BooleanField()


class WarningResponse(Serializer):
    field = fields.CharField()
    code = fields.CharField()
    message = fields.CharField()


class OutcomeResponse(Serializer):
    version = fields.IntegerField()
    operations = fields.ListField(child=OperationResponse())
    warnings = fields.ListField(child=WarningResponse())
    dry_run = fields.BooleanField()
    indexes_pending = fields.BooleanField()


def state_response(state: schema_service.State) -> dict[str, Any]:
    record = state.record
    return {
        "version": state.version,
        "document": state.schema.document,
        "applied_at": timestamp(record.applied_at) if record else None,
        "applied_by": applied_by(record) if record else None,
        "indexes_pending": state.indexes_due,
    }


def version_response(record: SchemaVersion) -> dict[str, Any]:
    return {
        "version": record.version,
        "document": record.document,
        "applied_at": timestamp(record.applied_at),
        "applied_by": applied_by(record),
        "operations": [operation["operation"] for operation in record.operations],
        "reverts_to": record.reverts_to,
    }


def outcome_response(outcome: schema_service.Outcome, *, dry_run: bool) -> dict[str, Any]:
    return {
        "version": outcome.version,
        "operations": [operation.as_dict() for operation in outcome.operations],
        "warnings": [_of_warning(found).as_dict() for found in outcome.warnings],
        "dry_run": dry_run,
        "indexes_pending": outcome.indexes_due,
    }


def applied_by(record: SchemaVersion) -> str:
    """The id of the author; `system` for commands and periodic jobs, which have none."""
    return record.author_id or record.author_kind
