"""What `projects` does when an account goes: `accounts` announces it, nobody here is called by name."""

from typing import Any

from platform_site.identity import signals
from projects.directory import invitations
from projects.errors import LastOwner
from projects.models import Member, Project


def connect() -> None:
    """Called once at start."""
    signals.user_deleting.connect(keep_owners, dispatch_uid="projects.keep_owners")


def keep_owners(*, user_id: str, pool_id: str | None, **_: Any) -> None:
    """Refuse to let a live project lose its only owner, in the transaction that deletes the account; whom that account
    had invited is invited no longer.

    Its memberships and sessions go with the account's row, so no place has to be forgotten. Raises LastOwner.
    """
    if pool_id is not None:
        return  # an app user is a member of nothing
    owned = Project.objects.live().filter(memberships__user_id=user_id, memberships__role=Member.Role.OWNER)
    # Locked, as by whoever removes a member, so that the other owner cannot leave at the same moment.
    for project in owned.select_for_update(no_key=True, of=("self",)).order_by("pk"):
        if not project.memberships.filter(role=Member.Role.OWNER).exclude(user_id=user_id).exists():
            raise LastOwner
    invitations.of_inviter(user_id).delete()
