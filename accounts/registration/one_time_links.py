"""One-time links. The token is only in the email: 256 random bits, of which the database stores the SHA-256. Links are
not signed, so a leaked key creates none. A link works while its row exists: its use deletes it, and so does the fifth
wrong password. A newer one of its kind replaces it, unless anonymous callers can request that kind (sign-up, a new
password): then all of them work until one is used. A link also ends when what it is bound to changes: the password and
email for a new password, the email for its confirmation. Every invalid link gets the same response."""

import hashlib
from typing import Final

from django.db import transaction
from django.db.models.functions import Now

from accounts.models import User
from accounts.models.registration import AccountEmail
from accounts.tokens import token_format
from accounts.users.emails import normalize
from accounts.users.service import UNSET, Unset
from platform_site.http.errors import FieldError, InvalidGrant

PREFIX: Final = "lnk_"
_RANDOM: Final = 43  # base62 characters: 256 bits
_TRIES: Final = 5
Kind = AccountEmail.Kind


def make_token() -> str:
    return token_format.make(PREFIX, _RANDOM)


def invalid_link() -> InvalidGrant:
    """The one answer to every link that does not work."""
    return InvalidGrant(
        "The link is unknown, has expired, was used or was replaced by a newer one.",
        fields=[FieldError("token", "unknown", "There is no such link any more.")],
    )


def bound_to(kind: str, user: User) -> bytes:
    """What must not change until the link is used."""
    facts = [kind, user.pk, normalize(user.email)]
    if kind != Kind.VERIFY_EMAIL:
        facts.append(user.password)
    return hashlib.sha256("\0".join(facts).encode()).digest()


def find(token: str, kind: Kind, *, pool_id: str | None | Unset = UNSET) -> AccountEmail:
    """What this token opens; one query, none for what cannot be a token. `pool_id` is the pool that the request names;
    the platform's own pages name none. Raises InvalidGrant for a link that is unknown, expired, used, replaced, of
    another kind or another pool, or whose user changed what it is bound to, or was disabled."""
    if not token_format.is_well_formed(PREFIX, _RANDOM, token):
        raise invalid_link()
    live = AccountEmail.objects.filter(token_hash=token_format.digest(token), kind=kind, expires_at__gt=Now())
    found: AccountEmail | None = live.select_related("user").first()
    if found is None or not (isinstance(pool_id, Unset) or found.environment_id == pool_id):
        raise invalid_link()
    _check_binding(found)
    return found


def use_up(found: AccountEmail) -> AccountEmail:
    """Claim a link that was found, in the transaction at hand; it works again if that rolls back. The user's row is
    locked first, as by whatever else changes users. Exactly one of parallel uses gets here; the others raise
    InvalidGrant."""
    if found.user_id is not None:
        User.objects.select_for_update().filter(pk=found.user_id).first()
    claimed: AccountEmail | None = (
        AccountEmail.objects.select_for_update(of=("self",))
        .select_related("user")
        .filter(pk=found.pk, token_hash=found.token_hash, expires_at__gt=Now())
        .first()
    )
    if claimed is None:
        raise invalid_link()
    _check_binding(claimed)
    AccountEmail.objects.filter(pk=claimed.pk).delete()
    return claimed


def _check_binding(found: AccountEmail) -> None:
    if found.user is not None and not is_bound(found, found.user):
        raise invalid_link()


def is_bound(found: AccountEmail, user: User) -> bool:
    """Whether nothing has changed that ends the link."""
    return user.disabled_at is None and bytes(found.bound_to or b"") == bound_to(found.kind, user)


def count_wrong_password(found: AccountEmail) -> None:
    """Somebody who holds the link does not know the password that goes with it: after five tries the link is dead."""
    with transaction.atomic():
        locked = AccountEmail.objects.select_for_update().filter(pk=found.pk).first()
        if locked is None:
            return
        tries = int(locked.details.get("wrong_passwords", 0)) + 1
        if tries >= _TRIES:
            locked.delete()
        else:
            locked.details = {**locked.details, "wrong_passwords": tries}
            locked.save(update_fields=["details"])
