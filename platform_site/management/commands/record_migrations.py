"""`manage.py record_migrations`: records the SQL of all migrations for new databases
(`platform_site.postgres.snapshot`), by an embedded PostgreSQL. Run it after a migration is added or changed."""

import signal
import tempfile
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import DEFAULT_DB_ALIAS, connections

from platform_site import env
from platform_site.embedded import postgres as embedded_postgres
from platform_site.embedded.data_dir import Layout, region_database
from platform_site.postgres.snapshot import schema_snapshot


class Command(BaseCommand):
    help = "Record what the migrations say to a new database, for quick first starts. After changing a migration."
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        region = settings.REGION_DATABASES[0]
        with tempfile.TemporaryDirectory(prefix="bp-record-") as directory:
            layout = Layout(Path(directory))
            server = embedded_postgres.start(layout, durable=False, log=layout.data_dir / "postgres.log")
            try:
                for alias, database in ((DEFAULT_DB_ALIAS, "control"), (region, region_database(region))):
                    connection = connections[alias]
                    connection.close()
                    connection.settings_dict |= env.postgres("DATABASE_URL", layout.postgres_url(database))
                    file = schema_snapshot.file_of(alias)
                    file.write_text(schema_snapshot.record(connection))
                    connection.close()
                    self.stdout.write(str(file.relative_to(settings.BASE_DIR)))
            finally:
                server.send_signal(signal.SIGINT)
                server.wait(20)
