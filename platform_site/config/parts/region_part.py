"""Applies the part in the region: functions, webhooks and the schema."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from functions.deploy import service as deploy_service
from functions.deploy import trial
from platform_site import outbound
from platform_site.config import credentials
from platform_site.config.parts import touched
from platform_site.config.parts.touched import Touched, errors_at
from platform_site.config.submitted import Submitted
from platform_site.http.errors import ValidationFailed
from platform_site.identity.callers import Caller, EnvironmentRef
from rows.migrate import service as schema_service
from webhooks.models import Webhook
from webhooks.subscriptions import service as webhook_service

Changes = Sequence[Mapping[str, Any]]


def check(environment: EnvironmentRef, wanted: Submitted, changes: Changes) -> None:
    """Loads sources and resolves hosts, before any transaction. Raises ValidationFailed, Unavailable."""
    for name, each in sorted(touched.items(changes, "functions.").items()):
        if not each.is_removed:
            with errors_at(f"functions.{name}"):
                _try_out(environment, name, each, wanted)
    for name, each in sorted(touched.items(changes, "webhooks.").items()):
        url = {} if each.is_removed else each.values(wanted.parts["webhooks"][name])
        if "url" in url:
            with errors_at(f"webhooks.{name}"):
                _check_url(url["url"])


def _try_out(environment: EnvironmentRef, name: str, each: Touched, wanted: Submitted) -> None:
    values = each.values(wanted.parts["functions"][name])
    if each.has_new("source"):
        trial.try_out(environment, name, values | {"source": wanted.sources[name]})
    else:
        trial.try_out_configuration(environment, name, values)


def _check_url(url: str) -> None:
    if credentials.REFERENCE in url:
        message = "The environment has no secret for this URL. Set the webhook's URL by its own endpoint, then plan."
        raise ValidationFailed.of("url", "secret_missing", message)
    outbound.check_url(url)


@contextmanager
def prepared(
    environment: EnvironmentRef, wanted: Submitted, changes: Changes, *, confirm: Sequence[str], actor: Caller
) -> Generator[Callable[[], None]]:
    """Builds the schema's indexes; the block calls the yielded function in its transaction. Raises as
    `rows.migrate.service.prepared` and the services; ValidationFailed with paths in the document."""

    def change_items() -> None:
        _change_functions(environment, wanted, changes, actor)
        _change_webhooks(environment, wanted, changes, actor)

    if "schema" not in touched.paths(changes):
        yield change_items
        return
    with schema_service.prepared(environment, wanted.parts["schema"], actor=actor, confirm=confirm) as change_schema:

        def change_all() -> None:
            schema_service.locked_version(
                environment
            )  # first, so that two changes of a schema never wait for each other
            change_items()
            change_schema()  # last, because it keeps the tables locked until the commit

        yield change_all


def _change_functions(environment: EnvironmentRef, wanted: Submitted, changes: Changes, actor: Caller) -> None:
    found = touched.items(changes, "functions.")
    for name in sorted(name for name, each in found.items() if each.is_removed):
        deploy_service.delete_function(environment, name, actor=actor)
    for name, each in sorted(found.items()):
        if each.is_removed:
            continue
        values = each.values(wanted.parts["functions"][name])
        with errors_at(f"functions.{name}"):
            if each.has_new("source"):
                values["source"] = wanted.sources[name]
                deploy_service.deploy(environment, name, values, actor=actor, warm=False, tried=True)
            else:
                deploy_service.configure(environment, name, values, actor=actor, tried=True)


def _change_webhooks(environment: EnvironmentRef, wanted: Submitted, changes: Changes, actor: Caller) -> None:
    found = touched.items(changes, "webhooks.")
    if not found:
        return
    live = Webhook.objects.using(environment.cluster).live(environment.environment_id).filter(listens_until=None)
    ids = {webhook.name or webhook.pk: webhook.pk for webhook in live}
    for name in sorted(name for name, each in found.items() if each.is_removed):
        webhook_service.delete_webhook(environment, ids[name], actor=actor)
    for name, each in sorted(found.items()):
        if each.is_removed:
            continue
        values = each.values(wanted.parts["webhooks"][name])
        with errors_at(f"webhooks.{name}"):
            if each.is_new:
                own = {} if name.startswith("wh_") else {"name": name}
                webhook_service.create_webhook(environment, values | own, actor=actor)
            else:
                webhook_service.change_webhook(environment, ids[name], values, actor=actor)
