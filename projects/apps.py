from django.apps import AppConfig


class ProjectsConfig(AppConfig):
    name = "projects"

    def ready(self) -> None:
        """Tell the floors below what they ask of this one."""
        from accounts.environments import set_directory
        from platform_site.api.cors import set_origins_lookup
        from projects import environments, errors, receivers

        set_directory(environments)
        set_origins_lookup(environments.allowed_origins)
        errors.register_answers()
        receivers.connect()
