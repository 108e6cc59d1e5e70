from typing import Any

from platform_site.identity import signals
from projects.directory import invitations
from projects.errors import LastOwner
from projects.models import Member, Project


def connect() -> None:
    signals.user_deleting.connect(keep_owners, dispatch_uid="projects.keep_owners")


def keep_owners(*, user_id: str, pool_id: str | None, **_: Any) -> None:
    """Refuse to delete a live project's only owner; ends open invitations. Raises LastOwner."""
    if pool_id is not None:
        return  # app users are not members of projects
    owned = Project.objects.live().filter(memberships__user_id=user_id, memberships__role=Member.Role.OWNER)
    # Locked, as when a member is removed, so that another owner cannot leave at the same time.
    for project in owned.select_for_update(no_key=True, of=("self",)).order_by("pk"):
        if not project.memberships.filter(role=Member.Role.OWNER).exclude(user_id=user_id).exists():
            raise LastOwner
    invitations.of_inviter(user_id).delete()
