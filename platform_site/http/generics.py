"""`ResourceViewSet`: DRF's generic viewset for the endpoints of a resource, with its mixins, serializers, filters
and pagination as DRF documents them. Endpoints of rows, which are called most, are plain `ApiViewSet`s."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from django.db.models import QuerySet
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django_filters import FilterSet
from rest_framework.pagination import BasePagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from platform_site.http import cursors
from platform_site.http.errors import ApiError, NotFound
from platform_site.http.filters import FilterBackend
from platform_site.http.pagination import Page, paginate, read_limit
from platform_site.http.views import ApiViewSet, no_content, respond
from platform_site.identity import ids


class UnpagedList(BasePagination):
    parameters: ClassVar[frozenset[str]] = frozenset()

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:
        return list(queryset)

    def get_paginated_response(self, data: Any) -> Response:
        return Response({"data": data})


class CursorPagination(BasePagination):
    """By the view's `ordering`, `cursor_kind`, `cursor_facts`, `index_ranges` and `heavy_field`."""

    parameters: ClassVar[frozenset[str]] = frozenset({"limit", "cursor"})
    page: Page[Any]

    def paginate_queryset(self, queryset: Any, request: Request, view: Any = None) -> list[Any]:
        first, *others = view.index_ranges(queryset)
        self.page = paginate(
            first,
            view.ordering,
            read_limit(view.query.get("limit")),
            view.query.get("cursor"),
            view.cursor_kind,
            view.cursor_facts(),
            heavy=view.heavy_field,
            merged_with=others,
        )
        return self.page.items

    def get_paginated_response(self, data: Any) -> Response:
        return Response({"data": data, "next_cursor": self.page.next_cursor})


class ResourceViewSet(ApiViewSet, GenericViewSet[Any]):
    filter_backends = (FilterBackend,)
    filterset_class: ClassVar[type[FilterSet] | None] = None
    filterset: FilterSet
    """Of the current list request; `form.cleaned_data` has the values."""
    pagination_class: type[UnpagedList | CursorPagination] = CursorPagination
    cursor_kind: ClassVar[str]
    ordering: ClassVar[Sequence[str]]
    heavy_field: ClassVar[str | None] = None
    id_prefix: ClassVar[str | None] = None
    """`get_object` raises `not_found` for an id without it."""
    not_found: ClassVar[type[ApiError]] = NotFound
    format_kwarg = None

    def _run(self, request: HttpRequest, action: Callable[..., HttpResponseBase]) -> HttpResponseBase:
        response = super()._run(request, action)
        if isinstance(response, Response):
            return no_content() if response.data is None else respond(response.data, response.status_code)
        return response

    @classmethod
    def parameters_of(cls, action: str) -> frozenset[str] | None:
        if action != "list" or action in cls.query_parameters:
            return super().parameters_of(action)
        filters = cls.filterset_class.base_filters if cls.filterset_class is not None else ()
        return cls.pagination_class.parameters.union(filters)

    def cursor_facts(self) -> Sequence[cursors.Fact]:
        filters = self.filterset_class.base_filters if self.filterset_class is not None else ()
        return [*self.kwargs.values(), *(self.query.get(name, "") for name in filters)]

    def index_ranges(self, queryset: QuerySet[Any]) -> Sequence[QuerySet[Any]]:
        """Disjoint parts of the list, if there is an index in the list's order for each part but not for the whole."""
        return [queryset]

    def get_object(self) -> Any:
        if self.id_prefix is not None and not ids.matches(
            self.id_prefix, self.kwargs[self.lookup_url_kwarg or self.lookup_field]
        ):
            raise self.not_found
        try:
            return super().get_object()
        except Http404:
            raise self.not_found from None
