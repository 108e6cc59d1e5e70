"""Receivers of `projects`' signals: keys and sessions end with the environment; its users are deleted later."""

from typing import Any, Final

from django.db.models import Model, Q
from django.db.models.functions import Now

from accounts.models import PoolSize, ServerKey, Session, User
from accounts.models.oauth import AuthorizationCode, IdentityProvider, RedirectUri
from accounts.models.registration import AccountEmail, PoolSettings
from accounts.tokens import revocation
from accounts.tokens.credentials import key_cache_name
from accounts.users import sessions
from platform_site.identity import signals
from platform_site.postgres.statements import delete_in_batches

OF_ENVIRONMENTS: Final[tuple[type[Model], ...]] = (
    AccountEmail, PoolSettings, AuthorizationCode, RedirectUri, IdentityProvider, Session, ServerKey, User, PoolSize
)  # fmt: skip
_BATCH: Final = 500


def connect() -> None:
    signals.environment_deleting.connect(revoke_credentials, dispatch_uid="accounts.kill_credentials")
    signals.environment_deleted.connect(delete_pool, dispatch_uid="accounts.delete_pool")


def revoke_credentials(*, environment_id: str, **_: Any) -> None:
    live = ServerKey.objects.filter(environment_id=environment_id, revoked_at__isnull=True)
    hashes = list(live.values_list("secret_hash", flat=True))
    live.update(revoked_at=Now())
    revocation.revoke(key_cache_name(bytes(secret_hash)) for secret_hash in hashes)
    # Of its users, too, where they signed in to a branch.
    sessions.end_where(Q(environment_id=environment_id) | Q(user__environment_id=environment_id), "environment_deleted")


def delete_pool(*, environment_id: str, **_: Any) -> None:
    for model in OF_ENVIRONMENTS:
        delete_in_batches(model._default_manager.filter(environment_id=environment_id), batch=_BATCH)
