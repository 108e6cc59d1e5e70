"""A user's rows are deleted first, because a row can prevent the deletion, and in batches; the user is deleted last, in
the control database. Each batch records in its transaction that the deletion is pending; the record is removed when the
control database has committed or the deletion was refused. After a crash a periodic job completes the deletion, with
the rows and sessions that were created meanwhile, in the name of its actor."""

from collections.abc import Collection
from typing import cast

from django.db import transaction

from accounts.audit import Actor, ActorKind
from accounts.models import User
from accounts.users import service as accounts
from platform_site.background.periodic import after_commit
from platform_site.http.errors import Conflict
from platform_site.http.requests import close_request, current_request_id, open_request
from platform_site.identity.callers import Caller, EnvironmentRef
from rows.models import PendingUserDeletion
from rows.write.references.user_policies import apply_user_deletion


def delete_rows(environments: Collection[EnvironmentRef], user_id: str, *, pool_id: str, actor: Caller | Actor) -> None:
    """In the control transaction that deletes the user. Raises Conflict as `apply_user_deletion`; then no deletion is
    pending."""
    pending = PendingUserDeletion(
        user_id=user_id,
        environment_id=pool_id,
        actor_kind=actor.kind,
        actor_id=actor.id,
        request_id=current_request_id(),
    )
    clusters = {environment.cluster for environment in environments}
    try:
        for environment in environments:
            apply_user_deletion(environment, user_id, pending=pending)
    except Conflict:
        for using in clusters:
            _delete_record(using, user_id)  # an earlier attempt may have recorded it, too
        raise
    for using in clusters:
        after_commit("a pending user deletion", _delete_record, using, user_id, using=using)


def complete(using: str, pending: PendingUserDeletion) -> None:
    """Does nothing while the deletion is still running. May run twice. Raises Conflict if a row prevents the deletion
    now; the user then stays."""
    users, records = User.objects.filter(pk=pending.pk), PendingUserDeletion.objects.using(using).filter(pk=pending.pk)
    with transaction.atomic(durable=True):
        user = users.select_for_update(skip_locked=True).first()
        # Read under the user's lock: a deletion that was refused has removed its record under it.
        if user is not None and records.exists():
            request = open_request(pending.request_id or current_request_id())
            try:
                accounts.delete_user(user, actor=Actor(cast(ActorKind, pending.actor_kind), pending.actor_id))
            finally:
                close_request(request)
    if user is None and not users.exists():
        records.delete()


def _delete_record(using: str, user_id: str) -> None:
    PendingUserDeletion.objects.using(using).filter(pk=user_id).delete()
