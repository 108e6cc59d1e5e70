from django.http import HttpRequest
from django.http.response import HttpResponseBase
from drf_spectacular.utils import extend_schema

from platform_site.http.errors import Conflict, NotFound, PreconditionFailed, Unavailable, ValidationFailed
from platform_site.http.idempotency import idempotent, in_region
from platform_site.http.views import ApiViewSet, respond
from platform_site.redis import rate_limits
from rows.api import etags, serializers
from rows.rules.principal import Principal
from rows.write import batch

_FIELDS = frozenset({"operations", "dry_run"})
_IF_MATCH = "An ETag belongs to one row: put it into the operation as `if_match`."


class BatchViewSet(ApiViewSet):
    long_floats = "kept"
    required_scopes = {"create": "rows:write"}
    query_parameters = {"create": frozenset[str]()}
    also_raises = {"create": (Conflict, NotFound, PreconditionFailed, Unavailable)}

    @idempotent(using=in_region)
    @extend_schema(operation_id="writeBatch", request=serializers.Batch, responses={200: serializers.BatchResults})
    def create(self, request: HttpRequest) -> HttpResponseBase:
        """Up to 100 writes on several tables in one transaction: all or nothing.

        An error names the operation that failed, and nothing has changed. Takes no `If-Match` (422). Counts against
        the rate limit as its number of operations. All but inserts need `rows:read` too."""
        meta = self.http_request.META
        etags.refuse(meta, ("If-Match", "If-None-Match"), _IF_MATCH)
        body = self.read_object()
        serializers.refuse_unknown_fields(body, _FIELDS, "There is no such field.")
        if "operations" not in body:
            raise ValidationFailed.of("operations", "required", "Required.")
        dry_run = body.get("dry_run", False)
        if not isinstance(dry_run, bool):
            raise ValidationFailed.of("dry_run", "wrong_type", "Must be true or false.")
        operations = batch.read_operations(body["operations"], etags.read_if_match)
        batch.require_scopes(self.caller, operations)
        rate_limits.count_operations(self.http_request, len(operations), self.caller.plan, self.caller.id)
        results = batch.execute(self.environment, Principal.of(self.caller), operations, dry_run=dry_run)
        return respond(batch.as_json(results))
