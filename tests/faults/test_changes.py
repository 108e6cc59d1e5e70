"""Live changes while parts of the service fail: a client that applies the events has the rows that a list shows.

Small in the suite: `python -m tests.faults --only --changes` has 10,000 writes and 50 streams under each fault.
"""

import signal

import pytest

from tests.faults import inject
from tests.faults.change_mirrors import HARMS, follow
from tests.faults.conftest import OwnValkey
from tests.support.live_changes import READY, App
from tests.support.service import Up, wait_for

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


ABORTED = """
CREATE TEMPORARY TABLE scratch (number int) ON COMMIT DROP;
DO $$ BEGIN
    FOR number IN 1..5000 LOOP
        BEGIN
            INSERT INTO scratch VALUES (number);
            RAISE division_by_zero;
        EXCEPTION WHEN division_by_zero THEN
        END;
    END LOOP;
END $$;
ROLLBACK
"""
"""Takes the ids of 5,000 transactions, of which PostgreSQL remembers none after a crash."""


@pytest.mark.timeout(180)
def test_ids_of_transactions_that_a_crash_gives_out_again_hide_no_change(battered: Up) -> None:
    app = App(battered)
    for _ in range(5):
        last_id, seen = _position_behind_aborted_transactions(app)
        inject.restart_postgres(battered)
        wait_for("a row is written", lambda: app.clients["server"].get("/rows/tasks").status_code == 200, 20)
        row = app.put("tasks", title="after the crash", owner_id=app.users["ada"])
        with app.database() as database:
            written = database.execute("SELECT max(transaction) FROM platform.rows_outboxevent").fetchone()
            if written is None or int(written[0]) >= seen:
                continue  # a commit came between the aborted transactions and the crash, and so their ids were kept
            database.execute(ABORTED)
        with app.live(last_id=last_id) as stream:
            kind, data = stream.next()
            assert kind == "reset" or data["id"] == row["id"], "else its client never learns of the row"
        return
    pytest.fail("no crash made PostgreSQL give out ids again")


def _position_behind_aborted_transactions(app: App) -> tuple[str, int]:
    """The id of a message, and the first transaction that it has not seen. PostgreSQL's log writer stands still."""
    [writer] = [each for each in inject.server(app.served).children() if "walwriter" in " ".join(each.cmdline())]
    with app.live() as stream:
        assert stream.next() == READY
    try:
        with app.database() as database:
            writer.suspend()
            database.execute(ABORTED)
            [seen] = database.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())").fetchone() or ()
        with app.live() as stream:
            assert stream.next() == READY
            assert stream.last_id is not None
            return stream.last_id, int(seen)
    finally:
        inject.server(app.served).send_signal(signal.SIGQUIT)
        writer.resume()
