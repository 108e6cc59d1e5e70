from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import F, Q, QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from unfold.decorators import display

from accounts.console.base import ConditionFilter, ReadOnlyAdmin, timeline_column
from platform_site.models import EndpointMetric, FunctionMetric, RateLimitedCaller, RegionMetric
from platform_site.templatetags.figures import endpoint_label, milliseconds, quantile


class MetricsAdmin(ReadOnlyAdmin):
    empty_words = "A worker records these every 15 seconds. Is one running (manage.py work)?"
    list_display_links = None
    date_hierarchy = None

    def has_module_permission(self, request: HttpRequest) -> bool:
        return bool(self.has_view_permission(request))


class ErrorsFilter(ConditionFilter):
    title = parameter_name = "errors"
    conditions: ClassVar = {
        "server": ("5xx", Q(server_errors__gt=0)),
        "client": ("4xx", Q(client_errors__gt=0)),
        "limited": ("Rate-limited", Q(rate_limited__gt=0)),
    }


@admin.register(EndpointMetric)
class EndpointMetricAdmin(MetricsAdmin):
    empty_words = "Web processes report their counts every ten seconds."
    list_display = (
        "at", "method", "endpoint", "requests", "client_errors", "server_errors", "rate_limited", "p50", "p95",
    )  # fmt: skip
    list_filter = (ErrorsFilter, "method")
    search_fields = ("route",)
    search_help_text = "Part of the route"
    ordering = ("-at", "route", "method")

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        return lookup == "route__exact" or bool(super().lookup_allowed(lookup, value, request))

    @display(description="route", ordering="route")
    def endpoint(self, figure: EndpointMetric) -> str:
        return endpoint_label(figure.route)

    @display(description="p50")
    def p50(self, figure: EndpointMetric) -> str:
        return milliseconds(quantile(0.5, figure.buckets))

    @display(description="p95")
    def p95(self, figure: EndpointMetric) -> str:
        return milliseconds(quantile(0.95, figure.buckets))


@admin.register(RegionMetric)
class RegionMetricAdmin(MetricsAdmin):
    list_display = (
        "at", "region", "attempts", "attempts_succeeded", "runs_succeeded", "runs_failed", "runs_timed_out", "waiting",
    )  # fmt: skip
    list_filter = ("region",)
    ordering = ("-at", "region")

    @display(description="See also")
    def waiting(self, figure: RegionMetric) -> str:
        return format_html(
            '<a class="text-link" href="{}">its queues</a>', reverse("console:waiting", args=[figure.region])
        )


@admin.register(FunctionMetric)
class FunctionMetricAdmin(MetricsAdmin):
    empty_words = "Functions show up within half a minute of their first run."
    list_display = ("at", "named", "environment", "region", "runs", "failed", "mean", "longest")
    list_filter = ("region",)
    search_fields = ("=function_id", "=environment_id", "name")
    search_help_text = "Id of the function or the environment, or the name"
    ordering = ("-longest_ms", "-at")

    def get_queryset(self, request: HttpRequest) -> "QuerySet[FunctionMetric]":
        found: QuerySet[FunctionMetric] = super().get_queryset(request)
        return found.annotate(mean_ms=F("total_ms") / F("runs"))

    named = timeline_column("function", "function_id", "name", ordering="name")
    environment = timeline_column("environment", "environment_id")

    @display(description="longest", ordering="longest_ms")
    def longest(self, figure: FunctionMetric) -> str:
        return f"{figure.longest_ms:,} ms"

    @display(description="mean", ordering="mean_ms")
    def mean(self, figure: FunctionMetric) -> str:
        return f"{figure.mean_ms:,} ms"  # type: ignore[attr-defined]  # annotated in get_queryset


@admin.register(RateLimitedCaller)
class RateLimitedCallerAdmin(MetricsAdmin):
    empty_words = "No caller reached its rate limit in two days."
    list_display = ("at", "caller", "requests")
    search_fields = ("=caller_id",)
    search_help_text = "Id of the account, user or key"
    ordering = ("-at", "-requests")

    caller = timeline_column("caller", "caller_id", ordering="caller_id")
