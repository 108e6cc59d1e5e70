from accounts.models import User
from platform_site.http.errors import ValidationFailed
from platform_site.identity import ids
from rows.rules.principal import PRINCIPALS, Principal


def principal_named(pool_id: str, name: str) -> Principal:
    if name in PRINCIPALS:
        return PRINCIPALS[name]
    user = User.objects.in_pool(pool_id).filter(pk=name).first() if ids.matches("usr", name) else None
    if user is None:
        message = "Must be a user of this environment, or anonymous, server or member."
        raise ValidationFailed.of("as", "no_such_user", message)
    return Principal.of_user(user)
