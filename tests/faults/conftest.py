"""One service for the faults and a receiver for what it tells, with a Valkey of the test's own, which it may kill,
freeze and start again."""

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from platform_site.embedded import postgres as embedded_postgres
from platform_site.embedded.data_dir import REGIONS, Layout, region_database
from tests.support.load import sign_in
from tests.support.receiver import Receiver
from tests.support.service import Up, start_up
from tests.support.valkey import start_for_operators


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


class OwnValkey:
    """A Valkey that is not `up`'s child: what happens to it is the test's doing alone."""

    def __init__(self, directory: Path) -> None:
        self.layout = Layout(directory)
        self.layout.ensure_secrets()
        self.process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        self.process = start_for_operators(self.layout, self.layout.data_dir / "valkey.log")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def own_valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnValkey]:
    own = OwnValkey(tmp_path_factory.mktemp("valkey"))
    yield own
    with contextlib.suppress(ProcessLookupError):
        own.signal(signal.SIGCONT)
    own.kill()


@pytest.fixture(scope="module")
def more_settings() -> dict[str, str]:
    """What a module adds to the environment of `battered`."""
    return {}


@pytest.fixture(scope="module")
def battered(
    own_valkey: OwnValkey, more_settings: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Up]:
    """The service, to be hurt. Each test leaves it running and whole."""
    environment = {"REDIS_URL": own_valkey.layout.redis_url(), "RATE_LIMIT_FACTOR": "1000", "JOB_SECONDS": "1"}
    environment |= more_settings
    # Two web processes: each reload starts as many.
    up = start_up(tmp_path_factory.mktemp("battered") / "data", "--workers", "2", environment=environment)
    yield up
    assert up.stop() == 0, up.output


@pytest.fixture
def token(battered: Up) -> str:
    return sign_in(battered)


def superuser(up: Up, database: str = "control") -> "psycopg.Connection[tuple[object, ...]]":
    """A connection of our own to the service's PostgreSQL."""
    return embedded_postgres.connect(Layout(up.data_dir), database)


def environments_without_schema(up: Up) -> list[str]:
    """Ids of environments of live projects whose schema is missing: never allowed, at no moment."""
    schemas: set[str] = set()
    for region in REGIONS:
        with superuser(up, region_database(region)) as connection:
            schemas |= {
                str(row[0]) for row in connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'env%'")
            }
    query = """
        SELECT e.id FROM projects_environment e JOIN projects_project p ON p.id = e.project_id
        WHERE p.deleted_at IS NULL AND e.status = 'ready'
    """
    with superuser(up) as connection:
        return [str(row[0]) for row in connection.execute(query) if str(row[0]) not in schemas]
