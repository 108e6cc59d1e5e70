"""Validates a submitted configuration document, and refuses secrets."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from django.core.validators import RegexValidator
from rest_framework.exceptions import ValidationError

from accounts.oauth import checks, providers, redirects
from accounts.oauth.serializers import NewProvider
from accounts.registration import pool_settings
from accounts.registration.serializers import SettingsInput
from functions import directory
from functions.api.serializers import MAX_SECRETS, Deployment, SourceField
from platform_site.config import credentials, current
from platform_site.http import fields
from platform_site.http.errors import FieldError, ValidationFailed
from platform_site.http.fields import Serializer
from platform_site.identity.callers import EnvironmentRef
from projects.directory import origins
from rows.migrate import service as schema_service
from rows.outbox.fields import EventsField
from rows.schema.model import InvalidDocument
from webhooks.api.serializers import NAME as WEBHOOK_NAME
from webhooks.api.serializers import NewWebhook, UrlField

ROOT: Final = "config"
MAX_ITEMS: Final = 1_000
"""Items of a part: the largest plan's limit."""
MAX_ERRORS: Final = 100
_SECRET_FIELDS: Final = frozenset({"secrets", "secret", "client_secret", "password", "token", "private_key"})
_WEBHOOK_NAME: Final = re.compile(rf"{WEBHOOK_NAME}|wh_[0-9a-z]{{26}}", re.ASCII)


class FunctionConfig(Deployment):
    source = SourceField(required=False)
    secrets = None  # type: ignore[assignment]
    secret_names = fields.ListField(
        child=fields.CharField(validators=[RegexValidator(r"\A[A-Z][A-Z0-9_]{0,63}\Z", code="invalid_name")]),
        max_length=MAX_SECRETS,
        distinct=True,
        required=False,
    )


class WebhookConfig(NewWebhook):
    """A `name` other than the item's renames the webhook."""

    url = UrlField(required=False)
    events = EventsField(required=False)


class ProviderConfig(NewProvider):
    name = preset = client_secret = None  # type: ignore[assignment]


class BranchAuthConfig(Serializer):
    """A preview branch has no users of its own."""

    redirect_uris = fields.ListField(
        child=fields.CharField(trim_whitespace=False), max_length=redirects.MAX_URIS, required=False
    )


class AuthConfig(SettingsInput, BranchAuthConfig):
    providers = fields.ObjectField(required=False)


def check(environment: EnvironmentRef, document: Mapping[str, Any]) -> dict[str, Any]:
    """The validated parts. Raises ValidationFailed with the path of each error, without values."""
    if secrets := list(_secrets_in(document)):
        raise ValidationFailed(fields=secrets[:MAX_ERRORS])
    errors: list[FieldError] = []
    parts: dict[str, Any] = {}
    if "schema" in document:
        parts["schema"] = document["schema"]
        try:
            schema_service.read_in_slot(environment, document["schema"])
        except InvalidDocument as error:
            errors += [below(f"{ROOT}.schema", each) for each in error.errors]
    if "functions" in document:
        found = _items(document["functions"], f"{ROOT}.functions", FunctionConfig, directory.NAME, errors)
        parts["functions"] = dict(found)
    if "webhooks" in document:
        found = _items(document["webhooks"], f"{ROOT}.webhooks", WebhookConfig, _WEBHOOK_NAME, errors)
        parts["webhooks"] = {
            name: {key: value for key, value in item.items() if (key, value) != ("name", name)} for name, item in found
        }
    if "auth" in document:
        parts["auth"] = _auth(environment, document["auth"], errors)
    if "origins" in document:
        parts["origins"] = _origins(document["origins"], errors)
    if errors:
        raise ValidationFailed(fields=errors[:MAX_ERRORS])
    return parts


def _secrets_in(document: Mapping[str, Any]) -> Iterator[FieldError]:
    waiting: list[tuple[tuple[str, ...], Any]] = [((part,), value) for part, value in document.items()]
    while waiting:
        path, value = waiting.pop()
        if credentials.first_line_with_secret(path[-1]):
            yield FieldError(_shown(path[:-1]), "secret", "A name in it looks like a secret.")
        elif path[-1] in _SECRET_FIELDS and _is_field_of_item(path):
            yield FieldError(_shown(path), "secret", "A configuration holds no secrets. Set it by its own endpoint.")
        elif isinstance(value, dict | list):
            inner = value.items() if isinstance(value, dict) else enumerate(value)
            waiting += [
                ((*path, str(name)), each) for name, each in inner if (path[0], name) != ("functions", "source")
            ]
        elif isinstance(value, str) and _is_secret(path[-1], value):
            yield FieldError(
                _shown(path), "secret", "This looks like a secret. Write $secret: and a name in its place."
            )


def _shown(path: tuple[str, ...]) -> str:
    return ".".join((ROOT, *(name[:60] for name in path)))


def _is_field_of_item(path: tuple[str, ...]) -> bool:
    depth = len(path)
    return depth == 3 if path[0] in ("functions", "webhooks") else path[0] == "auth" and depth in (2, 4)


def _is_secret(name: str, value: str) -> bool:
    if credentials.first_line_with_secret(value) is not None:
        return True
    added = credentials.masked(value).count(credentials.REFERENCE) > value.count(credentials.REFERENCE)
    return added and name in _URLS and "://" in value


def whole_url(planned: str, given: Any) -> str:
    """`given`, in place of a planned URL with a reference to a secret. Raises ValidationFailed at `url`."""
    try:
        url: str = UrlField().run_validation(given)
    except ValidationError as error:
        raise fields.failed({"url": error.detail}) from None
    if urlsplit(url)[:2] != urlsplit(planned)[:2]:
        raise ValidationFailed.of("url", "invalid", "Must have the scheme, host and port of the URL in the plan.")
    return url


_URLS: Final = frozenset({"url", *current.ENDPOINTS})


def _items(
    items: Any,
    path: str,
    serializer: type[Serializer],
    names: re.Pattern[str],
    errors: list[FieldError],
    known: Mapping[str, Any] | None = None,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """`known`: records of which the items may repeat what is no longer accepted for others (`NameField`)."""
    if not isinstance(items, dict):
        errors.append(FieldError(path, "not_an_object", "Must be an object."))
        return
    if len(items) > MAX_ITEMS:
        errors.append(FieldError(path, "too_many", f"Must have at most {MAX_ITEMS} items."))
        return
    for name, item in items.items():
        at = f"{path}.{name[:60]}"
        if len(errors) >= MAX_ERRORS:
            return
        if not names.fullmatch(name):
            errors.append(FieldError(at, "invalid_name", "A name is lower-case letters, digits, _ and -."))
            continue
        values = _read(item, serializer, at, errors, (known or {}).get(name))
        if values is not None:
            yield name, _normal(values)


def _read(
    item: Any, serializer: type[Serializer], at: str, errors: list[FieldError], known: Any = None
) -> dict[str, Any] | None:
    if not isinstance(item, dict):
        errors.append(FieldError(at, "not_an_object", "Must be an object."))
        return None
    checked = serializer(known, data=item)
    if checked.is_valid():
        return dict(checked.validated_data)
    errors += [below(at, found) for found in fields.failed(checked.errors).fields]
    return None


_SETS: Final = ("allowed_hosts", "on", "secret_names", "events", "scopes", "redirect_uris")


def _normal(values: dict[str, Any]) -> dict[str, Any]:
    return {name: sorted(value or ()) if name in _SETS else value for name, value in values.items()}


def _auth(environment: EnvironmentRef, raw: Any, errors: list[FieldError]) -> dict[str, Any]:
    at = f"{ROOT}.auth"
    values = _read(raw, BranchAuthConfig if environment.is_branch else AuthConfig, at, errors)
    if values is None:
        return {}
    try:
        pool_settings.check(pool_settings.settings_of(environment.pool_id), **values)
    except ValidationFailed as error:
        errors += [below(at, found) for found in error.fields]
    if "providers" in values:
        known = {each.name: each for each in providers.of_pool(environment.pool_id)}
        found = _items(values["providers"], f"{at}.providers", ProviderConfig, checks.NAME, errors, known)
        values["providers"] = dict(found)
    errors += [below(at, found) for found in redirects.problems(values.get("redirect_uris", ()))]
    return _normal(values)


def _origins(raw: Any, errors: list[FieldError]) -> list[str]:
    at = f"{ROOT}.origins"
    if not isinstance(raw, list) or not all(isinstance(each, str) for each in raw):
        errors.append(FieldError(at, "not_a_list", "Must be an array of strings."))
        return []
    try:
        return sorted(origins.normalised(raw))
    except origins.NotAnOrigin as error:
        errors.append(FieldError(at, "invalid", error.fields[0].message))
        return []


def below(path: str, found: FieldError) -> FieldError:
    return FieldError(f"{path}.{found.field}".rstrip("."), found.code, found.message)


def parts_of(document: Mapping[str, Any]) -> list[str]:
    """The document's parts. Raises ValidationFailed for unknown ones, or none."""
    known = current.PARTS
    wrong = [
        FieldError(f"{ROOT}.{name[:60]}", "unknown_field", f"There is no such part. The parts are {', '.join(known)}.")
        for name in document
        if name not in known and credentials.first_line_with_secret(name) is None
    ]
    if len(wrong) < len(set(document) - set(known)):
        wrong.append(FieldError(ROOT, "secret", "A configuration holds no secrets."))
    if not document:
        wrong.append(FieldError(ROOT, "required", f"Name at least one part: {', '.join(known)}."))
    if wrong:
        raise ValidationFailed(fields=wrong[:MAX_ERRORS])
    return [part for part in known if part in document]
