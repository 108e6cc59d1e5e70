"""How the commands of `rows` find the environment that their first argument means."""

from django.core.management.base import CommandError

from platform_site.api.callers import Place
from projects.environments import place_of
from projects.models import Environment

HELP = "the environment: its id (env_…), or the project's id and its name (prj_…/production)"


def place_named(text: str) -> Place:
    """The place of `env_…` or of `prj_…/name`. Raises CommandError."""
    environment_id = text
    if "/" in text:
        project_id, _, name = text.partition("/")
        found = Environment.objects.reachable().filter(project_id=project_id, name=name).values_list("pk", flat=True)
        environment_id = found.first() or ""
    place = place_of(environment_id)
    if place is None:
        raise CommandError(f"There is no environment {text}. `manage.py list_projects` shows those that there are.")
    return place
