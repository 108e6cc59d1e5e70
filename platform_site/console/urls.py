from django.contrib import admin
from django.urls import path

from platform_site.console import orphaned_schemas, views

app_name = "console"
urlpatterns = [
    path("search/", admin.site.admin_view(views.palette), name="palette"),
    path("timeline/", admin.site.admin_view(views.timeline), name="timeline"),
    path("orphaned-schemas/", admin.site.admin_view(orphaned_schemas.orphaned_schemas), name="orphaned_schemas"),
    path("waiting/<str:region>/", admin.site.admin_view(views.waiting), name="waiting"),
]
