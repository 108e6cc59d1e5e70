from django.conf import settings
from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path
from django.views.generic import RedirectView, TemplateView

from platform_site import demo_receiver, guides
from platform_site.config.views import ConfigViewSet
from platform_site.http.site import client_script, health, pages
from platform_site.observability import metrics

urlpatterns: list[URLPattern | URLResolver] = [
    path("", include("rows.urls")),  # first, since most requests are for rows
    path("", include("functions.urls")),
    path("healthz", health.healthz),
    path("readyz", health.readyz),
    path("metrics", metrics.metrics),
    *client_script.urlpatterns(),
    path("", RedirectView.as_view(pattern_name="docs")),
    path("favicon.ico", pages.favicon),
    path("docs", TemplateView.as_view(template_name="docs.html"), name="docs"),
    path("docs/guides", guides.index, name="guides"),
    path("docs/guides/search.json", guides.search_index, name="guides-search"),
    path("docs/guides/<path:name>", guides.guide, name="guide"),
    path("v1/config", ConfigViewSet.as_view({"get": "retrieve"})),
    path("v1/config/plan", ConfigViewSet.as_view({"post": "plan"})),
    path("v1/config/apply", ConfigViewSet.as_view({"post": "apply"})),
    path("console", RedirectView.as_view(pattern_name="developer_console:start")),
    path("console/", include("platform_site.developer_console.urls")),
    path("admin", RedirectView.as_view(pattern_name="admin:index")),
    path("admin/", include("accounts.staff.urls")),
    path("admin/", include("platform_site.console.urls")),
    path("admin/", admin.site.urls),
    path("", include("accounts.urls")),
    path("", include("projects.urls")),
    path("", include("webhooks.urls")),
]
if not settings.PRODUCTION:
    urlpatterns.append(path(demo_receiver.PATH.lstrip("/"), demo_receiver.receive))

handler400 = pages.bad_request
handler403 = pages.permission_denied
handler404 = pages.page_not_found
handler500 = pages.server_error
