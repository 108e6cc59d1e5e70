"""The grant of a staff session for an environment (`projects.staff_access`), and what it may stop there."""

from collections.abc import Callable

from django.conf import settings

from accounts.audit import Actor
from accounts.models import User
from accounts.staff import second_factor
from platform_site.developer_console.api_calls import ApiClient
from platform_site.developer_console.session import SignedIn
from platform_site.http.errors import Unauthorized
from projects import staff_access
from projects.directory.environments import environment_ref


def may_ask(signed_in: SignedIn) -> User | None:
    """The member of staff, unless the second factor was set up, replaced or required since this session started."""
    user = User.objects.in_pool(None).filter(pk=signed_in.user_id, is_staff=True, disabled_at=None).first()
    if user is None:
        return None
    device = second_factor.device_of(user)
    is_verified = not settings.CONSOLE_REQUIRE_TOTP if device is None else device.pk == signed_in.second_factor
    return user if is_verified else None


def stop(client: ApiClient, service: Callable[..., object], *arguments: object) -> bool:
    """Stop something by its service: API scopes would allow changing code. False without a grant that writes."""
    grant = client.staff_grant
    if grant is None or not grant.may_write:
        return False
    user = may_ask(client.signed_in)
    environment = environment_ref(grant.environment_id)
    is_held = staff_access.active().filter(pk=grant.pk, may_write=True).exists()
    if user is None or environment is None or not is_held:
        raise Unauthorized("The staff access has ended.")
    environment.require_active()
    service(environment, *arguments, actor=Actor.staff(user))
    return True
