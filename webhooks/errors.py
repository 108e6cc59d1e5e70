from datetime import datetime

from platform_site.http.errors import Conflict, NotFound, ValidationFailed


class NoSuchWebhook(NotFound):
    message = "There is no such webhook in this environment."


class NoSuchDelivery(NotFound):
    message = "There is no such delivery of this webhook."


class NameTaken(ValidationFailed):
    pass


class TooManySecrets(Conflict):
    """Another rotation would end the overlap of a secret early."""

    def __init__(self, most: int, until: datetime) -> None:
        when = until.strftime("%Y-%m-%dT%H:%M:%SZ")
        super().__init__(f"{most} previous secrets of this webhook are still valid. Rotate it again after {when}.")


class NothingToRedeliver(Conflict):
    """A delivery without a body (filtered, or a loop) or in flight; or a webhook that is disabled."""
