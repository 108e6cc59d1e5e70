"""What each page asks of the databases: so many statements, and no more of the history than it shows."""

from dataclasses import dataclass, field
from typing import Final

import pytest
from django.db import connections

from projects.directory.environments import environment_ref
from tests.developer_console.conftest import Desk
from tests.rows.conftest import Tracker
from tests.support import history
from tests.support.statements import counted

pytestmark = [pytest.mark.exhaustive, pytest.mark.django_db(transaction=True, databases="__all__")]

PAGES: Final = (
    "",
    "activity",
    "tables/tasks",
    "tables/tasks?as=anonymous",
    "tables/tasks/api",
    "schema",
    "settings",
    "search?q=task",
    "functions/",
    "functions/sum",
    "functions/sum/runs",
    "functions/sum/runs?status=failed",
    "functions/sum/settings",
    "webhooks/",
    "webhooks/{webhook}",
    "webhooks/{webhook}/deliveries",
    "webhooks/{webhook}/deliveries?status=exhausted",
    "auth/",
    "auth/invitations",
    "auth/providers",
    "logs",
    "logs/audit",
    "logs/timeline",
    "sessions",
    "branches/",
    "branches/merge",
)
MAX_STATEMENTS: Final = 16
DEARER: Final = {"settings": 34, "logs/timeline": 20}
"""Pages with more parts."""
HISTORY: Final = ("functions_run", "webhooks_delivery", "webhooks_attempt", "rows_outboxevent")
FEW, MANY, DAYS = 1_000, 10_000, 12.5
MAX_BLOCKS: Final = 400
ADDED_BLOCKS: Final = 60
"""By which a history ten times as long may add to what a page reads of it: its indexes are deeper."""
_FLUSH: Final = "SELECT pg_stat_force_next_flush()"
_BLOCKS: Final = """
SELECT sum(heap_blks_hit + heap_blks_read + coalesce(idx_blks_hit, 0) + coalesce(idx_blks_read, 0))::bigint
  FROM pg_statio_user_tables WHERE schemaname = 'platform' AND relname = ANY (%s)
"""


@dataclass
class Cost:
    statements: list[str] = field(default_factory=list)
    blocks: int = 0
    """Of the tables of HISTORY."""


def blocks_read(cluster: str) -> int:
    with connections[cluster].cursor() as cursor:
        cursor.execute(_FLUSH)
        cursor.execute(_BLOCKS, [list(HISTORY)])
        return int(cursor.fetchone()[0])


def cost_of(desk: Desk, path: str, cluster: str, monkeypatch: pytest.MonkeyPatch) -> Cost:
    before = blocks_read(cluster)
    with counted(monkeypatch) as sent:
        assert desk.get(path).status_code == 200, path
    return Cost(sent, blocks_read(cluster) - before)


@pytest.mark.timeout(300)
def test_no_page_reads_more_of_a_longer_history(tracker: Tracker, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = environment_ref(tracker.environment_id)
    assert environment is not None
    assert tracker.call("owner", "PUT", "/functions/sum", json={"source": "export default () => 1"}).status < 300
    hook = {"url": "https://hooks.example/x", "events": ["tasks.*"]}
    webhook = str(tracker.post("owner", "/webhooks", hook).json["id"])
    paths = {path: path.format(webhook=webhook) for path in PAGES}
    for path in paths.values():
        desk.get(path)  # fills caches

    def costs(count: int) -> dict[str, Cost]:
        with connections[environment.cluster].cursor() as cursor:
            cursor.execute("TRUNCATE platform.functions_run, platform.webhooks_delivery CASCADE")
        # As many on the last day, the rest before it.
        history.add_runs(environment.cluster, tracker.environment_id, "sum", count, days=DAYS * count / FEW)
        history.add_deliveries(environment.cluster, webhook, count, days=DAYS * count / FEW)
        with connections[environment.cluster].cursor() as cursor:
            cursor.execute("VACUUM ANALYZE platform.functions_run, platform.webhooks_delivery")
        return {path: cost_of(desk, actual, environment.cluster, monkeypatch) for path, actual in paths.items()}

    few, many = costs(FEW), costs(MANY)
    statements = {path: len(many[path].statements) for path in PAGES}
    assert {path: n for path, n in statements.items() if n > DEARER.get(path, MAX_STATEMENTS)} == {}
    blocks = {path: (few[path].blocks, many[path].blocks) for path in PAGES}
    limits = {path: min(before + ADDED_BLOCKS, MAX_BLOCKS) for path, (before, _) in blocks.items()}
    dear = {path: both for path, both in blocks.items() if both[1] > limits[path]}
    # Autovacuum, or the late statistics of another connection, may have been counted as well: not twice.
    again = {path: cost_of(desk, paths[path], environment.cluster, monkeypatch).blocks for path in dear}
    assert {path: (dear[path], again[path]) for path in dear if again[path] > limits[path]} == {}
