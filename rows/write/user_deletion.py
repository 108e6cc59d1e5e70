"""Users on their way out: their rows have gone in the region, and the control database has yet to commit.

Rows come first, since one that another keeps keeps the user too, and are committed in batches; the user's own row comes
last, in another database. Whoever is cut off in between would leave a user without rows, who was not deleted. So the
transaction of each batch puts down that this user is leaving, and what was put down is taken away once the control
database has committed, or where the deletion was refused. What a crash leaves of it a sweep finds: it deletes the user
as the caller would have done again, with the rows that came meanwhile and the sessions that began, in the name of who
asked for it.
"""

from collections.abc import Collection
from typing import cast

from django.db import transaction

from accounts.audit import Actor, ActorKind
from accounts.models import User
from accounts.users import service as accounts
from platform_site.background.periodic import after_commit
from platform_site.http.errors import Conflict
from platform_site.http.requests import close_request, current_request_id, open_request
from platform_site.identity import call_depth
from platform_site.identity.callers import Caller, Place
from rows.models import LeavingUser
from rows.write import referential_actions


def let_go(places: Collection[Place], user_id: str, *, pool_id: str, actor: Caller | Actor) -> None:
    """Apply the policies of user columns in all environments of a pool, within the control transaction that deletes
    the user. Raises Conflict as `referential_actions.let_go_of_user`, and then nobody is leaving."""
    leaving = LeavingUser(
        user_id=user_id,
        environment_id=pool_id,
        actor_kind=actor.kind,
        actor_id=actor.id,
        request_id=current_request_id(),
    )
    clusters = {place.cluster for place in places}
    try:
        for place in places:
            depth = call_depth.depth_here(place.environment_id)
            referential_actions.let_go_of_user(place, user_id, leaving=leaving, depth=depth)
    except Conflict:
        for using in clusters:
            _forget(using, user_id)  # an earlier try may have put it down, too
        raise
    for using in clusters:
        after_commit("a user who left", _forget, using, user_id, using=using)


def finish(using: str, leaving: LeavingUser) -> None:
    """Delete a user of whom rows have gone, unless somebody is at it now. May run twice.

    Raises Conflict where a row keeps the user by now, who then stays.
    """
    users, noted = User.objects.filter(pk=leaving.pk), LeavingUser.objects.using(using).filter(pk=leaving.pk)
    with transaction.atomic(durable=True):
        user = users.select_for_update(skip_locked=True).first()
        # The note is asked for under the lock: whoever was refused held it, and told the caller.
        if user is not None and noted.exists():
            _delete(user, leaving)
    if user is None and not users.exists():
        noted.delete()


def _delete(user: User, leaving: LeavingUser) -> None:
    request = open_request(leaving.request_id or current_request_id())
    try:
        accounts.delete_user(user, actor=Actor(cast(ActorKind, leaving.actor_kind), leaving.actor_id))
    finally:
        close_request(request)


def _forget(using: str, user_id: str) -> None:
    LeavingUser.objects.using(using).filter(pk=user_id).delete()
