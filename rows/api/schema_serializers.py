from platform_site.http import fields
from platform_site.http.errors import FieldError
from platform_site.http.fields import Serializer
from rows.migrate.errors import of_document


class SchemaChange(Serializer):
    document = fields.JSONField()
    dry_run = fields.BooleanField(default=False)
    impact = fields.BooleanField(default=False)
    confirm = fields.ListField(child=fields.CharField(max_length=400), default=list, max_length=1000)


class SchemaRevert(Serializer):
    version = fields.IntegerField(min_value=0)
    backfill = fields.ObjectField(
        default=dict, help_text="Values of existing rows for columns that come back not null, by `table.column`."
    )
    dry_run = fields.BooleanField(default=False)
    impact = fields.BooleanField(default=False)
    confirm = fields.ListField(child=fields.CharField(max_length=400), default=list, max_length=1000)


class SchemaResponse(Serializer):
    version = fields.IntegerField()
    document = fields.JSONField(source="schema.document")
    applied_at = fields.DateTimeField(source="record.applied_at", allow_null=True)
    applied_by = fields.CharField(source="record.applied_by", allow_null=True)
    indexes_pending = fields.BooleanField(source="indexes_due")


class VersionResponse(Serializer):
    version = fields.IntegerField()
    document = fields.JSONField()
    applied_at = fields.DateTimeField()
    applied_by = fields.CharField(allow_null=True)
    operations = fields.ListField(child=fields.CharField(), source="operation_names")
    reverts_to = fields.IntegerField(allow_null=True)


class SchemaVersionPage(Serializer):
    data = fields.ListField(child=VersionResponse())  # type: ignore[assignment]
    next_cursor = fields.CharField(allow_null=True)


class OperationResponse(Serializer):
    operation = fields.CharField(source="name")
    sql = fields.ListField(child=fields.CharField())
    destructive = fields.BooleanField()


class ImpactResponse(Serializer):
    table = fields.CharField(allow_null=True, help_text="Null for the fields of users that relations embed.")
    subject = fields.CharField(source="label", help_text="A role, or a user with its role.")
    before = fields.IntegerField(
        source="seen.before", allow_null=True, help_text="Rows that are visible now. Null if they were not counted."
    )
    after = fields.IntegerField(source="seen.after", allow_null=True)
    appearing = fields.IntegerField(source="seen.appearing", allow_null=True)
    vanishing = fields.IntegerField(source="seen.vanishing", allow_null=True)
    is_sample = fields.BooleanField(help_text="Only the newest rows were counted.")
    not_counted = fields.CharField(source="why_not", allow_null=True, help_text="Why the rows were not counted.")
    columns_appearing = fields.ListField(child=fields.CharField(), help_text="In all rows, or in some of the counted.")
    columns_vanishing = fields.ListField(child=fields.CharField())


class OutcomeResponse(Serializer):
    version = fields.IntegerField(source="outcome.version")
    operations = fields.ListField(source="outcome.operations", child=OperationResponse())
    warnings = fields.ListField(child=fields.WarningResponse())
    dry_run = fields.BooleanField()
    indexes_pending = fields.BooleanField(source="outcome.indexes_due")
    impact = fields.ListField(child=ImpactResponse(), required=False)


def with_path(found: FieldError) -> FieldError:
    """Adds the path in the request body, unless the warning is about a webhook or function."""
    return of_document(found) if found.field.startswith(("tables.", "users.")) else found
