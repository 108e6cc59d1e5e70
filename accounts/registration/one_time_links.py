"""One-time links. The token (256 random bits) is only in the email; the database stores its SHA-256. A link works while
its row exists: until it is used, after five wrong passwords, or until a newer one replaces it (not for kinds that
anonymous callers request). It also ends when what it is bound to changes. All invalid links get the same response."""

import hashlib
from typing import Final

from django.db import transaction
from django.db.models.functions import Now

from accounts.models import User
from accounts.models.registration import AccountEmail
from accounts.tokens import token_format
from accounts.users.emails import normalize
from platform_site.http.errors import FieldError, InvalidGrant, first_or

PREFIX: Final = "lnk_"
_RANDOM: Final = 43  # base62 characters: 256 bits
_TRIES: Final = 5
Kind = AccountEmail.Kind


def make_token() -> str:
    return token_format.make(PREFIX, _RANDOM)


def invalid_link() -> InvalidGrant:
    return InvalidGrant(
        "The link is unknown, has expired, was used or was replaced by a newer one.",
        fields=[FieldError("token", "unknown", "The link is no longer valid.")],
    )


def bound_to(kind: str, user: User) -> bytes:
    parts = [kind, user.pk, normalize(user.email)]
    if kind != Kind.VERIFY_EMAIL:
        parts.append(user.password)
    return hashlib.sha256("\0".join(parts).encode()).digest()


def find(token: str, kind: Kind) -> AccountEmail:
    """Raises InvalidGrant. One query."""
    if not token_format.is_well_formed(PREFIX, _RANDOM, token):
        raise invalid_link()
    live = AccountEmail.objects.filter(token_hash=token_format.digest(token), kind=kind, expires_at__gt=Now())
    link = first_or(live.select_related("user"), invalid_link())
    _check_binding(link)
    return link


def find_in_pool(token: str, kind: Kind, pool_id: str | None) -> AccountEmail:
    link = find(token, kind)
    if link.environment_id != pool_id:
        raise invalid_link()
    return link


def use_up(link: AccountEmail) -> None:
    """Use up a link with the user's row locked. Raises InvalidGrant for all but one of concurrent uses."""
    if link.user_id is not None:
        User.objects.select_for_update().filter(pk=link.user_id).first()
    claimed: AccountEmail | None = (
        AccountEmail.objects.select_for_update(of=("self",))
        .select_related("user")
        .filter(pk=link.pk, token_hash=link.token_hash, expires_at__gt=Now())
        .first()
    )
    if claimed is None:
        raise invalid_link()
    _check_binding(claimed)
    claimed.delete()


def _check_binding(link: AccountEmail) -> None:
    if link.user is not None and not is_bound(link, link.user):
        raise invalid_link()


def is_bound(link: AccountEmail, user: User) -> bool:
    return user.disabled_at is None and bytes(link.bound_to or b"") == bound_to(link.kind, user)


def count_wrong_password(link: AccountEmail) -> None:
    with transaction.atomic():
        locked = AccountEmail.objects.select_for_update().filter(pk=link.pk).first()
        if locked is None:
            return
        tries = int(locked.details.get("wrong_passwords", 0)) + 1
        if tries >= _TRIES:
            locked.delete()
        else:
            locked.details = {**locked.details, "wrong_passwords": tries}
            locked.save(update_fields=["details"])
