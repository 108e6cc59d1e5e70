"""Django system checks of the settings. `manage.py serve` and `work` call `require_readable_settings` at start."""

import ipaddress
from typing import Any, Final

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register, run_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import DEFAULT_DB_ALIAS, connections
from django.http.request import validate_host

from platform_site import env
from platform_site.embedded.data_dir import REGIONS, region_variable
from platform_site.outbound.ssrf import networks
from platform_site.security import keyring

READABLE: Final = "readable"
"""The tag of checks whose errors stop `serve` and `work`."""
STORED: Final = "stored"
"""The same for checks that compare settings with the control database."""
_SECRET_KEY_LENGTH: Final = 50
_INNER: Final = ("127.0.0.1", "::1", "169.254.169.254", "fd00:ec2::254")
"""This machine, and the metadata services of clouds."""


@register(Tags.security, READABLE)
def check_encryption_keys(**_: Any) -> list[CheckMessage]:
    try:
        keyring.current_header()
    except ImproperlyConfigured as error:
        return [Error(str(error), id="api.E001")]
    return []


@register(Tags.security, READABLE)
def check_networks(**_: Any) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    for setting, id in (("OUTBOUND_ALLOWED_NETWORKS", "api.E002"), ("TRUSTED_PROXIES", "api.E004")):
        try:
            networks(tuple(getattr(settings, setting)))
        except ValueError as error:
            found.append(Error(f"{setting}: {error}", id=id))
    return found


@register(Tags.security, deploy=True)
def check_outbound_networks_in_production(**_: Any) -> list[CheckMessage]:
    if not settings.PRODUCTION or "api.E002" in [each.id for each in check_networks()]:
        return []
    opened = networks(tuple(settings.OUTBOUND_ALLOWED_NETWORKS))
    reached = [text for text in _INNER if any(ipaddress.ip_address(text) in network for network in opened)]
    if not reached:
        return []
    return [Warning(f"OUTBOUND_ALLOWED_NETWORKS lets tenants call {', '.join(reached)}", id="api.W001")]


@register(Tags.security)
def check_replicas(**_: Any) -> list[CheckMessage]:
    found: list[CheckMessage] = []
    for region, replicas in settings.REPLICAS.items():
        seen = {_server(settings.DATABASES[region]): "the primary itself"}
        for name, database in replicas.items():
            if (same := seen.setdefault(_server(database), name)) != name:
                variable = region_variable(region).removesuffix("_URL") + "_REPLICA_URLS"
                found.append(Error(f"{variable}: {name} is {same}", id="api.E003"))
    return found


@register(Tags.security, deploy=True)
def check_databases_differ(**_: Any) -> list[CheckMessage]:
    """With one database for two regions, the rows of one are stored in the other."""
    found: list[CheckMessage] = []
    seen: dict[tuple[str, ...], str] = {}
    for alias in (DEFAULT_DB_ALIAS, *settings.REGION_DATABASES):
        variable = "DATABASE_URL" if alias == DEFAULT_DB_ALIAS else region_variable(alias)
        if (same := seen.setdefault(_server(settings.DATABASES[alias]), variable)) != variable:
            found.append(Error(f"{variable} names the database of {same}. Each needs its own.", id="api.E008"))
    return found


def require_readable_settings() -> None:
    """For servers, which would fail later. Raises CommandError."""
    databases = [DEFAULT_DB_ALIAS]
    for tag in (READABLE, STORED):
        for problem in run_checks(tags=[tag], include_deployment_checks=True, databases=databases):
            raise CommandError(problem.msg)
    connections[DEFAULT_DB_ALIAS].close()  # forked processes must not share it


@register(Tags.security, READABLE, deploy=True)
def check_servers_in_production(**_: Any) -> list[CheckMessage]:
    if not settings.PRODUCTION or settings.LAYOUT.secrets_file.is_file():  # `manage.py up` starts servers itself
        return []
    unnamed = [name for name in ("DATABASE_URL", *map(region_variable, REGIONS), "REDIS_URL") if not env.text(name)]
    return [Error(f"{name} is not set. Production needs it.", id="api.E005") for name in unnamed]


@register(Tags.security, READABLE, deploy=True)
def check_secret_key_in_production(**_: Any) -> list[CheckMessage]:
    """Who guesses it signs in to the console as anybody. Django warns, too, but the servers would start."""
    if not settings.PRODUCTION or len(settings.SECRET_KEY) >= _SECRET_KEY_LENGTH:
        return []
    return [Error(f"SECRET_KEY must have at least {_SECRET_KEY_LENGTH} random characters.", id="api.E009")]


@register(Tags.security, deploy=True)
def check_what_production_needs(**_: Any) -> list[CheckMessage]:
    if not settings.PRODUCTION:
        return [Error("PLATFORM_MODE is not production: defaults are those of development.", id="api.E007")]
    found: list[CheckMessage] = []
    if settings.PLATFORM_DOMAIN == "localhost":
        found.append(Error("PLATFORM_DOMAIN is not set: links and allowed hosts name localhost.", id="api.E006"))
    elif not validate_host(settings.PLATFORM_DOMAIN, settings.ALLOWED_HOSTS):
        message = f"ALLOWED_HOSTS does not have PLATFORM_DOMAIN, {settings.PLATFORM_DOMAIN}: its requests are refused."
        found.append(Error(message, id="api.E010"))
    if settings.BASE_URL.startswith("http://"):
        found.append(Warning("BASE_URL is not https: links in emails are opened unencrypted.", id="api.W004"))
    if settings.SECURE_SSL_REDIRECT and not settings.TRUSTED_PROXIES:
        found.append(
            Warning("TRUSTED_PROXIES is not set: requests through a proxy are refused as plain HTTP.", id="api.W002")
        )
    if not settings.METRICS_TOKEN:
        found.append(Warning("METRICS_TOKEN is not set: /metrics is closed, and no alert can fire.", id="api.W003"))
    return found


def _server(database: dict[str, Any]) -> tuple[str, ...]:
    return database["HOST"], database["PORT"] or "5432", database["NAME"]
