"""The errors of webhook subscriptions. `platform_site.http.errors` has their bases."""

from datetime import datetime

from platform_site.http.errors import Conflict, NotFound, QuotaExceeded, ValidationFailed


class NoSuchWebhook(NotFound):
    message = "There is no such webhook in this environment."


class NoSuchDelivery(NotFound):
    message = "There is no such delivery of this webhook."


class NameTaken(ValidationFailed):
    """Another webhook of the environment has the name."""


class WebhooksQuotaReached(QuotaExceeded):
    def __init__(self, limit: int) -> None:
        super().__init__(f"The plan allows {limit} webhooks in an environment.")


class TooManySecrets(Conflict):
    """Another rotation would end the overlap of a secret early, while receivers may still use it."""

    def __init__(self, most: int, until: datetime) -> None:
        when = until.strftime("%Y-%m-%dT%H:%M:%SZ")
        super().__init__(f"{most} previous secrets of this webhook are still valid. Rotate it again after {when}.")


class NothingToRedeliver(Conflict):
    """A delivery that never had a body (filtered, or cut from a loop), or that is on its way at this moment; or a
    webhook that nothing is sent to."""
