"""What can go wrong with subscriptions. They know nothing of HTTP but what `platform_site.api.errors` maps."""

from platform_site.api.errors import Conflict, NotFound, QuotaExceeded


class NoSuchWebhook(NotFound):
    message = "There is no such webhook in this environment."


class NoSuchDelivery(NotFound):
    message = "There is no such delivery of this webhook."


class WebhooksQuotaReached(QuotaExceeded):
    def __init__(self, limit: int) -> None:
        super().__init__(f"The plan allows {limit} webhooks in an environment.")


class NothingToRedeliver(Conflict):
    """A delivery that never had a body (filtered, or cut from a loop), or that is on its way at this moment; or a
    webhook that nothing is sent to."""
