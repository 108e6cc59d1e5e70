from typing import Any, Final

from platform_site.identity import signals
from projects.directory import invitations
from projects.errors import LastOwner
from projects.models import Member, Project

_NAMED: Final = 5


def connect() -> None:
    signals.user_deleting.connect(keep_owners, dispatch_uid="projects.keep_owners")


def keep_owners(*, user_id: str, pool_id: str | None, **_: Any) -> None:
    """Refuse to delete a live project's only owner; ends open invitations. Raises LastOwner."""
    if pool_id is not None:
        return  # app users are not members of projects
    owned = Project.objects.live().filter(memberships__user_id=user_id, memberships__role=Member.Role.OWNER)
    # Locked, as when a member is removed, so that another owner cannot leave at the same time.
    locked = owned.select_for_update(no_key=True, of=("self",)).order_by("pk")
    others = Member.objects.filter(project__in=list(locked), role=Member.Role.OWNER).exclude(user_id=user_id)
    shared = set(others.values_list("project_id", flat=True))
    if alone := [project.pk for project in locked if project.pk not in shared]:
        named = ", ".join(alone[:_NAMED]) + (f" and {len(alone) - _NAMED} more" if len(alone) > _NAMED else "")
        raise LastOwner(f"{LastOwner.message} Delete these, or make another member an owner of each: {named}.")
    invitations.of_inviter(user_id).delete()
