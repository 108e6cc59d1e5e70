"""Live changes while parts of the service fail: a client that applies the events has the rows that a list shows.

Small in the suite: `python -m tests.faults --only --changes` has 10,000 writes and 50 streams under each fault.
"""

import pytest

from tests.faults.change_mirrors import HARMS, follow
from tests.faults.conftest import OwnValkey
from tests.support.service import Up

WRITES = 50
STREAMS = 4


@pytest.mark.timeout(120)
@pytest.mark.parametrize("what", HARMS)
def test_no_change_is_lost(battered: Up, own_valkey: OwnValkey, what: str) -> None:
    found = follow(battered, own_valkey, what, writes=WRITES, streams=STREAMS)
    print(found)
    assert (found.lost, found.renamed, found.unauthorized, found.out_of_order) == (0, 0, 0, 0)
    assert found.writes > WRITES
    assert found.opened > STREAMS, "connections broke, and were opened again"
