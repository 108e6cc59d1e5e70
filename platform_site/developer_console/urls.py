"""URLs of the console for members of projects."""

from django.urls import path

from platform_site.developer_console import command_line, frame, home, schema, settings, sign_in, table_files, tables

app_name = "developer_console"
_ENVIRONMENT = "<str:project_id>/<str:environment_id>/"
urlpatterns = [
    path("", frame.start, name="start"),
    path("sign-in", sign_in.sign_in, name="sign-in"),
    path("sign-in/code", sign_in.code, name="code"),
    path("command-line", command_line.command_line, name="command-line"),
    path("sign-out", sign_in.sign_out, name="sign-out"),
    path("<str:project_id>", frame.open_project, name="project"),
    path(_ENVIRONMENT, home.home, name="home"),
    path(f"{_ENVIRONMENT}schema", schema.schema, name="schema"),
    path(f"{_ENVIRONMENT}settings", settings.settings, name="settings"),
    path(f"{_ENVIRONMENT}tables/", tables.tables, name="tables"),
    path(f"{_ENVIRONMENT}tables/<str:table>", tables.table, name="table"),
    path(f"{_ENVIRONMENT}tables/<str:table>/export.csv", table_files.export, name="table-export"),
    path(f"{_ENVIRONMENT}tables/<str:table>/import", table_files.upload, name="table-import"),
    path(f"{_ENVIRONMENT}tables/<str:table>/rows", tables.new_row, name="new-row"),
    path(f"{_ENVIRONMENT}tables/<str:table>/rows/<str:row_id>", tables.row, name="row"),
    path(f"{_ENVIRONMENT}tables/<str:table>/rows/<str:row_id>/why", tables.why, name="why"),
]
