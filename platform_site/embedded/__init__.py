"""`manage.py up`: starts and supervises PostgreSQL, Valkey, the web processes and a worker.
Depends on: platform_site.cli.
Used from outside: up, supervisor, postgres, valkey, data_dir."""
