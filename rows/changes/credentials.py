"""The current callers of streams: one check for all streams of this process with the same credential."""

import contextlib
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Final
from weakref import WeakValueDictionary

from django.db import Error

from accounts.tokens.credentials import SessionCredential
from accounts.tokens.revocation import UNCACHED
from platform_site.http import exact_json
from platform_site.http.errors import ApiError
from platform_site.identity.callers import Caller
from platform_site.redis import client as redis_client
from projects.api import pending_records
from projects.api.authentication import Lookup, caller_by_records
from projects.directory import environments

AUTHENTICATE_SECONDS: Final = 0.8
"""Between two checks of a credential: its streams end within a second after it is revoked."""
_BATCH: Final = 500


class SharedCredential:
    """`authenticate` raises ApiError if a request with it would be refused. `lookup`: the Redis records of its caller;
    None if they do not suffice."""

    __slots__ = ("__weakref__", "_authenticate", "_caller", "_checked_at", "_lock", "_refused", "lookup")

    def __init__(self, authenticate: Callable[[], Caller], caller: Caller, lookup: Lookup | None) -> None:
        self._authenticate, self._caller, self.lookup = authenticate, caller, lookup
        self._lock = threading.Lock()
        self._checked_at = time.monotonic()
        self._refused: ApiError | None = None

    def caller(self) -> Caller:
        """Checked at most AUTHENTICATE_SECONDS ago. Raises ApiError."""
        with self._lock:
            if time.monotonic() - self._checked_at >= AUTHENTICATE_SECONDS:
                checked_at = time.monotonic()
                try:
                    self._set_caller(self._authenticate())
                except ApiError as error:
                    self._refused = error
                self._checked_at = checked_at
            if self._refused is not None:
                raise self._refused.with_traceback(None)
            return self._caller

    def is_current(self, caller: Caller) -> bool:
        """Whether the method `caller` would return this object without a check."""
        is_fresh = time.monotonic() - self._checked_at < AUTHENTICATE_SECONDS
        return is_fresh and self._refused is None and self._caller is caller

    def is_due_soon(self, now: float) -> bool:
        return now - self._checked_at >= AUTHENTICATE_SECONDS / 2

    def record_check(self, caller: Caller, checked_at: float) -> None:
        if self._lock.acquire(blocking=False):  # otherwise it is being checked
            try:
                self._set_caller(caller)
                self._checked_at = checked_at
            finally:
                self._lock.release()

    def _set_caller(self, caller: Caller) -> None:
        self._refused = None
        if not _is_same(caller, self._caller):  # streams share the object of an equal caller
            self._caller = caller

    def shared_caller(self, caller: Caller) -> Caller:
        """The object that streams of this caller share. If a new request found another caller than the last check, the
        credential is checked again."""
        with self._lock:
            if not _is_same(caller, self._caller) or self._refused is not None:
                self._checked_at = -AUTHENTICATE_SECONDS
                return caller
            return self._caller


def _is_same(caller: Caller, other: Caller) -> bool:
    return caller == other and exact_json.is_same(caller.claims, other.claims)


_lock: Final = threading.Lock()
_known: "Final[WeakValueDictionary[Hashable, SharedCredential]]" = WeakValueDictionary()


def shared_credential(
    key: Hashable, authenticate: Callable[[], Caller], caller: Caller, lookup: Lookup | None
) -> SharedCredential:
    """This process's credential for `key`, which contains everything of the request that `authenticate` depends on."""
    with _lock:
        found = _known.get(key)
        if found is None:
            found = _known[key] = SharedCredential(authenticate, caller, lookup)
    return found


def check_batch(credentials: Iterable[SharedCredential]) -> None:
    """Check those that are due soon, in one round trip to Redis, and a query for each environment whose record is not
    cached. Those without a cached record of their own are left to the method `caller`."""
    now = time.monotonic()
    due = [(each, each.lookup) for each in set(credentials) if each.lookup is not None and each.is_due_soon(now)]
    environment_records: dict[str | None, bytes | None] = {None: None}

    def environment_record(lookup: Lookup, cached: bytes | None) -> bytes | None:
        key = lookup.environment_key
        if key not in environment_records:
            environment_records[key] = None  # a query that fails is not repeated for the next credential
            environment_records[key] = _read_environment(lookup) if cached in (None, UNCACHED) else cached
        return environment_records[key]

    for start in range(0, len(due), _BATCH):
        some = due[start : start + _BATCH]
        trip = redis_client.round_trip()
        pending_records.put_on(trip)
        lookups = [
            (each, lookup, trip.get(lookup.identity_key), trip.get(lookup.environment_key or lookup.identity_key))
            for each, lookup in some
        ]
        trip.run()
        for each, lookup, identity, environment in lookups:
            if identity.value is None:  # as while Redis is unavailable
                continue
            with contextlib.suppress(ApiError, Error):
                caller = caller_by_records(lookup, identity.value, environment_record(lookup, environment.value))
                if caller is not None:
                    each.record_check(caller, now)


def _read_environment(lookup: Lookup) -> bytes | None:
    """The environment's record from PostgreSQL; None if the caller is not one of its users. It is stored, so that
    thousands of streams do not read it once each."""
    claims = lookup.credential.claims if isinstance(lookup.credential, SessionCredential) else None
    if claims is None or claims.environment_id is None or lookup.environment_key is None:
        return None
    now = time.monotonic()
    record = environments.record_of(claims.environment_id)
    pending_records.add(now, lookup.environment_key, record)
    return record
