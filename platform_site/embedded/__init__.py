"""`manage.py up`: starts and supervises PostgreSQL, Valkey, the web processes and a worker. Its caller
provides the part that needs Django.
Depends on: platform_site.cli.
Used from outside: up, supervisor, postgres, valkey, data_dir."""
