"""The user pool of a request without a caller, and its settings. The pool is named by `X-Environment` or the host, else
the platform's. URLs in emails and pages come from settings and BASE_URL, never from a request: no open redirects or
Host header poisoning."""

import ipaddress
import re
from dataclasses import dataclass
from typing import Final, TypedDict, Unpack
from urllib.parse import urlsplit

from django.db import transaction
from django.http import HttpRequest

from accounts import audit, changes
from accounts.audit import Actor
from accounts.directory import environments as environment_directory
from accounts.models.registration import PoolSettings, SignUpMode
from platform_site.http.errors import Forbidden, NotFound, ValidationFailed
from platform_site.http.requests import named_environment
from platform_site.identity.callers import Caller
from platform_site.identity.plans import plan_limits

TOKEN: Final = "{token}"  # noqa: S105 - the placeholder in a link's URL
LINKS: Final = ("sign_up", "invitation", "verify_email", "reset_password", "change_email")
MAX_URL_LENGTH: Final = 500
PLATFORM_PLAN: Final = "team"
"""Platform accounts have no plan of their own: their emails have the limits of the largest one."""
_HOST: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\]", re.ASCII)


@dataclass(frozen=True, slots=True)
class Pool:
    id: str | None
    environment_id: str | None
    """The named environment: for a branch not its pool."""
    plan: str = "free"

    @property
    def is_branch(self) -> bool:
        return self.environment_id != self.id

    @property
    def most_users(self) -> int | None:
        return plan_limits(self.plan).app_users_per_environment if self.id else None


PLATFORM: Final = Pool(None, None, PLATFORM_PLAN)


def pool_of(environment_id: str | None) -> Pool | None:
    """The pool that signs in to an environment, or to the platform; None without such an environment. Raises
    ProjectSuspended."""
    if environment_id is None:
        return PLATFORM
    environment = environment_directory.directory().environment_ref(environment_id)
    if environment is None:
        return None
    environment.require_active()
    return Pool(environment.pool_id, environment_id, environment.plan)


def own_pool_of(request: HttpRequest) -> Pool:
    """The pool of the environment that a request names. Raises NotFound, ProjectSuspended, and Forbidden if that is a
    preview branch."""
    pool = pool_of(named_environment(request))
    if pool is None:
        raise NotFound("There is no such environment.")
    if pool.is_branch:
        raise Forbidden(f"These users belong to {pool.id}, from which this environment branched. Change them there.")
    return pool


def plan_of(pool_id: str | None) -> str:
    """The plan that limits the pool's emails. Raises NotFound."""
    if pool_id is None:
        return PLATFORM_PLAN
    environment = environment_directory.directory().environment_ref(pool_id)
    if environment is None:
        raise NotFound("The environment no longer exists.")
    return environment.plan


def most_users(pool_id: str | None) -> int | None:
    """Maximum number of users; None for platform accounts. Raises NotFound."""
    return None if pool_id is None else plan_limits(plan_of(pool_id)).app_users_per_environment


def settings_of(pool_id: str | None) -> PoolSettings:
    found = PoolSettings.objects.filter(environment_id=pool_id).first()
    return found or PoolSettings(environment_id=pool_id)


def app_name(found: PoolSettings) -> str:
    if found.app_name:
        return found.app_name
    if found.environment_id is None:
        return "the backend platform"
    project = environment_directory.directory().project_name(found.environment_id) or ""
    printable = "".join(character if character.isprintable() else " " for character in project)
    name = " ".join(printable.split())
    return name if name and not _has_url(name) else "the application"


class SettingsChanges(TypedDict, total=False):
    sign_up: str
    app_name: str
    app_url: str
    link_urls: dict[str, str]


def check(found: PoolSettings, **values: Unpack[SettingsChanges]) -> None:
    """Whether `found` can change to the values. Raises ValidationFailed naming the field."""
    # It is in the subject and text of emails that the platform sends. Unchanged, it may be older than this rule.
    name = values.get("app_name", found.app_name)
    if name != found.app_name and (len(name) > 64 or not name.isprintable() or _has_url(name)):
        raise ValidationFailed.of("app_name", "invalid", "At most 64 printable characters, on one line, without a URL.")
    if app_url := values.get("app_url"):
        _check_url(app_url, "app_url")
    for kind, url in values.get("link_urls", {}).items():
        field = f"link_urls.{kind}"
        if kind not in LINKS:
            raise ValidationFailed.of(field, "unknown_field", f"A link is one of {', '.join(LINKS)}.")
        if url.count(TOKEN) != 1 or TOKEN in url.partition("//")[2].partition("/")[0]:
            raise ValidationFailed.of(field, "no_token", "Must contain {token} once, after the host.")
        _check_url(url.replace(TOKEN, "token"), field)
    if "sign_up" in values and values["sign_up"] not in SignUpMode.values:
        raise ValidationFailed.of("sign_up", "not_among", f"Must be one of {', '.join(SignUpMode.values)}.")


def change_settings(pool_id: str | None, *, actor: Caller | Actor, **values: Unpack[SettingsChanges]) -> PoolSettings:
    """Change the given values and return the settings. Raises as `check`."""
    with transaction.atomic():
        hold(pool_id)
        found = settings_of(pool_id)
        check(found, **values)
        changed = changes.apply(found, values)
        if changed:
            found.save()
            audit.record(
                "sign_up.changed", pool_id, actor=actor, environment_id=pool_id, fields=changed, sign_up=found.sign_up
            )
    return found


def hold(pool_id: str | None) -> None:
    environment_directory.lock_settings(pool_id, "settings")


def _has_url(name: str) -> bool:
    """Mail programs make links of URLs, which recipients take for the platform's."""
    return "://" in name or "www." in name.lower()


def _check_url(url: str, field: str) -> None:
    """https, or http on localhost; a plain host, no user."""
    wrong = ValidationFailed.of(
        field, "invalid_url", "Must be an https URL such as https://app.example.com/welcome (http on localhost)."
    )
    if len(url) > MAX_URL_LENGTH or not url.isascii() or re.search(r"[\x00-\x20\x7f\\<>\"'{}|^`]", url):
        raise wrong
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise wrong from None
    bracketed = f"[{host}]" if ":" in host else host
    if parts.scheme not in {"https", "http"} or "@" in parts.netloc or not _HOST.fullmatch(bracketed):
        raise wrong
    if parts.scheme == "http" and not _is_here(host):
        raise wrong


def _is_here(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
