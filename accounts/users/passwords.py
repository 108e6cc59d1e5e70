"""Password hashing and rules. Argon2id with 12 MiB and three passes, one of OWASP's minimum configurations of equal
strength. A process hashes one at a time, so that sign-ins leave CPU time for others; after WAIT_SECONDS a request is
refused. They are hashed in their order, of each user pool at most one at a time: a tenant that sets many must not delay
the sign-ins of others."""

import os
import threading
import time
import unicodedata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakValueDictionary

from django.contrib.auth import password_validation
from django.contrib.auth.hashers import (
    Argon2PasswordHasher,
    check_password,
    identify_hasher,
    is_password_usable,
    make_password,
)
from django.core.exceptions import ValidationError

from platform_site.concurrency import server_hints
from platform_site.http.errors import FieldError, RateLimited, ValidationFailed

if TYPE_CHECKING:
    from accounts.models import User

MAX_INPUT_LENGTH: Final = 4096
"""Of a password that somebody types to sign in."""
MAX_LENGTH: Final = 1000
"""Of a new password."""
TOO_LONG: Final = f"A password has at most {MAX_LENGTH} characters."
WAIT_SECONDS: Final = 2.0
_INVISIBLE: Final = frozenset({"Zs", "Zl", "Zp", "Cc", "Cf"})


def read(text: str) -> str:
    """The password in NFKC (RFC 8265), the form for all comparisons, lengths and hashes."""
    return unicodedata.normalize("NFKC", text)


def is_blank(text: str) -> bool:
    return all(unicodedata.category(character) in _INVISIBLE for character in read(text))


class Argon2idHasher(Argon2PasswordHasher):
    """Named in PASSWORD_HASHERS. A hash with other parameters is replaced at the next sign-in."""

    time_cost = 3
    memory_cost = 12 * 1024  # KiB
    parallelism = 1

    def encode(self, password: str, salt: str) -> str:
        return str(super().encode(read(password), salt))

    def verify(self, password: str, encoded: str) -> bool:
        return self.verify_exactly(read(password), encoded) or (
            read(password) != password and self.verify_exactly(password, encoded)
        )

    def verify_exactly(self, password: str, encoded: str) -> bool:
        """As `verify`, without normalisation, for older hashes."""
        return bool(super().verify(password, encoded))


Made = TypeVar("Made")


class _Hashing:
    """One thread for hashing. Two hashes at once take longer than one after the other, and on the threads of requests
    the allocator would keep 12 MiB for each thread."""

    def __init__(self) -> None:
        self.of_pools: WeakValueDictionary[str | None, threading.Lock] = WeakValueDictionary()
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="passwords")

    def run(self, work: Callable[[], Made], pool_id: str | None = None) -> Made:
        server_hints.will_block()
        refused = RateLimited(1, "Too many sign-ins are in progress. Try again shortly.")
        until, own = time.monotonic() + WAIT_SECONDS, self.of_pools.setdefault(pool_id, threading.Lock())
        if not own.acquire(timeout=WAIT_SECONDS):
            raise refused
        try:
            hashing = self.thread.submit(work)
            try:
                return hashing.result(max(0.0, until - time.monotonic()))
            except TimeoutError:
                if hashing.cancel():
                    raise refused from None
                return hashing.result()  # it has begun
        finally:
            own.release()


_hashing = _Hashing()


def _after_fork() -> None:
    global _hashing
    _hashing = _Hashing()  # the parent's threads do not run here


os.register_at_fork(after_in_child=_after_fork)


@cache
def _dummy_hash() -> str:
    return make_password("a password without an owner")


def is_correct(password: str, encoded: str | None, pool_id: str | None = None) -> bool:
    """Whether it matches, in constant time even for None. Raises RateLimited. Hold no transaction or lock."""
    if len(password) > MAX_INPUT_LENGTH:
        return False

    def check() -> bool:
        dummy = _dummy_hash()  # for known users too: else the first unknown one would take twice as long
        if not encoded or not is_password_usable(encoded):
            check_password(password, dummy)
            return False
        return check_password(password, encoded)

    return _hashing.run(check, pool_id)


def hashed(password: str, pool_id: str | None = None) -> str:
    return _hashing.run(lambda: make_password(password), pool_id)


def is_outdated(encoded: str, password: str, pool_id: str | None = None) -> bool:
    """Whether the hash has old parameters or is of an unnormalised password. Raises RateLimited."""
    if identify_hasher(encoded).must_update(encoded):
        return True
    if read(password) == password:
        return False
    return not _hashing.run(lambda: Argon2idHasher().verify_exactly(read(password), encoded), pool_id)


def check_chosen(password: str, user: "User | None" = None) -> None:
    if len(read(password)) > MAX_LENGTH:  # checked first: the other rules are slow for a long one
        raise ValidationFailed.of("password", "too_long", TOO_LONG)
    try:
        password_validation.validate_password(password, user)
    except ValidationError as error:
        raise ValidationFailed(
            fields=[
                FieldError("password", each.code or "invalid", " ".join(each.messages)) for each in error.error_list
            ]
        ) from None
