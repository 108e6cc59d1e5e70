from projects.errors import NoSuchProject
from projects.models import Project


def locked(project_id: str) -> Project:
    project: Project | None = Project.objects.live().select_for_update(no_key=True).filter(pk=project_id).first()
    if project is None:
        raise NoSuchProject
    return project
