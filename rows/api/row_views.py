"""REST endpoints of rows: `/v1/rows/{table}` and below. Contract sections 4.6-4.8."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseNotModified
from django.http.response import HttpResponseBase
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema

from platform_site.http.errors import (
    Conflict,
    Forbidden,
    NotFound,
    PreconditionFailed,
    Unavailable,
    ValidationFailed,
)
from platform_site.http.idempotency import idempotent, in_region, no_longer_stored
from platform_site.http.openapi.description import IF_MATCH, IF_NONE_MATCH
from platform_site.http.pagination import read_limit
from platform_site.http.views import ApiViewSet, created, no_content, respond
from rows import services
from rows.api import etags, serializers
from rows.api.named_principals import principal_named
from rows.query.service import COUNTS, QUERY_FIELDS, ListQuery, RowResult
from rows.rules.principal import Principal
from rows.write import bulk
from rows.write.bulk import BulkQuery, Changed

_NO_SUCH_FIELD = f"There is no such field. The fields are {', '.join(sorted(QUERY_FIELDS))}."

_WITH = OpenApiParameter("with", str, description="Relations and users to embed, such as `list,comments.author`.")
_COLUMNS = OpenApiParameter(
    "columns", str, description="Columns to show beside `id`, such as `title,list.name`, or all but some: `*,-notes`."
)
_ON_CONFLICT = OpenApiParameter(
    "on_conflict",
    str,
    description="Update rows that exist already, by `id` or by the columns of a unique such as `list_id,title`.",
)
_WHERE = OpenApiParameter("where", str, description='A filter as a JSON object, such as `{"done": false}`.')
_CONDITIONS = ("If-Match", "If-None-Match")
_INSERT_OR_UPDATE = "An upsert has no ETag. To update only, PATCH the row; to insert only, omit on_conflict."
_CONDITION_IN_WHERE = "An ETag belongs to one row: put the condition into where."
_LIST_PARAMETERS = [
    _WHERE,
    OpenApiParameter("order", str, description="Columns and directions, such as `due_on.desc.nullslast,title`."),
    _WITH,
    _COLUMNS,
    OpenApiParameter("count", str, enum=COUNTS, description="Also return the total number of rows."),
]
_BULK_PARAMETERS = [
    OpenApiParameter("where", str, required=True, description="Which rows, as in a list; `{}` is all of them."),
    OpenApiParameter(
        "limit",
        OpenApiTypes.INT,
        description=f"At most this many, 1 to {bulk.MAX_ROWS}. Without it, all matching rows; none if more match.",
    ),
    OpenApiParameter("cursor", str, description="The `next_cursor` of the last response."),
]


def _read_row(view: "RowViewSet", row_id: str) -> HttpResponse:
    """What a write returned, as it is now. Raises Conflict for a caller who may not read it any more."""
    try:
        view.caller.need("rows:read")
        row = services.retrieve_row(view.environment, view._principal(), view.kwargs["table"], row_id)
    except (Forbidden, NotFound):
        raise no_longer_stored() from None
    return respond(row.body, headers=_headers(row))


class RowViewSet(ApiViewSet):
    long_floats = "kept"
    safe_posts = frozenset({"search", "explain"})
    required_scopes = {
        "list": "rows:read",
        "search": "rows:read",
        "retrieve": "rows:read",
        "create": "rows:write",
        # Filters and responses of these say what rows hold.
        **dict.fromkeys(("partial_update", "destroy", "bulk_update", "bulk_destroy"), ("rows:write", "rows:read")),
        "explain": ("schema:read", "rows:read"),
    }
    query_parameters = {
        "list": QUERY_FIELDS,
        "retrieve": frozenset({"with", "columns"}),
        # A `where` that was meant for the body of a query, or as a condition of a deletion, must not be lost silently.
        **dict.fromkeys(("search", "partial_update", "destroy", "explain"), frozenset[str]()),
        "create": frozenset({"on_conflict"}),
        **dict.fromkeys(("bulk_update", "bulk_destroy"), bulk.QUERY_FIELDS),
    }
    has_etag = frozenset({"retrieve", "create", "partial_update"})
    also_raises = {
        **dict.fromkeys(("create", "bulk_update", "bulk_destroy"), (Conflict, Unavailable)),
        **dict.fromkeys(("partial_update", "destroy"), (Conflict, PreconditionFailed, Unavailable)),
    }

    @extend_schema(parameters=_LIST_PARAMETERS, responses=serializers.RowPage)
    def list(self, request: HttpRequest, table: str) -> HttpResponseBase:
        """The rows of a table that the caller may read, one page at a time."""
        query = self.query
        return self._list(table, query, query.get("limit"))

    @extend_schema(operation_id="queryRows", request=serializers.RowQuery, responses=serializers.RowPage)
    def search(self, request: HttpRequest, table: str) -> HttpResponseBase:
        """The list, for filters that are too long for a URL. It changes nothing."""
        body = self.read_object()
        serializers.refuse_unknown_fields(body, QUERY_FIELDS, _NO_SUCH_FIELD)
        limit = body.get("limit")
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool)):
            raise ValidationFailed.of("limit", "wrong_type", "limit must be a whole number from 1 to 100.")
        cursor = body.get("cursor")
        if cursor is not None and not isinstance(cursor, str):
            raise ValidationFailed.of("cursor", "wrong_type", "cursor must be a string.")
        return self._list(table, body, None if limit is None else str(limit))

    def _list(self, table: str, parameters: Mapping[str, Any], limit: str | None) -> HttpResponse:
        most, count = read_limit(limit), parameters.get("count")
        if count is not None and count not in COUNTS:
            raise ValidationFailed.of("count", "not_among", "count must be exact or estimated.")
        query = ListQuery(
            where=parameters.get("where"),
            order=parameters.get("order"),
            limit=most,
            cursor=parameters.get("cursor"),
            withs=parameters.get("with"),
            columns=parameters.get("columns"),
            count=count,
        )
        version = None if query.withs is None else self._users_version()
        page = services.list_rows(self.environment, self._principal(), table, query, self.freshness, version)
        return respond(page.body)

    @extend_schema(parameters=[_WITH, _COLUMNS, IF_NONE_MATCH], responses={200: serializers.Row, 304: None})
    def retrieve(self, request: HttpRequest, table: str, row_id: str) -> HttpResponseBase:
        """One row, with the relations that `with` names. Answers 304 where `If-None-Match` names its `ETag`."""
        freshness, withs, columns = self.freshness, self.query.get("with"), self.query.get("columns")
        # An ETag covers the whole row without relations, so `with` and `columns` disable it.
        known = self.http_request.META.get("HTTP_IF_NONE_MATCH") if withs is None and columns is None else None
        version = None if withs is None else self._users_version()
        row = services.retrieve_row(
            self.environment, self._principal(), table, row_id, withs, columns, freshness, version
        )
        is_unchanged = etags.is_unchanged(known, row.etag)
        if known is not None and not is_unchanged and freshness is not None and freshness.answered_by is not None:
            # A replica may confirm what the client has. Where they differ, the primary knows which is newer.
            row = services.retrieve_row(self.environment, self._principal(), table, row_id)
            is_unchanged = etags.is_unchanged(known, row.etag)
        if is_unchanged:
            return HttpResponseNotModified(headers=_headers(row))
        return respond(row.body, headers=_headers(row))

    @idempotent(using=in_region, read_row=_read_row)
    @extend_schema(
        operation_id="insertRows",
        parameters=[_ON_CONFLICT],
        request=serializers.NewRows,
        responses={201: serializers.CreatedRows, 200: serializers.CreatedRows},
    )
    def create(self, request: HttpRequest, table: str) -> HttpResponseBase:
        """Insert a row, or up to 100 of them in one transaction if the body is an array.

        With `on_conflict` those that are there already are updated instead; 200, if none was inserted. This
        needs `rows:read` too. Takes no `If-Match` (422), and with `on_conflict` no `If-None-Match` either."""
        self._refuse_tags("A row that does not exist yet has no ETag.")
        body = self.request.data
        key = self.query.get("on_conflict")
        if key is not None:
            etags.refuse(self.http_request.META, _CONDITIONS, _INSERT_OR_UPDATE)
            return self._upsert(table, body, key)
        if isinstance(body, list):
            made = services.insert_rows(self.environment, self._principal(), table, body)
            return created(f"/v1/rows/{table}", _several(made))
        row = services.insert_row(self.environment, self._principal(), table, body)
        return created(f"/v1/rows/{table}/{row.id}", row.body, _headers(row))

    def _upsert(self, table: str, body: Any, key: str) -> HttpResponse:
        self.caller.need("rows:read")
        if isinstance(body, list):
            made = services.upsert_rows(self.environment, self._principal(), table, body, key)
            joined = _several([one.row for one in made])
            return created(f"/v1/rows/{table}", joined) if any(one.is_new for one in made) else respond(joined)
        one = services.upsert_row(self.environment, self._principal(), table, body, key)
        if one.is_new:
            return created(f"/v1/rows/{table}/{one.row.id}", one.row.body, _headers(one.row))
        return respond(one.row.body, headers=_headers(one.row))

    @idempotent(using=in_region, read_row=_read_row)
    @extend_schema(parameters=[IF_MATCH], request=serializers.Cells, responses=serializers.Row)
    def partial_update(self, request: HttpRequest, table: str, row_id: str) -> HttpResponseBase:
        """Change some columns of a row. Columns that are not sent stay as they are."""
        etags.refuse(self.http_request.META, ("If-None-Match",), etags.ONLY_IF_MATCH)
        changes, matches = self.read_object(), self._if_match()
        row = services.update_row(self.environment, self._principal(), table, row_id, changes, matches=matches)
        return respond(row.body, headers=_headers(row))

    @extend_schema(parameters=[IF_MATCH], responses={204: None})
    def destroy(self, request: HttpRequest, table: str, row_id: str) -> HttpResponseBase:
        """Delete a row, and the rows that its schema cascades to."""
        etags.refuse(self.http_request.META, ("If-None-Match",), etags.ONLY_IF_MATCH)
        services.delete_row(self.environment, self._principal(), table, row_id, matches=self._if_match())
        return no_content()

    @idempotent(using=in_region)
    @extend_schema(
        operation_id="updateRows",
        parameters=_BULK_PARAMETERS,
        request=serializers.Cells,
        responses=serializers.ChangedRows,
    )
    def bulk_update(self, request: HttpRequest, table: str) -> HttpResponseBase:
        """Change some columns of all rows that fit `where` and that the caller may change, in one transaction.

        Takes no `If-Match` (422): a tag is of one row."""
        changes = self.read_object()
        which = self._bulk_query()
        return respond(_changed(services.update_rows(self.environment, self._principal(), table, which, changes)))

    @extend_schema(operation_id="deleteRows", parameters=_BULK_PARAMETERS, responses={200: serializers.ChangedRows})
    def bulk_destroy(self, request: HttpRequest, table: str) -> HttpResponseBase:
        """Delete all rows that fit `where` and that the caller may delete, with what goes with them.

        Takes no `If-Match` (422): a tag is of one row."""
        which = self._bulk_query()
        return respond(_changed(services.delete_rows(self.environment, self._principal(), table, which)))

    def _bulk_query(self) -> BulkQuery:
        self._refuse_tags(_CONDITION_IN_WHERE)
        etags.refuse(self.http_request.META, ("If-None-Match",), _CONDITION_IN_WHERE)
        limit = self.query.get("limit")
        most = None if limit is None else read_limit(limit, bulk.MAX_ROWS)
        return BulkQuery(self.query.get("where"), most, self.query.get("cursor"))

    @extend_schema(request=serializers.ExplainRequest, responses=serializers.Explanation)
    def explain(self, request: HttpRequest, table: str) -> HttpResponseBase:
        """Why a row is visible to a caller or not: a verdict for each rule and clause, and the columns hidden from the
        caller."""
        body = self.read(serializers.ExplainRequest)
        seen_as = principal_named(self.environment.pool_id, body["as"]) if body.get("as") else self._principal()
        knows_users = self.caller.may("users:manage")
        explanation = services.explain_row(
            self.environment, self._principal(), table, body["id"], seen_as, knows_users=knows_users
        )
        return respond(explanation)

    def _principal(self) -> Principal:
        return Principal.of(self.caller)

    def _users_version(self) -> bytes | None:
        found: bytes | None = self.http_request.__dict__.get("users_version")
        return found

    def _refuse_tags(self, advice: str) -> None:
        """Raise ValidationFailed for an `If-Match` with a tag where no single row is meant."""
        if self._if_match() is not None:
            etags.refuse(self.http_request.META, ("If-Match",), advice)

    def _if_match(self) -> tuple[str, ...] | None:
        return etags.read_if_match(self.http_request.META.get("HTTP_IF_MATCH"))


def _several(rows: Sequence[RowResult]) -> bytes:
    return b'{"data":[' + b",".join([row.body for row in rows]) + b"]}"


def _changed(changed: Changed) -> dict[str, Any]:
    return {"ids": changed.ids, "next_cursor": changed.next_cursor}


def _headers(row: RowResult) -> dict[str, str]:
    return {} if row.etag is None else {"ETag": row.etag}
