"""The command palette's search (Ctrl K) for objects: at most EACH of a kind, within TIMEOUT_MS."""

import unicodedata
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from django.conf import settings
from django.contrib import admin
from django.db import DEFAULT_DB_ALIAS, Error, models
from django.db.models import Q
from django.http import HttpRequest

from accounts.console.base import console_url, url_of
from accounts.models import User
from functions.models import Function
from platform_site.identity import ids
from platform_site.postgres import statements, transaction_settings
from platform_site.templatetags.console_ids import timeline_url
from projects.directory.environments import environment_ref
from projects.models import Environment, Project
from webhooks.models import Webhook

if TYPE_CHECKING:
    from unfold.dataclasses import SearchResult

EACH: Final = 5
SHORTEST: Final = 2
TIMEOUT_MS: Final = 500
_TABLES: Final = """
SELECT n.nspname, c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relname LIKE %s AND c.relkind = 'r' AND n.nspname LIKE 'env\\_%%' ORDER BY c.relname, n.nspname LIMIT %s
"""

Found = tuple[str, str, str, str]
"""Title, description, link, icon."""


def search(request: HttpRequest, text: str) -> "list[SearchResult]":
    """Named in `settings.UNFOLD`. Only finds what the person may view."""
    from unfold.dataclasses import SearchResult

    text = text.strip().replace("\0", "")
    if ids.prefix_of(text) in ids.PREFIXES:
        return [SearchResult(text, "Timeline of this ID", timeline_url(text), "timeline")]
    if len(text) < SHORTEST:
        return []
    found = [
        each
        for using, model, find in _kinds(text)
        if admin.site.get_model_admin(model).has_view_permission(request)
        for each in _within(using, find)
    ]
    return [SearchResult(_plain(title), _plain(what), link, icon) for title, what, link, icon in found]


def _kinds(text: str) -> Iterator[tuple[str, type[models.Model], Callable[[], list[Found]]]]:
    control = DEFAULT_DB_ALIAS
    yield control, Project, partial(_projects, text)
    yield control, Environment, partial(_environments, text)
    yield control, User, partial(_users, text)
    for region in settings.REGION_DATABASES:
        yield region, Environment, partial(_tables, region, text)
        yield region, Environment, partial(_functions, region, text)
        yield region, Environment, partial(_webhooks, region, text)


def _within(using: str, find: Callable[[], list[Found]]) -> list[Found]:
    """What is found within the timeout, if the database is available."""
    try:
        with transaction_settings.limited(using, TIMEOUT_MS):
            return find()
    except Error:
        return []


def _projects(text: str) -> list[Found]:
    found = Project.objects.filter(name__istartswith=text).order_by("-id")[:EACH]
    return [(each.name, f"Project {each.pk}", url_of("projects_project", each.pk), "folder") for each in found]


def _environments(text: str) -> list[Found]:
    found = Environment.objects.filter(name__istartswith=text).select_related("project").order_by("-id")[:EACH]
    return [
        (each.name, f"Environment of {each.project.name}", url_of("projects_environment", each.pk), "deployed_code")
        for each in found
    ]


def _users(text: str) -> list[Found]:
    email = text.replace(" ", "+")  # in a URL, a plus sign means a space; no email has one
    found = User.objects.filter(Q(email__istartswith=email) | Q(name__istartswith=text)).order_by("-id")[:EACH]
    return [
        (each.email, f"User of {each.environment_id or 'the platform'}", url_of("accounts_user", each.pk), "person")
        for each in found
    ]


def _tables(region: str, text: str) -> list[Found]:
    pattern = text.lower().replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
    return [
        (table, f"Table of {environment.environment_name} ({environment_id})",
         console_url(environment.project_id, environment_id, "table", table), "table")
        for environment_id, table in statements.rows(region, _TABLES, [pattern, EACH])
        if (environment := environment_ref(environment_id)) is not None
    ]  # fmt: skip


def _functions(region: str, text: str) -> list[Found]:
    found = (
        Function.objects.using(region)
        .filter(environment_id__isnull=False, name__istartswith=text)
        .order_by("-id")[:EACH]
    )
    return [
        (each.name, f"Function of {environment.environment_id}",
         console_url(environment.project_id, environment.environment_id, "function", each.name), "function")
        for each in found
        if (environment := environment_ref(each.environment_id or "")) is not None
    ]  # fmt: skip


def _webhooks(region: str, text: str) -> list[Found]:
    # By host alone: the rest of a URL can be a secret, which must neither be shown nor be guessed letter by letter.
    host = text.rpartition("://")[2].partition("/")[0].rpartition("@")[2]
    if len(host) < SHORTEST:
        return []
    found = Webhook.objects.using(region).filter(deleted_at=None, host__istartswith=host).order_by("-id")[:EACH]
    return [
        (each.host, f"Webhook of {environment.environment_id}",
         console_url(environment.project_id, environment.environment_id, "webhook", each.pk), "webhook")
        for each in found
        if (environment := environment_ref(each.environment_id)) is not None
    ]  # fmt: skip


def _plain(text: str) -> str:
    """Without control and direction characters of tenants' names."""
    return "".join(char for char in text if unicodedata.category(char) not in ("Cc", "Cf"))
