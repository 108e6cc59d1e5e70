"""Applies the part in the region: functions, webhooks and the schema."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from functions.deploy import service as deploy_service
from functions.deploy import trial
from platform_site import outbound
from platform_site.config import credentials
from platform_site.config.parts.changes import PlanChanges, errors_at
from platform_site.config.submitted import ROOT
from platform_site.http.errors import ValidationFailed
from platform_site.identity.callers import Caller
from rows.migrate import service as schema_service
from webhooks.models import Webhook
from webhooks.subscriptions import service as webhook_service


def check_hosts(changes: PlanChanges) -> None:
    """Resolves the hosts of webhooks. Not in a transaction. Raises ValidationFailed."""
    for each in changes.changed_items("webhooks"):
        if "url" in each.values:
            with errors_at(each.path):
                outbound.check_url(each.values["url"])


def load_sources(changes: PlanChanges) -> None:
    """Loads each changed source in the sandbox. Not in a transaction. Raises ValidationFailed, Unavailable."""
    for each in changes.changed_items("functions"):
        if not each.is_removed:
            with errors_at(each.path):
                trial.try_out(changes.environment, each.name, each.values)


def require_whole_urls(changes: PlanChanges) -> None:
    message = "The environment has no secret for this URL. Give the whole URL, in `urls` or webhooks.json."
    for each in changes.changed_items("webhooks"):
        if credentials.REFERENCE in each.values.get("url", ""):
            raise ValidationFailed.of(f"{ROOT}.{each.path}.url", "secret_missing", message)


@contextmanager
def prepared(changes: PlanChanges, caller: Caller) -> Generator[Callable[[], None]]:
    """Builds the schema's indexes; the block calls the yielded function in its transaction. Raises as
    `rows.migrate.service.prepared` and the services; ValidationFailed with paths in the document."""

    def change_items() -> None:
        _change_functions(changes, caller)
        _change_webhooks(changes, caller)

    if "schema" not in changes.paths:
        yield change_items
        return
    environment, document = changes.environment, changes.wanted["schema"]
    with schema_service.prepared(environment, document, actor=caller, confirm=changes.plan.confirm) as change_schema:

        def change_all() -> None:
            # First, so that two changes of a schema never wait for each other.
            schema_service.locked_version(environment)
            change_items()
            change_schema()  # last, because it keeps the tables locked until the commit

        yield change_all


def _change_functions(changes: PlanChanges, caller: Caller) -> None:
    environment = changes.environment
    for each in changes.changed_items("functions"):
        with errors_at(each.path):
            if each.is_removed:
                deploy_service.delete_function(environment, each.name, actor=caller)
            elif "source" in each.values:
                deploy_service.deploy(environment, each.name, each.values, actor=caller)
            else:
                deploy_service.configure(environment, each.name, each.values, actor=caller)


def _change_webhooks(changes: PlanChanges, caller: Caller) -> None:
    environment, changed = changes.environment, changes.changed_items("webhooks")
    if not changed:
        return
    ids = {webhook.name or webhook.pk: webhook.pk for webhook in Webhook.objects.of(environment).lasting()}
    for each in changed:
        with errors_at(each.path):
            if each.is_removed:
                webhook_service.delete_webhook(environment, ids[each.name], actor=caller)
            elif each.is_new:
                own = {} if each.name.startswith("wh_") else {"name": each.name}
                webhook_service.create_webhook(environment, each.values | own, actor=caller)
            else:
                webhook_service.change_webhook(environment, ids[each.name], each.values, actor=caller)
