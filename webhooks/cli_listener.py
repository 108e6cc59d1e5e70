"""`manage.py webhooks listen`: the command creates a temporary subscription, renews it, and makes the delivery attempts
itself. `end_listeners` removes the subscriptions of killed commands."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from django.db import transaction
from django.db.models.functions import Now

from accounts import audit
from platform_site import outbound
from platform_site.identity.callers import EnvironmentRef
from platform_site.outbound.ssrf import networks
from rows.outbox import audit as audit_outbox
from rows.outbox import subscriptions
from webhooks import notify as webhook_notify
from webhooks.delivery.attempts import make_attempt
from webhooks.delivery.queue import AttemptOutcome, ClaimedDelivery, claim, disable, record
from webhooks.delivery.relay import relay_batch
from webhooks.errors import NoSuchWebhook
from webhooks.models import Webhook
from webhooks.subscriptions import service as webhook_service

LEASE: Final = timedelta(seconds=60)
"""Longer than the longest attempt, during which it is not renewed."""
AT_ONCE: Final = 10


class ListenerEnded(Exception):
    """The subscription was deleted or disabled (also by a 410)."""


class Listener:
    def __init__(self, environment: EnvironmentRef, url: str, events: Sequence[str]) -> None:
        """`url`: http or https, any host. Raises QuotaExceeded on entering."""
        self._environment, self._url, self._events = environment, url, list(events)
        # Anyone who runs commands on this machine may call every host that it can reach.
        self._client = outbound.Client(opened=networks(("0.0.0.0/0", "::/0")))
        self.webhook_id, self.secret = "", ""

    def __enter__(self) -> "Listener":
        values: dict[str, Any] = {
            "url": self._url,
            "events": self._events,
            "description": "manage.py webhooks listen",
            "listens_until": Now() + LEASE,
        }
        webhook, self.secret = webhook_service.create_webhook(self._environment, values, actor=audit.SYSTEM)
        self.webhook_id = webhook.pk
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
        with suppress(NoSuchWebhook):
            webhook_service.delete_webhook(self._environment, self.webhook_id, actor=audit.SYSTEM)

    def deliver(
        self, should_stop: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[ClaimedDelivery, AttemptOutcome]]:
        """Make an attempt for at most AT_ONCE due deliveries. Raises ListenerEnded."""
        using = self._environment.cluster
        own = Webhook.objects.of(self._environment).filter(pk=self.webhook_id, enabled=True)
        if not own.update(listens_until=Now() + LEASE):
            raise ListenerEnded
        if relay_batch(using):
            webhook_notify.wake(using)  # for deliveries of other webhooks
        for _ in range(AT_ONCE):
            if should_stop():
                return
            # One by one, since a claimed delivery has to start at once.
            claims = claim(using, 1, default_slots=1, lease=LEASE, only=self.webhook_id)
            if not claims:
                return
            [claimed] = claims
            # To the command's URL: the project's members can change that of the subscription.
            result = make_attempt(replace(claimed, url=self._url), self._client)
            for found in record(using, [result]):
                disable(using, found)
            yield claimed, result


def end_listeners(using: str) -> int:
    expired = Webhook.objects.using(using).filter(listens_until__lt=Now(), deleted_at=None)
    ended = 0
    for environment_id in list(expired.values_list("environment_id", flat=True).distinct()):
        # Under the environment's lock, so that a concurrent new subscription keeps its interest.
        with transaction.atomic(using=using):
            subscriptions.lock(environment_id, using)
            webhooks = list(expired.filter(environment_id=environment_id).select_for_update(no_key=True))
            Webhook.objects.using(using).filter(pk__in=[each.pk for each in webhooks]).update(deleted_at=Now())
            for webhook in webhooks:
                audit_outbox.record_system(
                    using, "webhook.deleted", target_id=webhook.pk, environment_id=environment_id, url=webhook.origin
                )
            ended += len(webhooks)
            subscriptions.refresh(environment_id, using)
    return ended
