from django.apps import AppConfig


class ProjectsConfig(AppConfig):
    name = "projects"

    def ready(self) -> None:
        from accounts.directory.environments import set_directory
        from platform_site.http.middleware.cors import set_origins_lookup
        from platform_site.request_log.models import LogEntry, OmittedRequests
        from projects import signal_handlers
        from projects.console import admin  # noqa: F401 - registers the pages of the console
        from projects.directory import environments
        from projects.provisioning import orphaned_rows

        set_directory(environments)
        set_origins_lookup(environments.allowed_origins)
        # Written in batches, perhaps after the deletion.
        orphaned_rows.register(LogEntry, OmittedRequests)
        signal_handlers.connect()
