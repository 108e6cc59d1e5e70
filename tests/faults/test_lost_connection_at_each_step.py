"""Each operation of the API, cut off from PostgreSQL at each of its steps: as SQLite's tests let each I/O fail in turn.

A trial makes ready what the call needs, cuts the wire (`cuts`) at one step, and looks at three things: the answer, what
all databases hold after the periodic jobs, and what becomes of the same request when it is sent again. What is right is written
down for no operation: it is what the same call does, once and twice, with nothing cut.
"""

from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.accounts.conftest import _mail_server, postbox  # noqa: F401 - fixtures
from tests.accounts.oauth.conftest import loopback as loopback
from tests.faults.lost_connections import Lab, none
from tests.faults.lost_connections import lab as lab
from tests.faults.lost_connections import world as world
from tests.faults.operations import CALLS, PLACES, REGION, World
from tests.support.connection_cuts import Break, redis_behind
from tests.support.database_contents import Databases

pytestmark = [pytest.mark.django_db(transaction=True, databases="__all__")]


STREAMS: Final = {"streamChanges"}
"""Have no single response: tests/rows/test_changes.py."""


REDIRECTS: Final = {"receiveSignInCallbackForm"}
"""Read and write nothing: tests/accounts/oauth/test_apple.py."""


_TOGETHER: Final = [[*CALLS][first : first + 14] for first in range(0, len(CALLS), 14)]
"""A world takes longer to make than an operation to try: those of a test share one."""


def test_every_operation_has_a_call() -> None:
    assert CALLS.keys() == PLACES.keys() - STREAMS - REDIRECTS


@pytest.fixture
def lab_with_redis(world: World, settings: Any) -> Iterator[Lab]:
    """With a wire to Redis."""

    def look_again() -> None:
        settings.REDIS_TIMEOUT = settings.REDIS_TIMEOUT  # another store: this one would not ask for a second

    with Databases(("default", REGION)) as databases, redis_behind() as cuts:
        yield Lab(world, cuts, databases, is_needed=False, look_again=look_again)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("operations", _TOGETHER, ids=lambda operations: f"from {operations[0]}")
def test_an_operation_cut_off_twice_is_done_or_refused_and_then_done_once(lab: Lab, operations: list[str]) -> None:
    for operation in operations:
        lab.cut_twice(operation)
    none(lab.problems)


@pytest.mark.timeout(300)
def test_what_was_once_half_done_or_a_mistake_of_ours(lab: Lab) -> None:
    for operation, statement in (
        ("replaceSchema", "CREATE TABLE"),
        ("revertSchema", "DROP TABLE"),
        ("confirmSignUp", 'INSERT INTO "accounts_session"'),
        ("acceptInvitation", 'INSERT INTO "accounts_session"'),
        ("receiveSignInCallback", 'INSERT INTO "accounts_authorizationcode"'),
        ("deleteUser", 'DELETE FROM "accounts_user"'),
        ("deleteMe", 'DELETE FROM "accounts_user"'),
        ("applyConfig", "ROLLBACK TO SAVEPOINT"),
    ):
        clean = lab.clean(operation)
        [at] = [number for number, step in enumerate(clean.steps, 1) if statement in step]
        assert lab.cut(operation, clean, at, Break.UNANSWERED)
    none(lab.problems)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("how", "at_once"),
    [(Break.UNSENT, False), (Break.UNANSWERED, False), (Break.UNANSWERED, True), (Break.UNAVAILABLE, False)],
)
def test_every_operation_cut_off_at_each_step(lab: Lab, how: Break, at_once: bool) -> None:
    for operation in CALLS:
        lab.cut_at_each_step(operation, how, at_once=at_once)
    print(f"\n{lab.trials} trials: {how}, {'again at once' if at_once else 'periodic jobs first'}")
    none(lab.problems)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("how", Break)
def test_no_operation_needs_redis_at_any_step(lab_with_redis: Lab, how: Break) -> None:
    for operation in CALLS:
        lab_with_redis.cut_at_each_step(operation, how, at_once=False)
    print(f"\n{lab_with_redis.trials} trials: {how}")
    none(lab_with_redis.problems)
