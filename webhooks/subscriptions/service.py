"""Services of webhooks. Subscriptions of the outbox change in the same transaction, under one lock per environment. A
change updates at most one batch of deliveries; `webhooks.delivery.reconciler` does the rest."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db import transaction
from django.db.models import F, Q
from django.db.models.functions import Greatest, Now

from accounts.audit import Actor
from platform_site.background.periodic import after_commit
from platform_site.http.errors import Conflict, NotFound, QuotaExceeded, ValidationFailed, first_or
from platform_site.identity import call_depth
from platform_site.identity.callers import Caller, EnvironmentRef
from platform_site.identity.plans import plan_limits
from platform_site.postgres import sql_functions
from platform_site.security import keyring
from projects.directory import locks as environment_locks
from rows.outbox import audit as audit_outbox
from rows.outbox import subscriptions
from rows.outbox.models import record as record_event
from webhooks import notify as webhook_notify
from webhooks.delivery import signing
from webhooks.delivery.circuit_breaker import host_of
from webhooks.delivery.queue import wait_for_claims
from webhooks.delivery.reconciler import MAX_ATTEMPTS, REQUEST_BATCH, reconcile_webhook
from webhooks.errors import NoSuchWebhook
from webhooks.models import Delivery, Webhook

COPIED_FIELDS: Final = ("name", "url", "events", "filter", "columns", "ordering", "description")
SECRET_OVERLAP: Final = timedelta(hours=24)
MAX_PREVIOUS_SECRETS: Final = 4
"""Each signs until its own overlap ends."""


@dataclass(frozen=True, slots=True)
class Recovery:
    count: int
    is_all: bool


def create_webhook(
    environment: EnvironmentRef, values: Mapping[str, Any], *, actor: Caller | Actor
) -> tuple[Webhook, str]:
    """Returns webhook and signing secret. Raises QuotaExceeded, ValidationFailed (the name is taken)."""
    using = environment.cluster
    secret = signing.new_secret()
    with transaction.atomic(using=using):
        check_webhook_quota(environment, 1)
        _require_free_name(environment, values.get("name"))
        webhook = Webhook.objects.using(using).create(
            environment_id=environment.environment_id,
            host=host_of(values["url"]),
            sealed_secret=signing.seal(secret),
            disabled_reason=None if values.get("enabled", True) else "by_request",
            **values,
        )
        subscriptions.refresh(environment.environment_id, using)
        audit_outbox.record(environment, "webhook.created", actor=actor, target_id=webhook.pk, url=webhook.origin)
    return webhook, secret


def check_webhook_quota(environment: EnvironmentRef, count: int) -> None:
    """Serialize subscribing. Raises QuotaExceeded for `count` more webhooks, NoSuchEnvironment."""
    environment_locks.lock_shared_in_region(environment.environment_id, environment.cluster)
    subscriptions.lock(environment.environment_id, environment.cluster)
    limit = plan_limits(environment.plan).webhooks_per_environment
    QuotaExceeded.check(count_webhooks(environment), limit, "webhooks in an environment", more=count)


def count_webhooks(environment: EnvironmentRef) -> int:
    return Webhook.objects.of(environment).count()


def change_webhook(
    environment: EnvironmentRef,
    webhook_id: str,
    values: Mapping[str, Any],
    *,
    held: str = "release",
    actor: Caller | Actor,
) -> None:
    """Enabling releases held events, or drops them with `held="drop"`. Raises NoSuchWebhook, ValidationFailed."""
    using = environment.cluster
    with transaction.atomic(using=using):
        subscriptions.lock(environment.environment_id, using)
        webhook = webhook_of(environment, webhook_id, lock=True)
        was_enabled, url_before = webhook.enabled, webhook.url
        if values.get("name") != webhook.name:
            _require_free_name(environment, values.get("name"))
        for name, value in values.items():
            setattr(webhook, name, value)
        webhook.host = host_of(webhook.url)
        if webhook.enabled and not was_enabled:
            webhook.disabled_reason = webhook.failing_since = None
            if held == "drop":
                webhook.drop_before, webhook.recover_from, webhook.recover_until = Now(), None, None
        elif was_enabled and not webhook.enabled:
            webhook.disabled_reason = "by_request"
        if values:
            webhook.updated_at = Now()
            webhook.save(using=using)
            if webhook.enabled != was_enabled:
                reconcile_webhook(using, webhook.pk, batch=REQUEST_BATCH)
            audit_outbox.record(
                environment, "webhook.changed", actor=actor, target_id=webhook.pk, fields=sorted(values)
            )
        subscriptions.refresh(environment.environment_id, using)
        webhook_notify.after_commit(using)
        if was_enabled and (not webhook.enabled or webhook.url != url_before):
            _wait_until_no_attempt_starts(webhook.pk, using)


def _require_free_name(environment: EnvironmentRef, name: str | None) -> None:
    """Needs the lock of the environment's subscriptions."""
    if name is not None and Webhook.objects.of(environment).filter(name=name).exists():
        raise ValidationFailed.of("name", "taken", "Another webhook of the environment has this name.")


def delete_webhook(environment: EnvironmentRef, webhook_id: str, *, actor: Caller | Actor) -> None:
    """No attempt starts from now on; those in flight complete. Raises NoSuchWebhook. Contract 4.10."""
    using = environment.cluster
    with transaction.atomic(using=using):
        subscriptions.lock(environment.environment_id, using)
        webhook = webhook_of(environment, webhook_id, lock=True)
        webhook.deleted_at = Now()
        webhook.save(using=using, update_fields=["deleted_at"])
        subscriptions.refresh(environment.environment_id, using)
        _wait_until_no_attempt_starts(webhook.pk, using)
        audit_outbox.record(environment, "webhook.deleted", actor=actor, target_id=webhook_id, url=webhook.origin)


def rotate_secret(environment: EnvironmentRef, webhook_id: str, *, actor: Caller | Actor) -> str:
    """A new signing secret; old ones sign until their SECRET_OVERLAP ends. Raises NoSuchWebhook, Conflict."""
    using = environment.cluster
    secret = signing.new_secret()
    with transaction.atomic(using=using):
        webhook = webhook_of(environment, webhook_id, lock=True)
        now = sql_functions.now(using)
        Webhook.objects.using(using).filter(pk=webhook.pk).update(
            sealed_previous_secret=signing.seal_previous(_previous_after_rotation(webhook, now)),
            previous_secret_until=now + SECRET_OVERLAP,
            sealed_secret=signing.seal(secret),
            updated_at=Now(),
        )
        audit_outbox.record(environment, "webhook.secret_rotated", actor=actor, target_id=webhook_id)
    return secret


def _previous_after_rotation(webhook: Webhook, now: datetime) -> list[signing.PreviousSecret]:
    """None if they cannot be decrypted. Raises Conflict if another rotation would end the overlap of a secret early."""
    try:
        older = signing.unseal_previous(webhook.sealed_previous_secret, webhook.previous_secret_until, now)
        current = signing.PreviousSecret(signing.unseal(webhook.sealed_secret), now + SECRET_OVERLAP)
    except keyring.KeyringError:
        return []
    if len(older) >= MAX_PREVIOUS_SECRETS:
        most, when = MAX_PREVIOUS_SECRETS, older[-1].until.strftime("%Y-%m-%dT%H:%M:%SZ")
        raise Conflict(f"{most} previous secrets of this webhook are still valid. Rotate it again after {when}.")
    return [current, *older]


def send_test(environment: EnvironmentRef, webhook_id: str, *, actor: Caller | Actor) -> str:
    using = environment.cluster
    with transaction.atomic(using=using):
        # Locked: a deletion marks the webhook first, and then deletes its events.
        webhook = webhook_of(environment, webhook_id, lock=True)
        event_id = record_event(
            "webhook.test", {"webhook_id": webhook.pk}, using=using, environment_id=environment.environment_id
        )
        audit_outbox.record(environment, "webhook.tested", actor=actor, target_id=webhook_id, event_id=event_id)
        webhook_notify.after_commit(using)
    return event_id


def redeliver(environment: EnvironmentRef, webhook_id: str, delivery_id: str, *, actor: Caller | Actor) -> Delivery:
    """Resend one delivery with its id and body. Raises NotFound, Conflict."""
    using, depth = environment.cluster, call_depth.depth_here(environment.environment_id)
    call_depth.refuse_loop(depth)
    with transaction.atomic(using=using):
        webhook = webhook_of(environment, webhook_id)
        delivery = Delivery.objects.using(using).select_for_update().filter(pk=delivery_id, webhook=webhook).first()
        if delivery is None:
            raise NotFound("There is no such delivery of this webhook.")
        if not delivery.body:
            raise Conflict("The event was never sent to the webhook: " + (delivery.outcome or "filtered"))
        _check_is_sendable(webhook)
        if delivery.attempts >= MAX_ATTEMPTS:
            raise Conflict(f"It was attempted {delivery.attempts} times, and is not sent again.")
        unclaimed = Q(claimed_until__isnull=True) | Q(claimed_until__lt=Now())
        resent = Delivery.objects.using(using).filter(unclaimed, pk=delivery.pk)
        due_at = delivery.next_attempt_at if delivery.status == Delivery.Status.PENDING else None
        # The statement's time: the transaction's may lie before that of the request that made the delivery due.
        if due_at is not None and due_at <= sql_functions.now(using):
            raise Conflict("The delivery is already in progress: it is due now, and an attempt follows.")
        if not resent.update(
            status=Delivery.Status.PENDING, next_attempt_at=Now(), claimed_until=None, schedule_from=F("attempts"),
            depth=Greatest("depth", depth),
        ):  # fmt: skip
            raise Conflict("The delivery is already in progress: an attempt is being made.")
        delivery.refresh_from_db(using=using)
        audit_outbox.record(environment, "delivery.resent", actor=actor, target_id=delivery_id)
        webhook_notify.after_commit(using)
    return delivery


def recover(environment: EnvironmentRef, webhook_id: str, since: datetime, *, actor: Caller | Actor) -> Recovery:
    """Except deliveries with MAX_ATTEMPTS attempts. Raises NoSuchWebhook, Conflict for a disabled webhook."""
    using = environment.cluster
    with transaction.atomic(using=using):
        webhook = webhook_of(environment, webhook_id, lock=True)
        _check_is_sendable(webhook)
        webhook.recover_from = since if webhook.recover_from is None else min(since, webhook.recover_from)
        webhook.recover_until = Now()
        webhook.save(using=using, update_fields=["recover_from", "recover_until"])
        count, _ = reconcile_webhook(using, webhook.pk, batch=REQUEST_BATCH)
        webhook.refresh_from_db(using=using, fields=["recover_from"])
        audit_outbox.record(environment, "webhook.recovered", actor=actor, target_id=webhook_id, deliveries=count)
        webhook_notify.after_commit(using)
    return Recovery(count, is_all=webhook.recover_from is None)


def patterns_of(environment_id: str, using: str) -> Iterable[Sequence[str]]:
    return Webhook.objects.using(using).live(environment_id).values_list("events", flat=True)


def webhook_of(environment: EnvironmentRef, webhook_id: str, *, lock: bool = False) -> Webhook:
    found = Webhook.objects.of(environment).filter(pk=webhook_id)
    return first_or(found.select_for_update() if lock else found, NoSuchWebhook)


def copy_webhooks(source: EnvironmentRef, target: EnvironmentRef) -> None:
    live = Webhook.objects.of(source).lasting()
    Webhook.objects.using(target.cluster).bulk_create(
        new_copy(target, vars(webhook), disabled_reason="branched") for webhook in live.order_by("created_at", "id")
    )
    subscriptions.refresh(target.environment_id, target.cluster)


def new_copy(environment: EnvironmentRef, values: Mapping[str, Any], *, disabled_reason: str) -> Webhook:
    """Unsaved, with COPIED_FIELDS of `values`: disabled, with a secret that nobody knows until it is rotated."""
    return Webhook(
        environment_id=environment.environment_id,
        host=host_of(values["url"]),
        enabled=False,
        disabled_reason=disabled_reason,
        sealed_secret=signing.seal(signing.new_secret()),
        # Backups of v0.1.0 have no names.
        **{field: values[field] for field in COPIED_FIELDS if field in values},
    )


def _wait_until_no_attempt_starts(webhook_id: str, using: str) -> None:
    # The change is committed, so an error of the region during the wait is only logged.
    after_commit(f"claims of {webhook_id}", wait_for_claims, using, webhook_id, using=using, committed=using)


def _check_is_sendable(webhook: Webhook) -> None:
    if not webhook.enabled:
        raise Conflict("The webhook is disabled. Enable it to send the held deliveries.")
    if webhook.drop_before is not None:
        raise Conflict("The held deliveries are being dropped: try again in a minute.")
