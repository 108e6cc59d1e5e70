import random
import time
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from django.conf import settings

from platform_site import outbound
from platform_site.identity import call_depth
from platform_site.security import keyring
from webhooks.delivery import retry, signing
from webhooks.delivery.queue import AttemptOutcome, ClaimedDelivery

STORED_BODY_BYTES: Final = 8 * 1024
STORED_HEADERS: Final = 30
USER_AGENT: Final = "backend-platform-webhooks/1"


def make_attempt(claimed: ClaimedDelivery, client: outbound.Client | None = None) -> AttemptOutcome:
    """Make one attempt. Never raises: the delivery would wait for the end of its lease."""
    at, started = claimed.now(), time.monotonic()
    try:
        answer = (client or outbound.client()).request(
            "POST",
            claimed.url,
            owner=claimed.environment_id,
            headers=_headers(claimed),
            body=claimed.body.encode(),
            total=settings.WEBHOOK_TIMEOUT_SECONDS,
            is_repeatable=True,
        )
        error = None if 200 <= answer.status < 300 else f"answered {answer.status}"
        return _outcome(claimed, at, started, error, answer)
    except outbound.OutboundError as failure:
        error = failure.reason
    except keyring.KeyringError:
        error = "the signing secret cannot be opened"
    except Exception as failure:
        error = f"internal: {type(failure).__name__}"
    return _outcome(claimed, at, started, error[:200], None)


def _outcome(
    claimed: ClaimedDelivery, at: datetime, started: float, error: str | None, answer: outbound.Response | None
) -> AttemptOutcome:
    duration = timedelta(seconds=time.monotonic() - started)
    wait, status = None, "delivered"
    if error is not None:
        header = None if answer is None else answer.headers.get("retry-after")
        wait = retry.delay_after(
            claimed.attempts_of_schedule,
            draw=random.random(),  # noqa: S311 - spreads load, guards nothing
            retry_after=retry.parse_retry_after(header, claimed.now()),
            schedule=settings.WEBHOOK_RETRY_SCHEDULE or retry.SCHEDULE,
        )
        status = "exhausted" if wait is None else "pending"
    outcome = AttemptOutcome(claimed, at, duration, status, wait=wait, error=error)
    if answer is None:
        return outcome
    stored = list(answer.headers.items())[:STORED_HEADERS]
    headers = {name[:100].replace("\0", ""): value[:500].replace("\0", "") for name, value in stored}
    body = answer.body[:STORED_BODY_BYTES].decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
    return replace(outcome, response_status=answer.status, response_headers=headers, response_body=body)


def _headers(claimed: ClaimedDelivery) -> dict[str, str]:
    now = claimed.now()
    previous = signing.unseal_previous(claimed.sealed_previous_secret, claimed.previous_secret_until, now)
    secrets = [signing.unseal(claimed.sealed_secret), *(secret.text for secret in previous)]
    signed = signing.headers(secrets, claimed.event_id, now, claimed.body)
    return {
        "content-type": "application/json",
        "user-agent": USER_AGENT,
        call_depth.HEADER.lower(): call_depth.sign(claimed.depth + 1, claimed.environment_id),
        **signed,
    }
