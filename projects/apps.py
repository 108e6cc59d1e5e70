from django.apps import AppConfig


class ProjectsConfig(AppConfig):
    name = "projects"

    def ready(self) -> None:
        """Tell the floors below what they ask of this one."""
        from accounts.directory.environments import set_directory
        from platform_site.http.cors import set_origins_lookup
        from projects import errors, signal_handlers
        from projects.console import admin  # noqa: F401 - registers the pages of the console
        from projects.directory import environments

        set_directory(environments)
        set_origins_lookup(environments.allowed_origins)
        errors.register_answers()
        signal_handlers.connect()
