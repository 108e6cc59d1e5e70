"""With which grant a session of staff may open an environment (`projects.staff_access`)."""

from django.conf import settings

from accounts.models import User
from accounts.staff import second_factor
from platform_site.developer_console.session import SignedIn
from projects import staff_access
from projects.models import StaffGrant


def may_ask(signed_in: SignedIn) -> User | None:
    """The account behind the session if it is staff; the second factor counts as in `/admin`."""
    user = User.objects.in_pool(None).filter(pk=signed_in.user_id, is_staff=True, disabled_at=None).first()
    if user is None or signed_in.is_verified:
        return user
    needs_code = settings.CONSOLE_REQUIRE_TOTP or second_factor.device_of(user) is not None
    return None if needs_code else user


def grant_for(signed_in: SignedIn, environment_id: str) -> StaffGrant | None:
    return staff_access.active_for(signed_in.user_id, environment_id) if may_ask(signed_in) is not None else None
