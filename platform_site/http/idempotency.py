"""Idempotency-Key: a repeated request has its effect once and gets the same response, for 24 h. The record is inserted
first and commits with the effect, so a concurrent repetition waits. Only 2xx is stored, up to MAX_STORED and sealed
under the key, which is not stored; of a larger response with one row, the row's id. Actions use `@idempotent(using=…)`,
or `claim` and `store_reference`."""

import hashlib
import hmac
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Final, TypeVar, cast

import orjson
from django.db import Error, transaction
from django.http import HttpRequest, HttpResponse

from platform_site.background import advisory_locks
from platform_site.background.advisory_locks import LockSpace
from platform_site.http import bodies, exact_json
from platform_site.http.errors import Conflict, ValidationFailed
from platform_site.http.models import IDEMPOTENCY_PURPOSE as PURPOSE
from platform_site.http.models import IdempotencyRecord
from platform_site.http.requests import named_environment, network_of
from platform_site.http.views import ApiViewSet
from platform_site.identity.callers import Caller
from platform_site.postgres import sqlstates, statements
from platform_site.security import keyring

HEADER: Final = "Idempotency-Key"
REPLAYED: Final = "Idempotency-Replayed"
HOURS: Final = 24
MAX_STORED: Final = 64 * 1024
"""Bytes of a response: a small write can make a large one, and many of them would fill the disk."""
_MAX_STORED_OF_ANONYMOUS: Final = 16 * 1024
_KEY: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,253}[\x21-\x7e])?", re.ASCII)

# A record that has expired but was not purged yet is taken over as if it were not there.
_CLAIM: Final = """
    INSERT INTO api_idempotencyrecord (digest, fingerprint, expires_at)
    VALUES (%s, %s, statement_timestamp() + make_interval(hours => %s))
    ON CONFLICT (digest) DO UPDATE
        SET fingerprint = excluded.fingerprint, expires_at = excluded.expires_at,
            created_at = statement_timestamp(), sealed_answer = NULL, reference = NULL
        WHERE api_idempotencyrecord.expires_at <= statement_timestamp()
    RETURNING true
"""
# An array, not `IN (SELECT … LIMIT …)`: a nested loop would run that for each row, and delete more than the limit.
_PURGE: Final = """
    DELETE FROM api_idempotencyrecord WHERE digest = ANY (ARRAY (
        SELECT digest FROM api_idempotencyrecord WHERE expires_at <= statement_timestamp()
        ORDER BY expires_at LIMIT %(batch)s FOR UPDATE SKIP LOCKED
    ))
"""


@dataclass(frozen=True, slots=True)
class Ticket:
    digest: bytes
    fingerprint: bytes
    """HMAC by the Idempotency-Key, so that passwords in a body cannot be guessed from it."""
    key: bytes


def read_ticket(request: HttpRequest, caller: Caller | None) -> Ticket | None:
    """None without the header. Raises ValidationFailed, PayloadTooLarge. Unrelated clients of a public endpoint, or
    with the same publishable key, may choose the same Idempotency-Key. So the query and body are part of the identity
    there, and for a publishable key also the client's network."""
    key: str | None = request.META.get("HTTP_IDEMPOTENCY_KEY")
    if key is None:
        return None
    if not _KEY.fullmatch(key):
        raise ValidationFailed.of(HEADER, "malformed", f"{HEADER} must be 1 to 255 printable ASCII characters.")
    bodies.declared_length(request.META)
    query_and_body = (
        request.META.get("QUERY_STRING", "").encode("utf-8", "surrogatepass") + b"\0" + _canonical(request.body)
    )
    fingerprint = hmac.digest(key.encode(), query_and_body, "sha256")
    if caller is None:
        identity = ["public", fingerprint.hex(), named_environment(request) or ""]
    else:
        # An endpoint without an environment (the keys) may still refer to the one that the request names.
        environment = caller.environment.environment_id if caller.environment else named_environment(request)
        identity = [caller.kind, caller.id, environment or ""]
        if caller.kind == "anonymous":
            identity += [fingerprint.hex(), network_of(request)]
    # The path comes last: it alone may hold the separator.
    identity_text = "\0".join([*identity, key, request.method or "", request.path])
    digest = hashlib.sha256(identity_text.encode("utf-8", "surrogatepass")).digest()
    return Ticket(digest, fingerprint, key.encode())


def _canonical(body: bytes) -> bytes:
    """Equal bytes for equal JSON, with numbers as written. Other bodies as they are."""
    try:
        value = json.loads(body, parse_float=lambda text: f"\0{text}")  # no valid text begins with NUL
        return exact_json.canonical(value)
    except (ValueError, RecursionError):
        return body


def claim(ticket: Ticket, *, using: str) -> IdempotencyRecord | None:
    """The transaction's first statement; None for a new request. Waits for a concurrent one up to `lock_timeout`, then
    raises Conflict. Raises ValidationFailed for another query or body."""
    try:
        if statements.rows(using, _CLAIM, [ticket.digest, ticket.fingerprint, HOURS]):
            return None
    except Error as error:
        if sqlstates.sqlstate(error) in {sqlstates.LOCKED, sqlstates.CANCELLED}:
            raise _in_flight() from error
        raise
    record = IdempotencyRecord.objects.using(using).filter(digest=ticket.digest).first()
    if record is None:  # purged between the two statements, as old as it is
        raise _in_flight()
    if bytes(record.fingerprint) != ticket.fingerprint:
        raise ValidationFailed.of(
            HEADER,
            "reused",
            f"This {HEADER} was used for another request: its query or body differs. Use a new key for a new request.",
        )
    return record


def _in_flight() -> Conflict:
    return Conflict(
        f"A request with this {HEADER} is still in progress. Send it again shortly.", headers={"Retry-After": "1"}
    )


def no_longer_stored() -> Conflict:
    return Conflict(
        f"The request with this {HEADER} was processed, but its response is not stored: it is too old or too large."
    )


def store(ticket: Ticket, response: HttpResponse, *, using: str, row_id: str | None = None) -> None:
    """In the transaction of `claim`. With `row_id` without the content: a repetition reads the row."""
    head = [response.status_code, list(response.headers.items())]
    plain = orjson.dumps(head) + b"\n" + response.content if row_id is None else orjson.dumps([*head, row_id])
    sealed = keyring.seal(keyring.seal_under(ticket.key, plain, purpose=PURPOSE), purpose=PURPOSE)
    IdempotencyRecord.objects.using(using).filter(digest=ticket.digest).update(sealed_answer=sealed)


def store_reference(ticket: Ticket, reference: str, *, using: str) -> None:
    IdempotencyRecord.objects.using(using).filter(digest=ticket.digest).update(reference=reference)


def replay(
    ticket: Ticket, kept: IdempotencyRecord, read_row: Callable[[str], HttpResponse] | None = None
) -> HttpResponse:
    """`read_row(row_id)` makes the content if only the row is stored. Raises Conflict if nothing was stored."""
    try:
        if kept.sealed_answer is None:
            raise keyring.Tampered("no answer was kept")
        plain = keyring.unseal_under(ticket.key, keyring.unseal(kept.sealed_answer, purpose=PURPOSE), purpose=PURPOSE)
    except keyring.KeyringError as error:  # a platform key was dropped before its records expired, or it was large
        raise no_longer_stored() from error
    head, _, body = plain.partition(b"\n")
    status, headers, *row_ids = orjson.loads(head)
    response = HttpResponse(body, status=status, headers=dict(headers))
    if "Content-Type" not in dict(headers):
        del response.headers["Content-Type"]
    if row_ids and read_row is not None:
        current = read_row(row_ids[0])
        response.content = current.content
        response.headers["ETag"] = current.headers["ETag"]
    response.headers[REPLAYED] = "true"
    return response


Action = TypeVar("Action", bound=Callable[..., Any])


def in_region(view: ApiViewSet) -> str | None:
    return view.caller.environment.cluster if view.caller.environment else None


def idempotent(
    using: str | Callable[[Any], str | None] = "default",
    *,
    before: Callable[[Any], None] = lambda view: None,
    read_row: Callable[[Any, str], HttpResponse] | None = None,
) -> Callable[[Action], Action]:
    """Makes an action of an ApiViewSet honour the Idempotency-Key, in `atomic(using)`. Without the header there is no
    transaction. `before` is called first, outside of it. `read_row(view, row_id)` is for responses with one row."""

    def decorate(action: Action) -> Action:
        @wraps(action)
        def once(self: ApiViewSet, *args: Any, **kwargs: Any) -> Any:
            before(self)
            request = self.http_request
            if "HTTP_IDEMPOTENCY_KEY" not in request.META:
                return action(self, *args, **kwargs)
            ticket = read_ticket(request, None if self.public else self.caller)
            alias = using if isinstance(using, str) else using(self)
            if ticket is None or alias is None:
                return action(self, *args, **kwargs)
            with transaction.atomic(using=alias):
                if self.met_deadlock and self.environment_use == "required":
                    # Requests that are repeated one after the other do not block each other again.
                    advisory_locks.lock(alias, LockSpace.REPEATED_WRITES, self.environment.environment_id)
                kept = claim(ticket, using=alias)
                if kept is not None:
                    return replay(ticket, kept, read_row and partial(read_row, self))
                response = action(self, *args, **kwargs)
                if not isinstance(response, HttpResponse):
                    raise TypeError(f"an idempotent action must return a whole answer, not {type(response).__name__}")
                is_anonymous = not self.public and self.caller.kind == "anonymous"
                if not 200 <= response.status_code < 300:
                    IdempotencyRecord.objects.using(alias).filter(digest=ticket.digest).delete()
                elif len(response.content) <= (_MAX_STORED_OF_ANONYMOUS if is_anonymous else MAX_STORED):
                    store(ticket, response, using=alias)
                elif read_row is not None and "ETag" in response.headers:
                    store(ticket, response, using=alias, row_id=exact_json.loads(response.content)["id"])
            return response

        once.__dict__["is_idempotent"] = True
        return cast(Action, once)

    return decorate


def purge_expired(*, using: str, batch: int = 1_000) -> int:
    return statements.execute_in_batches(using, _PURGE, {}, batch=batch)
