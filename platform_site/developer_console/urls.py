from django.urls import include, path

from platform_site.developer_console import activity, command_line, home, logs, search, sessions, settings, start
from platform_site.developer_console import sign_in as member_sign_in
from platform_site.developer_console.auth import providers, sign_up, users
from platform_site.developer_console.branches import merging
from platform_site.developer_console.branches import pages as branches
from platform_site.developer_console.functions import pages as functions
from platform_site.developer_console.functions import settings as function_settings
from platform_site.developer_console.schema import diagram
from platform_site.developer_console.schema import pages as schema
from platform_site.developer_console.staff import pages as staff_pages
from platform_site.developer_console.tables import files as table_files
from platform_site.developer_console.tables import live as table_live
from platform_site.developer_console.tables import pages as tables
from platform_site.developer_console.webhooks import pages as webhooks

app_name = "developer_console"
environment_urlpatterns = [
    path("", home.home, name="home"),
    path("activity", activity.activity, name="activity"),
    path("schema", schema.schema, name="schema"),
    path("schema/diagram", diagram.diagram, name="diagram"),
    path("auth/", users.users, name="auth"),
    path("auth/users/<str:user_id>", users.user, name="user"),
    path("auth/invitations", users.invitations, name="user-invitations"),
    path("auth/sign-up", sign_up.sign_up, name="sign-up"),
    path("auth/providers", providers.providers, name="providers"),
    path("auth/providers/<str:provider_id>", providers.provider, name="provider"),
    path("functions/", functions.functions, name="functions"),
    path("functions/<str:name>", functions.function, name="function"),
    path("functions/<str:name>/runs", functions.runs, name="function-runs"),
    path("functions/<str:name>/runs/<str:run_id>", functions.run, name="function-run"),
    path("functions/<str:name>/versions", functions.versions, name="function-versions"),
    path("functions/<str:name>/settings", function_settings.settings, name="function-settings"),
    path("webhooks/", webhooks.webhooks, name="webhooks"),
    path("webhooks/<str:webhook_id>", webhooks.webhook, name="webhook"),
    path("webhooks/<str:webhook_id>/deliveries", webhooks.deliveries, name="deliveries"),
    path("webhooks/<str:webhook_id>/deliveries/<str:delivery_id>", webhooks.delivery, name="delivery"),
    path("logs", logs.logs, name="logs"),
    path("logs/audit", logs.audit, name="audit"),
    path("logs/timeline", logs.timeline, name="timeline"),
    path("branches/", branches.branches, name="branches"),
    path("branches/merge", merging.merge, name="merge"),
    path("search", search.search, name="search"),
    path("sessions", sessions.sessions, name="sessions"),
    path("settings", settings.settings, name="settings"),
    path("tables/", tables.tables, name="tables"),
    path("tables/<str:table>", tables.table, name="table"),
    path("tables/<str:table>/api", tables.api, name="table-api"),
    path("tables/<str:table>/export.csv", table_files.export, {"format_": "csv"}, name="table-export"),
    path("tables/<str:table>/export.ndjson", table_files.export, {"format_": "ndjson"}, name="table-export-ndjson"),
    path("tables/<str:table>/import", table_files.upload, name="table-import"),
    path("tables/<str:table>/live", table_live.live, name="table-live"),
    path("tables/<str:table>/pick/<str:key>", table_live.pick, name="table-pick"),
    path("tables/<str:table>/rows", tables.new_row, name="new-row"),
    path("tables/<str:table>/rows/<str:row_id>", tables.row, name="row"),
    path("tables/<str:table>/rows/<str:row_id>/why", tables.why, name="why"),
]
urlpatterns = [
    path("", start.start, name="start"),
    path("sign-in", member_sign_in.sign_in, name="sign-in"),
    path("sign-in/code", member_sign_in.code, name="code"),
    path("sign-in/forgotten", member_sign_in.forgotten, name="forgotten"),
    path("command-line", command_line.command_line, name="command-line"),
    path("sign-out", member_sign_in.sign_out, name="sign-out"),
    path("staff", staff_pages.access, name="staff"),
    path("<str:project_id>", start.open_project, name="project"),
    path("<str:project_id>/<str:environment_id>/", include(environment_urlpatterns)),
]
