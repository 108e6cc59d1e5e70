"""Authentication: turns a request into a frozen `Caller`, or an error. It costs one Redis round trip (both records and
the rate limit), and one statement on a miss, whose records go to Redis with the next round trip. Contract section 5."""

import logging
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

from django.conf import settings
from django.db import Error
from django.db.models import Value
from django.http import HttpRequest
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from accounts.tokens import credentials
from accounts.tokens.credentials import Credential, KeyCredential, SessionCredential
from accounts.tokens.revocation import REVOKED, UNCACHED
from accounts.users import identity_lookup
from accounts.users import service as user_service
from accounts.users.identity_lookup import Identity
from platform_site.concurrency.memo import Memo
from platform_site.http.errors import Forbidden, NotFound, Unauthorized, Unavailable, ValidationFailed
from platform_site.http.requests import named_environment
from platform_site.identity import ids
from platform_site.identity.callers import Caller, EnvironmentRef
from platform_site.redis import client as redis_client
from platform_site.redis import rate_limits
from platform_site.redis.records import Format, types_of
from projects import staff_access
from projects.api import pending_records, replica_freshness, users_version
from projects.directory import environment_cache, environments, roles

EnvironmentUse = Literal["required", "optional", "unused"]
HEADER: Final = "X-Environment"

_MAX_REMEMBERED: Final = 5000

log = logging.getLogger("platform.callers")


class CallerAuthentication(BaseAuthentication):
    def authenticate(self, request: Request) -> tuple[Caller, Credential]:
        """The caller of this request and its credential. Raises Unauthorized, RateLimited, NotFound (another's
        environment), ValidationFailed on `X-Environment` (missing), Forbidden (an account's key in an environment),
        ProjectSuspended."""
        http: HttpRequest = request._request
        header = http.META.get("HTTP_AUTHORIZATION")
        if not header:
            raise credentials.missing()
        try:
            credential = credentials.read(header)
            find = _staff_caller if staff_access.ATTRIBUTE in http.__dict__ else resolve
            return find(http, credential, request.parser_context["view"].environment_use), credential
        except Unauthorized:
            rate_limits.count_refused(http)
            raise

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


def check_again(request: HttpRequest) -> Caller:
    """For the check of an open stream, which is no request: no rate limit applies to it. Raises as `authenticate`."""
    credential = credentials.read(request.META["HTTP_AUTHORIZATION"])
    find = _staff_caller if staff_access.ATTRIBUTE in request.__dict__ else resolve
    return find(request, credential, "required", is_limited=False)


def _staff_caller(
    request: HttpRequest, credential: Credential, use: EnvironmentUse, *, is_limited: bool = True
) -> Caller:
    account = resolve(request, credential, "unused", is_limited=is_limited)
    grant_id, named = request.__dict__[staff_access.ATTRIBUTE], named_environment(request)
    return staff_access.caller_with(account, grant_id, named, needs_environment=use == "required")


@dataclass(frozen=True, slots=True)
class Lookup:
    credential: Credential
    named: str | None
    identity_key: str
    environment_key: str | None
    """The name of the environment's record; None without an environment."""


def lookup_of(credential: Credential, named: str | None, use: EnvironmentUse) -> Lookup:
    identity_key = credential.cache_name
    environment_key: str | None
    if isinstance(credential, KeyCredential):
        environment_key = environment_cache.name_for_key(identity_key)
    elif credential.claims.environment_id is not None:
        environment_key = environment_cache.name_for_user(credential.claims.environment_id)
    elif use == "unused" or (named is not None and not ids.matches("env", named)):
        environment_key = None
    else:
        environment_key = environment_cache.name_for_account(credential.claims.user_id, named)
    return Lookup(credential, named, identity_key, environment_key)


@dataclass(frozen=True, slots=True)
class _Found:
    identity: Identity
    environments: tuple[EnvironmentRef, ...]
    caller: Caller


def resolve(request: HttpRequest, credential: Credential, use: EnvironmentUse, *, is_limited: bool = True) -> Caller:
    """Raises as `authenticate`. `is_limited`: whether the call counts for rate limits. Sets attributes of the request
    (`platform_site.http.requests`)."""
    lookup = lookup_of(credential, named_environment(request), use)
    environment_key = lookup.environment_key
    replica_key = environment_key if settings.REPLICAS else None
    users_key = environment_key if "with=" in request.META.get("QUERY_STRING", "") else None
    # A key with a valid checksum can be invented, a signature cannot.
    may_be_forged = isinstance(credential, KeyCredential) and _verified.get(lookup.identity_key) is None

    trip = redis_client.round_trip()
    pending_records.put_on(trip)
    identity_record = trip.get(lookup.identity_key)
    environment_record = trip.get(environment_key) if environment_key is not None else None
    limit = guesses = None
    if is_limited:
        if isinstance(credential, KeyCredential):
            caller_key, is_anonymous = lookup.identity_key, credential.is_publishable
        else:
            caller_key, is_anonymous = credential.claims.user_id, False
        limit = rate_limits.CallerLimit(request, trip, caller_key, is_anonymous=is_anonymous)
        guesses = rate_limits.Refusals(request, trip) if may_be_forged else None
    mark = replica_freshness.fetch(trip, replica_key) if replica_key is not None else None
    version = users_version.fetch(trip, users_key) if users_key is not None else None
    trip.run()

    if identity_record.value == REVOKED:
        raise Unauthorized
    found = _remembered(lookup, identity_record.value, environment_record.value if environment_record else None)
    if found is None:
        if guesses is not None and identity_record.value is None:
            guesses.check()
        found = _query(lookup)
    if may_be_forged:
        _verified.put(lookup.identity_key, True)
    _check_expiry(found.identity)
    caller = found.caller
    if limit is not None:
        limit.settle(caller.plan, caller.id)
    _check_environment(lookup, found, use)
    if caller.environment is not None:
        if replica_key is not None:
            replica_freshness.set_on(request, replica_key, caller.environment, mark)
        if users_key is not None:
            users_version.set_on(request, users_key, caller.environment.pool_id, version)
    return caller


def caller_by_records(lookup: Lookup, identity_record: bytes | None, environment_record: bytes | None) -> Caller | None:
    """None if `resolve` has to decide."""
    found = _remembered(lookup, identity_record, environment_record)
    claims = lookup.credential.claims if isinstance(lookup.credential, SessionCredential) else None
    if found is None or (claims is not None and claims.expires_at <= time.time()):
        return None
    if found.identity.environment_id is not None and not found.environments:
        return None
    _check_expiry(found.identity)
    _check_environment(lookup, found, "required")
    return found.caller


_verified: Final[Memo[str, bool]] = Memo(_MAX_REMEMBERED)
"""Keys that exist or existed."""


def _check_expiry(identity: Identity) -> None:
    if identity.expires_at is not None and identity.expires_at <= time.time():
        raise Unauthorized


def _check_environment(lookup: Lookup, found: _Found, use: EnvironmentUse) -> None:
    """Check that the call means an environment of the caller, or none if none is needed. In a suspended project, only
    accounts pass, and only where no environment is needed."""
    named, identity = lookup.named, found.identity
    if identity.environment_id is not None:
        if not found.environments:
            if environments.exists(identity.environment_id):
                raise Unavailable("The environment is being created or reset. Try again shortly.")
            raise Unauthorized  # its environment was deleted, with all its users and keys
        if named is not None and named != identity.environment_id:
            raise NotFound(
                "The token belongs to another environment than the request names. Name its own, or use another token."
            )
        found.environments[0].require_active()
        return
    if use == "unused":
        return
    if identity.kind != "account":
        if use == "required":
            raise Forbidden("An account key has no access to environments. Use a key of the environment.")
        return
    if named is not None:
        if not ids.matches("env", named):
            raise ValidationFailed.of(HEADER, "invalid_id", "Must be an id that starts with env_, not a name.")
        if not found.environments:
            raise NotFound("The environment does not exist, or you have no access to it.")
    elif len(found.environments) != 1 and use == "required":
        raise ValidationFailed.of(
            HEADER, "required", "Name the environment of the request with the header X-Environment or by its host."
        )
    if use == "required":
        found.environments[0].require_active()


def _remembered(lookup: Lookup, identity_record: bytes | None, environment_record: bytes | None) -> _Found | None:
    """The content of two cached records; None if one is missing, marked, or of another format."""
    if identity_record is None or identity_record == UNCACHED:
        return None
    return _read_records(identity_record, environment_record, lookup.environment_key is not None)


@lru_cache(_MAX_REMEMBERED)
def _read_records(identity_record: bytes, environment_record: bytes | None, names_environment: bool) -> _Found | None:
    try:
        identity = _identity_from(identity_record)
        if not names_environment or (identity.kind == "key" and identity.environment_id is None):
            return _assemble(identity, [])
        if environment_record is None or environment_record == UNCACHED:
            return None
        return _assemble(identity, environment_cache.from_record(environment_record))
    except ValueError:
        return None


def _query(lookup: Lookup) -> _Found:
    """Both records from PostgreSQL, in one statement; cached with the next round trip. Raises Unauthorized."""
    now, credential = time.monotonic(), lookup.credential
    statement: Any
    if lookup.environment_key is None:
        statement = Value([], output_field=environment_cache.JSON_ARRAY)
    elif isinstance(credential, SessionCredential) and credential.claims.environment_id is None:
        statement = environment_cache.of_account(lookup.named)
    else:
        statement = environment_cache.of_credential()
    found = identity_lookup.identify(credential, statement)
    if found is None:
        raise Unauthorized
    identity, raw = found
    record = _FORMAT.dump([getattr(identity, name) for name, _ in _COLUMNS])
    pending_records.add(now, lookup.identity_key, record)
    # An environment that the account may not see is not cached: callers can invent any number of names.
    if lookup.environment_key is not None and (raw or lookup.named is None):
        pending_records.add(now, lookup.environment_key, environment_cache.to_record(raw))
    if identity.touch_due:
        try:
            user_service.touch_key(identity.id)
        except Error as error:  # does not refuse the call
            log.warning("the use of a key was not recorded: %s", type(error).__name__, extra={"key_id": identity.id})
    return _assemble(identity, raw)


def _assemble(identity: Identity, raw: list[dict[str, Any]]) -> _Found:
    found = tuple(environment_cache.from_json(columns) for columns in raw)
    environment = found[0] if len(found) == 1 else None
    return _Found(
        identity=identity,
        environments=found,
        caller=Caller(
            kind=identity.kind,
            id=identity.id,
            scopes=_scopes(identity, environment),
            plan=environment.plan if environment else "free",
            environment=environment,
            session_id=identity.session_id,
            account_id=identity.account_id,
            email=identity.email,
            name=identity.name,
            role=identity.role,
            claims=identity.claims,
        ),
    )


def _scopes(identity: Identity, environment: EnvironmentRef | None) -> frozenset[str]:
    if identity.kind == "key":
        return roles.of_key(identity.scopes, bound_to_environment=identity.environment_id is not None)
    if identity.kind == "anonymous":
        return roles.of_publishable_key(identity.scopes, bound_to_environment=identity.environment_id is not None)
    if identity.kind == "user":
        return roles.APP_USER
    if environment is None or environment.role is None:
        return roles.ACCOUNT_WITHOUT_ENVIRONMENT
    return roles.BY_ROLE[environment.role]


_COLUMNS: Final = [each for each in types_of(Identity) if each[0] != "touch_due"]
"""Without the field that a cached record would repeat for as long as it lives."""
_FORMAT: Final = Format(_COLUMNS)


def _identity_from(record: bytes) -> Identity:
    values: list[Any] = _FORMAT.load(record)
    values[-1] = frozenset(values[-1])  # the scopes
    return Identity(*values)
